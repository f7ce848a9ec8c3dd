"""No secret ever shows: they are planted, all that can fail is made to, and then all is searched for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpufs.control.paths import runtime_dir
from tests.faults.data import check, content, errno_of_read
from tests.mounts import Mounted, MountFactory
from tests.servers import Fault, FaultProxy, S3Endpoint

Bucket = Callable[[S3Endpoint], str]
ProxyFactory = Callable[[S3Endpoint], FaultProxy]

PLANTED = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDKEYID0000",
    "AWS_SECRET_ACCESS_KEY": "plantedSecret/Key+0000000000000000000000",
    "AWS_SESSION_TOKEN": "plantedSessionToken0000000000000000000000",
}
PASSWORD, SIGNATURE, ACCOUNT_KEY = "plantedPassword00", "plantedSig%2F00", "cGxhbnRlZEFjY291bnRLZXk="
SECRETS = [*PLANTED.values(), PASSWORD, SIGNATURE, ACCOUNT_KEY, "AWS4-HMAC-SHA256 Credential=AKIA"]
MIB = 1 << 20


def searched(mounted: Mounted, *more: str) -> str:
    """All that others may see, or that outlasts us: log, status, arguments, mount table, our files."""
    texts = [mounted.log(), Path("/proc/self/mountinfo").read_text(errors="replace"), *more]
    status = mounted.command("status", str(mounted.path))
    texts += [status.stdout, status.stderr, mounted.command("metrics", str(mounted.path)).stdout]
    if status.returncode == 0:
        document = mounted.status()
        texts.append(json.dumps(document))
        for pid in document["pids"]:
            texts.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
            limits = Path(f"/proc/{pid}/limits").read_text()
            if pid != document["supervisor"]:  # which is told no secrets but those of its environment
                assert [line.split()[4:6] for line in limits.splitlines() if "core file" in line] == [
                    ["0", "0"]
                ]
    for root in (mounted.cache, Path(runtime_dir(os.geteuid())), Path("/run/gpufs-hints")):
        texts += [path.read_bytes().decode("latin-1") for path in root.rglob("*") if path.is_file()]
    return "\n".join(texts)


def assert_no_secret(text: str) -> None:
    found = [secret for secret in SECRETS if secret in text]
    assert not found, [line for line in text.splitlines() if any(secret in line for secret in found)][:3]


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_of_s3_do_not_show(
    moto: S3Endpoint, bucket: Bucket, proxy: ProxyFactory, mount: MountFactory, form: str
) -> None:
    """Every kind of failure, from a server that repeats in its message what it was sent, headers and all."""
    name = bucket(moto)
    codes = ["AccessDenied", "ExpiredToken", "SignatureDoesNotMatch", "PermanentRedirect", "Teapot"]
    objects = {
        f"{code}/{n}": content(f"{code}{n}", size) for code in codes for n, size in ((0, 500), (1, 5 * MIB))
    }
    objects |= {f"busy/{n}": content(f"busy{n}", 5 * MIB * n + 9) for n in range(2)}
    objects |= {f"reset/{n}": content(f"reset{n}", 5 * MIB * n + 9) for n in range(2)}
    moto.put(name, objects)
    between = proxy(moto)
    mounted = mount(
        f"s3://{name}",
        replace(moto, url=between.url),
        start=False,
        log_level="debug",
        log_format=form,
        metadata_ttl="1s",
    )
    mounted.env |= PLANTED
    mounted.mount().crawled()
    for code in codes:
        between.add(Fault("status", None, f"{code}/", status=403, code=code, echo=True))
    between.add(Fault("status", "GET", "busy/", times=6, status=503, code="SlowDown", echo=True))
    between.add(Fault("reset", "GET", "reset/", times=6))
    for path in objects:
        if path.split("/")[0] in codes:
            assert errno_of_read(mounted.path / path)
        else:
            check(mounted.path / path, objects[path])
    between.add(Fault("status", None, status=403, code="ExpiredToken", echo=True))
    assert mounted.command("refresh", str(mounted.path)).returncode == 1
    shown = searched(mounted, mounted.command("refresh", str(mounted.path)).stderr)
    assert_no_secret(shown)
    assert shown.count("request id FAULT1") > 5 and ("level=DEBUG" in shown or '"DEBUG"' in shown)
    assert "***" in shown, "the server did repeat them"


@pytest.mark.parametrize("fast_path", ["auto"])
def test_a_mount_that_fails_does_not_show_them(
    moto: S3Endpoint, bucket: Bucket, proxy: ProxyFactory, mount: MountFactory
) -> None:
    name = bucket(moto)
    moto.put(name, {"a": b"a"})
    between = proxy(moto)
    between.add(Fault("status", None, status=403, code="SignatureDoesNotMatch", echo=True))
    mounted = mount(f"s3://{name}", replace(moto, url=between.url), start=False, log_level="debug")
    mounted.env |= PLANTED
    mounted.may_log_errors = True
    failed = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
    assert failed.returncode == 1 and "SignatureDoesNotMatch" in failed.stderr
    assert_no_secret(searched(mounted, failed.stderr, failed.stdout))


@pytest.mark.parametrize("fast_path", ["auto"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http"])
def test_the_password_of_a_proxy_and_keys_of_other_clouds_do_not_show(
    mount: MountFactory, proxy: ProxyFactory, moto: S3Endpoint, tmp_path: Path, scheme: str
) -> None:
    """Behind a proxy that answers 403 and repeats all, and behind one that is not there."""
    between = proxy(moto)
    (tmp_path / ".netrc").write_text(f"machine data.example login me password {PASSWORD}\n")
    (tmp_path / ".netrc").chmod(0o600)
    between.add(Fault("status", None, status=403, code="AccessDenied", echo=True))
    source = {"http": "http://data.example/x/"}.get(scheme, f"{scheme}://bucket")
    mounted = mount(source, start=False, log_level="debug")
    mounted.may_log_errors = True
    if scheme != "http":
        mounted.options["endpoint_url"] = "http://data.example"
    if scheme == "gs":
        mounted.options["anonymous"] = "true"
    mounted.env |= PLANTED | {
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
        "AZURE_STORAGE_ACCOUNT": "account",
        "AZURE_STORAGE_SAS_TOKEN": f"sv=2021-12-02&sig={SIGNATURE}",
    }
    proxy_host = between.url.removeprefix("http://")
    said = ""
    for _ in range(2):
        for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
            mounted.env[variable] = f"http://me:{PASSWORD}@{proxy_host}"
        failed = mounted.command("mount", source, str(mounted.path), "-o", mounted.option_text())
        assert failed.returncode == 1, "nothing is there"
        said += failed.stderr
        between.refuse()
    if scheme == "az":
        mounted.env["AZURE_STORAGE_KEY"] = ACCOUNT_KEY
        said += mounted.command("mount", source, str(mounted.path), "-o", mounted.option_text()).stderr
    assert "403" in said and "connect" in said, said
    assert_no_secret(searched(mounted, said))
