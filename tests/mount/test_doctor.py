"""`gpufs doctor` on real servers and disks, well and broken: it names what is wrong, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.machine import held
from tests.mounts import GPUFS, detach, is_mounted, wait_until
from tests.servers import (
    Azurite,
    Fault,
    FaultProxy,
    GsServer,
    NfsServer,
    S3Endpoint,
    WebServer,
    fault_proxy,
)
from tests.source.test_s3_access import issue

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(os.geteuid() != 0, reason="mounts disks, and a FUSE tree")]

Bucket = Callable[[S3Endpoint], str]
Findings = dict[str, dict[str, str]]


class Doctor:
    """The command, with the environment of a server's user; what it finds, by check."""

    def __init__(self, workplace: Path, tmp_path: Path) -> None:
        self.cache = workplace / f"doctor-{tmp_path.name}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        self.env["AWS_EC2_METADATA_DISABLED"] = "true"
        self.document: dict[str, Any] = {}

    def examine(self, *arguments: str, prefix: tuple[str, ...] = (), **options: str) -> Findings:
        options = {"cache_dir": str(self.cache)} | options
        text = ",".join(f"{key}={value}" for key, value in options.items())
        command = [*prefix, *GPUFS, "doctor", *arguments, "-o", text, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.env, timeout=90)
        assert done.stderr == "" and done.stdout, done
        self.document = json.loads(done.stdout)
        found = {one["check"]: one for one in self.document["findings"]}
        failed = [one for one in found.values() if one["state"] == "FAIL"]
        assert (done.returncode == 1) == bool(failed) == self.document["failed"]
        assert all(one["remedy"] for one in found.values() if one["state"] != "ok")
        return found


@pytest.fixture
def doctor(workplace: Path, tmp_path: Path) -> Doctor:
    return Doctor(workplace, tmp_path)


def states(found: Findings, *checks: str) -> list[str]:
    return [found[check]["state"] for check in checks]


def test_all_is_well_with_a_good_server(weed: S3Endpoint, bucket: Bucket, doctor: Doctor) -> None:
    """The settings it names are those that it was given, and it leaves nothing behind."""
    name = bucket(weed)
    weed.put(name, {f"d{n % 3}/{n}": os.urandom(50_000) for n in range(30)})
    doctor.env |= weed.env()
    found = doctor.examine(f"s3://{name}", endpoint_url=weed.url, cache_size="1GiB")
    checks = "kernel device endpoint clock credentials listing reading".split()
    assert states(found, *checks) == ["ok"] * len(checks)
    assert "from env" in found["credentials"]["text"] and "MB/s" in found["reading"]["text"]
    assert weed.secret_key not in str(doctor.document)
    chosen = {"endpoint_url": weed.url, "cache_size": "1GiB", "cache_dir": str(doctor.cache)}
    assert doctor.document["settings"] == chosen
    assert not doctor.cache.exists()
    mountinfo = Path("/proc/self/mountinfo")
    wait_until(lambda: "gpufs-doctor" not in mountinfo.read_text(), "all such mounts to go")


def test_its_line_for_fstab_mounts(weed: S3Endpoint, bucket: Bucket, doctor: Doctor, tmp_path: Path) -> None:
    name = bucket(weed)
    weed.put(name, {"a": b"bytes"})
    doctor.env |= weed.env()
    options = f"endpoint_url={weed.url},cache_dir={doctor.cache}"
    command = [*GPUFS, "doctor", f"s3://{name}", "-o", options]
    said = subprocess.run(command, capture_output=True, text=True, env=doctor.env, timeout=90)
    assert said.returncode == 0, said
    line = next(line for line in said.stdout.splitlines() if "_netdev" in line).split()
    where = tmp_path / "mnt"
    where.mkdir()
    helper = [sys.executable, "-c", "import sys; from gpufs.cli.helper import main; sys.exit(main())"]
    try:
        subprocess.run([*helper, line[0], where, "-o", line[3]], check=True, env=doctor.env, timeout=90)
        assert (where / "a").read_bytes() == b"bytes"
        subprocess.run([*GPUFS, "umount", where], check=True, timeout=60)
    finally:
        detach(where)


def test_bad_credentials(weed: S3Endpoint, bucket: Bucket, doctor: Doctor) -> None:
    name = bucket(weed)
    doctor.env |= weed.env() | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    found = doctor.examine(f"s3://{name}", endpoint_url=weed.url)
    assert states(found, "endpoint", "listing") == ["ok", "FAIL"]
    assert "SignatureDoesNotMatch" in found["listing"]["text"]
    assert "correct the credentials" in found["listing"]["remedy"]


def test_no_credentials(weed: S3Endpoint, doctor: Doctor) -> None:
    doctor.env |= {"HOME": "/nonexistent", "AWS_CONFIG_FILE": "/nonexistent"}
    found = doctor.examine("s3://bucket", endpoint_url=weed.url)
    assert (
        states(found, "credentials") == ["FAIL"]
        and "no AWS credentials found" in found["credentials"]["text"]
    )


def test_a_wrong_region(moto: S3Endpoint, doctor: Doctor) -> None:
    name = f"doctor-region-{os.getpid()}"
    moto.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    doctor.env |= moto.env()
    found = doctor.examine(f"s3://{name}", endpoint_url=moto.url, region="us-east-1")
    assert states(found, "region") == ["FAIL"]
    assert found["region"]["remedy"] == "set region=eu-west-1, or leave it out"
    assert states(doctor.examine(f"s3://{name}", endpoint_url=moto.url), "region") == ["ok"]
    moto.empty_and_delete(name)


def test_a_dead_endpoint(doctor: Doctor) -> None:
    """What would only fail of the same cause is not tried."""
    began = time.monotonic()
    found = doctor.examine("s3://bucket", endpoint_url="http://127.0.0.1:1")
    assert states(found, "endpoint") == ["FAIL"] and "listing" not in found
    assert "curl -I http://127.0.0.1:1" in found["endpoint"]["remedy"]
    assert time.monotonic() - began < 30


def test_a_clock_that_is_wrong(
    weed: S3Endpoint, bucket: Bucket, proxy: Callable[[S3Endpoint], FaultProxy], doctor: Doctor
) -> None:
    name = bucket(weed)
    doctor.env |= weed.env()
    between = proxy(weed)
    for seconds, state in ((-3600, "FAIL"), (120, "warn")):
        date = formatdate(time.time() - seconds, usegmt=True)
        between.add(Fault("status", "HEAD", times=1, status=403, headers={"Date": date}))
        found = doctor.examine(f"s3://{name}", endpoint_url=between.url)
        assert states(found, "clock") == [state], found["clock"]
        assert ("behind" if seconds < 0 else "ahead") in found["clock"]["text"]


def test_a_missing_device(doctor: Doctor) -> None:
    prefix = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh")
    found = doctor.examine(prefix=prefix)
    assert states(found, "device") == ["FAIL"] and "modprobe fuse" in found["device"]["remedy"]
    assert states(found, "passthrough") == ["FAIL"]


def test_as_another_user(doctor: Doctor, tmp_path: Path) -> None:
    """It needs no right that a user has not; what only root can have is told."""
    doctor.env["HOME"] = str(tmp_path)
    tmp_path.chmod(0o755)
    with held("/dev/fuse"):
        become = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        found = doctor.examine(prefix=become, cache_dir="/var/tmp/gpufs-doctor-none/cache")
    assert states(found, "kernel", "passthrough", "cache speed") == [
        "ok",
        "warn",
        found["cache speed"]["state"],
    ]
    assert "only for root" in found["passthrough"]["text"]


@pytest.mark.parametrize("kind", ["overlay", "tmpfs", "full"])
def test_disks_that_are_not_fit(kind: str, doctor: Doctor, tmp_path: Path) -> None:
    where = tmp_path / "disk"
    layers = [tmp_path / name for name in ("lower", "upper", "work")]
    for directory in (where, *layers):
        directory.mkdir()
    options = f"lowerdir={layers[0]},upperdir={layers[1]},workdir={layers[2]}"
    fstype = "overlay" if kind == "overlay" else "tmpfs"
    size = "size=512M" if kind == "tmpfs" else "size=1M"
    subprocess.run(
        ["mount", "-t", fstype, fstype, "-o", options if kind == "overlay" else size, where], check=True
    )
    try:
        if kind == "full":
            (where / "filler").write_bytes(bytes((1 << 20) - 8192))
        found = doctor.examine(cache_dir=f"{where}/cache")
    finally:
        detach(where)
    assert not is_mounted(where)
    assert states(found, "cache disk") == ["warn"] and fstype in found["cache disk"]["text"]
    if kind == "overlay":
        assert states(found, "passthrough") == ["warn"] and "ext4 or XFS" in found["passthrough"]["remedy"]
    if kind == "full":
        assert states(found, "cache room", "cache speed") == ["FAIL", "FAIL"]
        assert "No space left" in found["cache speed"]["text"]
    assert not doctor.document["settings"]["cache_dir"].startswith(str(where)), "a disk is proposed instead"


def test_other_kinds_of_source(doctor: Doctor, nginx: WebServer, nfs: NfsServer, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(bytes(100_000))
    found = doctor.examine(str(tmp_path / "data"))
    assert states(found, "listing", "reading") == ["ok", "ok"] and "endpoint" not in found
    assert states(doctor.examine(str(tmp_path / "none")), "listing") == ["FAIL"]
    found = doctor.examine(nginx.url + "/")
    assert states(found, "endpoint", "clock", "credentials", "listing") == ["ok"] * 4
    assert "not signed" in found["credentials"]["text"]
    (nfs.root / "file").write_bytes(bytes(100_000))
    found = doctor.examine(nfs.url(), nfs_mount_port=str(nfs.mount_port))
    assert states(found, "listing", "reading") == ["ok", "ok"]
    found = doctor.examine("nfs://127.0.0.1:1/export")
    assert states(found, "listing") == ["FAIL"]
    assert states(doctor.examine("s3:/typo"), "source") == ["FAIL"]


def test_a_certificate_that_is_not_trusted(weed: S3Endpoint, doctor: Doctor, tmp_path: Path) -> None:
    ca = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    issue(tmp_path / "server.pem", "server", (ca, issue(tmp_path / "ca.pem", "ca", None)))
    doctor.env |= weed.env()
    with fault_proxy(weed.url, tmp_path / "server.pem") as between:
        found = doctor.examine("s3://bucket", endpoint_url=between.url)
        assert states(found, "TLS") == ["FAIL"] and "ca_bundle=" in found["TLS"]["remedy"]
        found = doctor.examine("s3://bucket", endpoint_url=between.url, ca_bundle=str(tmp_path / "ca.pem"))
        assert states(found, "endpoint") == ["ok"] and "with TLS" in found["endpoint"]["text"]


def test_the_other_clouds(gs: GsServer, azurite: Azurite, doctor: Doctor) -> None:
    checks = "endpoint clock credentials listing reading".split()
    gs.buckets["examined"] = {}
    gs.put("examined", {"a/b": bytes(50_000)})
    found = doctor.examine("gs://examined", endpoint_url=gs.url, anonymous="true")
    assert states(found, *checks) == ["ok"] * 5, found
    azurite.create("examined")
    azurite.put("examined", {"a/b": bytes(50_000)})
    doctor.env |= azurite.env()
    found = doctor.examine("az://examined", endpoint_url=azurite.url)
    assert states(found, *checks) == ["ok"] * 5, found
    assert found["credentials"]["text"].startswith("from the account's key")
    assert azurite.env()["AZURE_STORAGE_KEY"] not in str(doctor.document)
    doctor.env["AZURE_STORAGE_KEY"] = "d3Jvbmc="
    found = doctor.examine("az://examined", endpoint_url=azurite.url)
    assert states(found, "listing") == ["FAIL"] and "correct the credentials" in found["listing"]["remedy"]
