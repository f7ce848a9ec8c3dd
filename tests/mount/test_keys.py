"""Keys that make odd paths, no path at all, or two things of one name."""

from __future__ import annotations

import os
import subprocess
import unicodedata
from collections.abc import Callable

import pytest

from tests.mounts import Mounted, MountFactory
from tests.servers import BUCKET, S3Endpoint, listing_server

pytestmark = pytest.mark.fuse

Bucket = Callable[[S3Endpoint], str]


def test_a_file_and_a_directory_of_one_name(moto: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 3: `out` and `out/x` show as one directory; the file it hides is counted and named in `status`.

    However it is listed: by the crawl, one directory at a time, or by a refresh.
    """
    name = bucket(moto)
    # "out-2" sorts between "out" and "out/x".
    moto.put(name, {"out": b"the file", "out-2": b"between", "out/x": b"below", "p/q": b"1", "p/q/r": b"2"})
    mounted = mount(f"s3://{name}", moto)
    for again in ("as listed", "crawled", "refreshed", "remounted"):
        if again == "crawled":
            mounted.crawled()
        elif again == "refreshed":
            mounted.refresh()
        elif again == "remounted":
            mounted.remount()
        listed = subprocess.run(["ls", "-1", mounted.path], capture_output=True, text=True, check=True)
        assert (listed.stdout.split(), listed.stderr) == (["out", "out-2", "p"], ""), again
        assert (mounted.path / "out").is_dir(), again
        assert (mounted.path / "out/x").read_bytes() == b"below", again
        assert os.listdir(mounted.path / "p") == ["q"], again
        assert (mounted.path / "p/q/r").read_bytes() == b"2", again
        status = mounted.status()
        assert status["hidden_keys"] == 2, again
        assert [hidden["key"] for hidden in status["hidden"]] == ["out", "p/q"], again
        assert "same name" in status["hidden"][0]["reason"], again
    assert "'out', 'p/q'" in mounted.command("status", str(mounted.path)).stdout


def test_keys_that_no_path_can_name(moto: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 4: they are left out, counted and logged once; the listing of everything else is complete."""
    name = bucket(moto)
    unnamed = ["exp2//a/b", "exp2/./c", "exp2/../d", "/lead", "x" * 256]
    named = {"exp2/ok": b"fine", "exp2/sub/too": b"also", "zz": b"last"}
    moto.put(name, {key: b"lost" for key in unnamed} | named)
    mounted = mount(f"s3://{name}", moto)
    for _ in range(2):
        found = {
            os.path.relpath(os.path.join(where, each), mounted.path)
            for where, _, files in os.walk(mounted.path)
            for each in files
        }
        assert found == set(named)
        assert {key: (mounted.path / key).read_bytes() for key in named} == named
        mounted.crawled()
    status = mounted.status()
    assert (status["hidden_keys"], status["files"]) == (len(unnamed), len(named))
    reasons = {hidden["key"]: hidden["reason"] for hidden in status["hidden"]}
    assert set(reasons) == {"exp2//", "exp2/./", "exp2/../", "/", "x" * 256}
    assert "empty" in reasons["exp2//"] and '".."' in reasons["exp2/../"] and "255" in reasons["x" * 256]
    mounted.refresh()
    mounted.refresh("exp2")
    about = [line for line in mounted.log().splitlines() if "no path can name" in line]
    assert len(about) == 1, f"told once, not at every listing:\n{mounted.log()}"


STRANGE = [
    "folder#1#/x",
    "Hello World.jpg",
    "a+b",
    "%23",
    "pct%2Fenc",
    "q?x=1",
    "back\\slash",
    "a&b<c>\"'",
    "\N{BAR CHART}/\N{SNAKE}.bin",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "tilde~*",
    "new\nline",
    "tab\tand [brackets] {braces} |pipe| ^caret `tick`",
    "trailing space ",
    " leading",
    "semi;colon:at@equals=comma,dollar$!",
    "-dash",
    "..hidden",
    "d.../...",
]


# What a store itself cannot keep: SeaweedFS makes `/` of `\\`; moto answers 404 to a newline.
UNKEPT = {"weed": ["back\\slash"], "moto": ["new\nline"]}


def strange_objects(store: str) -> dict[str, bytes]:
    decomposed = unicodedata.normalize("NFD", "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
    keys = [*STRANGE, decomposed]
    return {key: f"bytes of {key}".encode() for key in keys if key not in UNKEPT.get(store, [])}


@pytest.mark.parametrize("store", ["weed", "moto"])
def test_exact_names_and_bytes(
    store: str, request: pytest.FixtureRequest, bucket: Bucket, mount: MountFactory
) -> None:
    """Case 5: every name is shown exactly as it is, and leads to its own bytes; NFC and NFD are two names."""
    server: S3Endpoint = request.getfixturevalue(store)
    name = bucket(server)
    objects = strange_objects(store)
    server.put(name, objects)
    check_exact(mount(f"s3://{name}", server), objects)


def test_exact_names_of_a_store_that_keeps_everything(mount: MountFactory) -> None:
    """Case 5, with a backslash and a newline and a name that is not UTF-8."""
    objects = strange_objects("") | {"not \udcff UTF-8": b"latin"}
    with listing_server({os.fsencode(key): body for key, body in objects.items()}) as (_, server):
        check_exact(mount(f"s3://{BUCKET}", server), objects)


def check_exact(mounted: Mounted, objects: dict[str, bytes]) -> None:
    """The tree has these files and no others; a wrong spelling leads nowhere."""
    found = {}
    for where, _, files in os.walk(os.fsencode(mounted.path)):
        for each in files:
            path = os.path.join(where, each)
            key = os.fsdecode(os.path.relpath(path, os.fsencode(mounted.path)))
            with open(path, "rb") as file:
                found[key] = file.read()
            assert os.fsdecode(os.getxattr(path, "user.gpufs.key")) == key
    assert found == objects
    for wrong in ("hello world.jpg", "#", "pct/enc", "q", "Hello+World.jpg", "Hello%20World.jpg", "a b"):
        assert not (mounted.path / wrong).exists(), "names differ in every byte"


def test_a_prefix_with_strange_characters(moto: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """Case 5: the source's prefix may hold such characters too, but not keys that merely start alike."""
    name = bucket(moto)
    moto.put(name, {"run #1 50%+/x": b"in", "run #1 50%+x": b"out", "run #1 50%+/d/y": b"deep"})
    for source in (f"s3://{name}/run #1 50%+", f"s3://{name}/run #1 50%+/"):
        mounted = mount(source, moto)
        assert sorted(os.listdir(mounted.path)) == ["d", "x"]
        assert (mounted.path / "x").read_bytes() + (mounted.path / "d/y").read_bytes() == b"indeep"
        assert os.getxattr(mounted.path / "d/y", "user.gpufs.key") == b"run #1 50%+/d/y"
        assert os.getxattr(mounted.path, "user.gpufs.key") == b"run #1 50%+/"
        mounted.umount()


def test_long_names_and_deep_paths(weed: S3Endpoint, bucket: Bucket, mount: MountFactory) -> None:
    """A name of 255 bytes and a path of 200 directories are read; a longer name is ENAMETOOLONG or ENOENT."""
    name = bucket(weed)
    longest = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 127 + "x"
    deep = "/".join(["d"] * 200) + "/leaf"
    weed.put(name, {longest: b"long", f"under/{longest}": b"long too", deep: b"leaf"})
    mounted = mount(f"s3://{name}", weed)
    assert (mounted.path / longest).read_bytes() == b"long"
    assert os.listdir(mounted.path / "under") == [longest]
    assert (mounted.path / deep).read_bytes() == b"leaf"
    assert os.getxattr(mounted.path / deep, "user.gpufs.key").decode() == deep
    with pytest.raises(OSError, match="File name too long"):
        os.stat(mounted.path / ("y" * 256))
    assert os.statvfs(mounted.path).f_namemax == 255


@pytest.mark.parametrize("store", ["weed", "moto"])
def test_nothing_at_all(
    store: str, request: pytest.FixtureRequest, bucket: Bucket, mount: MountFactory
) -> None:
    """Case 16: empty files, directory markers, an empty bucket; a prefix of nothing is a clear error."""
    server: S3Endpoint = request.getfixturevalue(store)
    name = bucket(server)
    empty = mount(f"s3://{name}", server)
    assert os.listdir(empty.path) == []
    assert empty.status()["files"] == 0
    assert os.statvfs(empty.path).f_blocks == 0

    server.put(name, {"zero": b"", "d/": b"", "d2/": b"", "d2/e/": b"", "d2/zero": b"", "prefix-x": b"1"})
    empty.refresh()
    assert sorted(os.listdir(empty.path)) == ["d", "d2", "prefix-x", "zero"]
    assert (os.listdir(empty.path / "d"), sorted(os.listdir(empty.path / "d2"))) == ([], ["e", "zero"])
    for each in ("zero", "d2/zero"):
        assert (empty.path / each).stat().st_size == 0
        assert (empty.path / each).read_bytes() == b""
    assert empty.status()["remote_bytes"] == 0

    for wrong in ("prefix", "zero", "d/x"):
        refused = mount(f"s3://{name}/{wrong}", server, start=False)
        refused.may_log_errors = True
        done = refused.command("mount", refused.source, str(refused.path), "-o", refused.option_text())
        assert done.returncode == 1
        assert f"s3://{name}/{wrong}" in done.stderr and "Traceback" not in done.stderr
        assert ("is an object" if wrong == "zero" else "names nothing") in done.stderr
        assert len(done.stderr.splitlines()) == 1
