"""The labs the suite runs in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conformance.labs import FileLab, Lab, NfsLab, S3Lab
from tests.conformance.other_labs import PLAIN_LABS
from tests.servers import NfsServer, S3Endpoint

S3_FLAT_LABS = ["s3-moto", "s3-moto-prefix"]
S3_LABS = ["s3-weed", *S3_FLAT_LABS]
FLAT_LABS = [*S3_FLAT_LABS, "gs", "az"]


@pytest.fixture
def make_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Lab]:
    """Servers start only for the labs that need them."""

    def make(name: str) -> Lab:
        if name == "file":
            return FileLab(tmp_path / "data")
        if name in PLAIN_LABS:
            return PLAIN_LABS[name](request, tmp_path)
        if name == "nfs":
            nfs: NfsServer = request.getfixturevalue("nfs")
            return NfsLab(Path(tempfile.mkdtemp(dir=nfs.root)) / "data", server=nfs)
        server: S3Endpoint = request.getfixturevalue("weed" if name == "s3-weed" else "moto")
        request.getfixturevalue("aws_env")(server)
        return S3Lab(
            server,
            bucket=request.getfixturevalue("bucket")(server),
            prefix="some/pre fix%20" if name.endswith("prefix") else "",
        )

    return make


@pytest.fixture(params=["file", "nfs", *S3_LABS, *PLAIN_LABS])
def lab(request: pytest.FixtureRequest, make_lab: Callable[[str], Lab]) -> Iterator[Lab]:
    with closing(make_lab(request.param)) as made:
        yield made


@pytest.fixture(params=S3_LABS)
def s3_lab(request: pytest.FixtureRequest, make_lab: Callable[[str], Lab]) -> Iterator[S3Lab]:
    with closing(make_lab(request.param)) as made:
        assert isinstance(made, S3Lab)
        yield made


@pytest.fixture(params=FLAT_LABS)
def flat_lab(request: pytest.FixtureRequest, make_lab: Callable[[str], Lab]) -> Iterator[Lab]:
    """Stores that keep any key, also those that no tree can have."""
    with closing(make_lab(request.param)) as made:
        yield made
