"""One data set on SeaweedFS for all fault tests that only read it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.faults.data import large_files, small_files
from tests.servers import S3Endpoint


@dataclass(frozen=True, slots=True)
class Dataset:
    url: str
    objects: dict[str, bytes]
    server: S3Endpoint

    @property
    def size(self) -> int:
        return sum(map(len, self.objects.values()))


@pytest.fixture(scope="session")
def dataset(weed: S3Endpoint) -> Iterator[Dataset]:
    """About 45 MB: 64 small files in 8 directories, and 3 files of several chunks."""
    bucket = f"faults-{os.getpid()}"
    weed.client().create_bucket(Bucket=bucket)
    objects = small_files(64) | large_files(3)
    weed.put(bucket, objects)
    yield Dataset(f"s3://{bucket}", objects, weed)
    weed.empty_and_delete(bucket)
