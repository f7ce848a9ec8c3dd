"""Case 17: credentials that end while the tree is mounted, and come back."""

from __future__ import annotations

import errno
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.data import check, content, errno_of_read
from tests.mounts import MountFactory, wait_until
from tests.servers import S3Endpoint, moto_server

MIB = 1 << 20
EVERYTHING = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'


@dataclass(frozen=True, slots=True)
class Cloud:
    """A server that knows who may come in."""

    server: S3Endpoint
    iam: Any

    def new_key(self) -> tuple[str, str]:
        made = self.iam.create_access_key(UserName="reader")["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def end(self, key: str) -> None:
        self.iam.delete_access_key(UserName="reader", AccessKeyId=key)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    import boto3

    with moto_server(INITIAL_NO_AUTH_ACTION_COUNT="1000") as open_to_all:

        def iam(key: str, secret: str) -> Any:
            return boto3.client(
                "iam",
                endpoint_url=open_to_all.url,
                region_name="us-east-1",
                aws_access_key_id=key,
                aws_secret_access_key=secret,
            )

        anyone = iam("any", "any")
        for user in ("admin", "reader"):
            anyone.create_user(UserName=user)
            anyone.put_user_policy(UserName=user, PolicyName="all", PolicyDocument=EVERYTHING)
        admin = anyone.create_access_key(UserName="admin")["AccessKey"]
        # From here on keys and signatures are checked.
        reset = f"{open_to_all.url}/moto-api/reset-auth"
        with urllib.request.urlopen(urllib.request.Request(reset, b"0", {"Content-Type": "text/plain"})):
            pass
        key, secret = admin["AccessKeyId"], admin["SecretAccessKey"]
        yield Cloud(S3Endpoint(open_to_all.url, key, secret, "us-east-1", flat=True), iam(key, secret))


def test_credentials_that_end_and_come_back(cloud: Cloud, mount: MountFactory, tmp_path: Path) -> None:
    """EACCES and a clear line in the log while they are bad; a rotated profile file heals it, no remount.

    For small objects, chunks of large ones, and listings; what is cached reads on, what is listed is listed.
    """
    bucket = f"rotating-{os.getpid()}-{tmp_path.name}".lower().replace("_", "-")[:60].rstrip("-")
    client = cloud.server.client()
    client.create_bucket(Bucket=bucket)
    objects = {f"d/{n}": content(str(n), 1000) for n in range(5)} | {
        f"large/{n}": content(f"l{n}", 6 * MIB) for n in range(3)
    }
    cloud.server.put(bucket, objects)
    profile = tmp_path / "credentials"

    def rotate(key: str, secret: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(f"[train]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")
        fresh.replace(profile)

    key, secret = cloud.new_key()
    rotate(key, secret)
    mounted = mount(f"s3://{bucket}", cloud.server, start=False, profile="train", metadata_ttl="1s")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del mounted.env[name]
    mounted.env["AWS_SHARED_CREDENTIALS_FILE"] = str(profile)
    mounted.mount().crawled()
    for name in ("d/0", "large/0"):
        check(mounted.path / name, objects[name])

    cloud.end(key)
    for name in ("d/1", "large/1"):
        assert errno_of_read(mounted.path / name) == errno.EACCES
    names = [str(n) for n in range(5)]
    wait_until(
        lambda: sorted(os.listdir(mounted.path / "d")) == names and mounted.count("stale_served"),
        "an old listing",
    )
    check(mounted.path / "d/0", objects["d/0"])
    assert "credentials are refused" in mounted.status()["source_error"]
    log = mounted.log()
    assert "the source fails, only what is on this host can be read: s3://" in log
    assert "the credentials are refused: renew them (403 InvalidAccessKeyId" in log
    assert "the environment and profile have no others yet" in log

    rotate(*cloud.new_key())
    for name in ("d/2", "large/2"):
        wait_until(lambda n=name: errno_of_read(mounted.path / n) == 0, f"{name} to be readable", 15)
        check(mounted.path / name, objects[name])
    cloud.server.put(bucket, {"d/new": b"new"})
    wait_until(lambda: (mounted.path / "d/new").exists(), "a renewed listing", 30)
    assert (mounted.path / "d/new").read_bytes() == b"new"
    assert mounted.status()["source_error"] is None
    log = mounted.log()
    assert "new ones are in use now" in log and "the source answers again" in log
    assert secret not in log
    cloud.server.empty_and_delete(bucket)
