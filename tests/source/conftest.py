"""Fixtures of the S3 tests: sources on a server, with a retry policy that does not wait long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef
from gpufs.source.retry import Retry
from gpufs.source.s3 import S3Settings, S3Source
from tests.servers import S3Endpoint


@dataclass(frozen=True)
class Made:
    """A source and its counters."""

    source: S3Source
    metrics: Metrics

    def read(self, key: str, version: str, size: int, offset: int = 0, length: int | None = None) -> bytes:
        ref = ObjectRef(key.encode(), version, size)
        return bytes(self.source.read(ref, offset, size if length is None else length))


Make = Callable[..., Made]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make(url, bucket, prefix=b"", deadline=20.0, **settings)` makes a source; closed after the test."""
    sources: list[S3Source] = []

    def one(url: str, bucket: str, prefix: bytes = b"", deadline: float = 20.0, **settings: Any) -> Made:
        metrics = Metrics()
        settings = {"region": "us-east-1"} | settings
        source = S3Source(
            bucket,
            prefix,
            S3Settings(endpoint_url=url, **settings),
            # short waits: what is tested here is the failure, not the pause after it
            Retry(metrics, deadline=deadline, jitter=lambda: 0.1),
            metrics,
        )
        sources.append(source)
        return Made(source, metrics)

    yield one
    for source in sources:
        source.close()


@pytest.fixture(params=["weed", "moto"])
def server(request: pytest.FixtureRequest, aws_env: Callable[[S3Endpoint], None]) -> S3Endpoint:
    """Each of the S3 servers, with its credentials in the environment."""
    endpoint: S3Endpoint = request.getfixturevalue(request.param)
    aws_env(endpoint)
    return endpoint
