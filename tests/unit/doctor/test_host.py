"""`gpufs doctor`: what it says of a host that lacks something, each time with a remedy."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from gpufs.doctor import host
from gpufs.doctor.finding import Finding, fail, line_of, ok, summary, warn


def assert_is(finding: Finding, state: str, *says: str) -> None:
    assert finding.state == state, finding
    assert all(word in f"{finding.text} {finding.remedy}" for word in says), finding
    assert bool(finding.remedy) == (state != "ok")


@pytest.mark.parametrize(
    "release, state",
    [("6.9.0", "ok"), ("6.18.44-x", "ok"), ("7.0", "ok"), ("6.8.12", "warn"), ("5.15.0-91-generic", "warn"),
     ("4.18.0-553.el8", "FAIL"), ("nonsense", "FAIL")],
)  # fmt: skip
def test_old_kernels(release: str, state: str) -> None:
    assert_is(host.kernel(release), state, release)


def test_a_missing_device(tmp_path: Path) -> None:
    assert_is(
        host.device(str(tmp_path / "fuse")), "FAIL", "is missing", "modprobe fuse", "--device /dev/fuse"
    )


def test_a_device_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "fuse").mkdir()
    assert_is(host.device(str(tmp_path / "fuse")), "FAIL", "Is a directory")
    assert_is(host.device("/dev/null"), "ok")


def test_fusermount3_is_for_users(tmp_path: Path) -> None:
    assert_is(host.fusermount(1000, str(tmp_path)), "FAIL", "fuse3")
    assert_is(host.fusermount(0, str(tmp_path)), "warn", "fuse3")
    (tmp_path / "fusermount3").touch(0o755)
    assert_is(host.fusermount(1000, str(tmp_path)), "ok", str(tmp_path))


def test_sharing_as_a_user(tmp_path: Path) -> None:
    configuration = tmp_path / "fuse.conf"
    assert_is(host.sharing(1000, True, str(configuration)), "FAIL", "user_allow_other")
    assert_is(host.sharing(1000, False, str(configuration)), "ok")
    assert_is(host.sharing(0, True, str(configuration)), "ok")
    configuration.write_text("#user_allow_other\n")
    assert_is(host.sharing(1000, True, str(configuration)), "FAIL")
    configuration.write_text("user_allow_other\n")
    assert_is(host.sharing(1000, True, str(configuration)), "ok")


def test_the_largest_read(tmp_path: Path) -> None:
    limit = tmp_path / "max_pages_limit"
    assert_is(host.read_size(limit), "ok", "not limited")
    limit.write_text("32\n")
    assert_is(host.read_size(limit), "warn", "128 KiB", "sysctl -w fs.fuse.max_pages_limit=256")
    limit.write_text("256\n")
    assert_is(host.read_size(limit), "ok")


def test_few_descriptors() -> None:
    assert_is(host.open_files(1024), "warn", "1,024", "LimitNOFILE=")
    assert_is(host.open_files(1 << 20), "ok")
    assert_is(host.open_files(resource.RLIM_INFINITY), "ok", "no limit")


def test_little_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert_is(host.memory(meminfo), "warn", "mount /proc")
    meminfo.write_text("MemTotal: 99999999 kB\nMemAvailable:     500000 kB\n")
    assert_is(host.memory(meminfo), "warn", "0.5 GiB")
    meminfo.write_text("MemAvailable:   50000000 kB\n")
    assert_is(host.memory(meminfo), "ok")


def test_this_host_is_looked_at_as_it_is() -> None:
    """None of the checks needs more than what is there."""
    for finding in (host.kernel(os.uname().release), host.read_size(), host.open_files(), host.memory()):
        assert finding.state in ("ok", "warn")


def test_the_table_is_aligned_and_says_the_state_in_words() -> None:
    lines = "\n".join(
        line_of(f, 8) for f in (ok("one", "well"), fail("longer", "bad", "do this"))
    ).splitlines()
    assert lines == [
        "  ok    one       well",
        "  FAIL  longer    bad",
        "                  -> do this",
    ]
    assert summary([ok("a", "")]) == "all is well"
    assert (
        summary([ok("a", ""), warn("b", "", "x"), fail("c", "", "x")])
        == "1 failed, 1 to be looked at, 1 well"
    )
