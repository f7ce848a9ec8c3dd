"""Reading, remounting, expiry, orphans, and who else uses the index."""

from __future__ import annotations

import resource
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufs.errors import IndexUnwritable, NotADirectory, NotFound
from gpufs.index.index import Index
from gpufs.index.records import ROOT, Change, Listed, Totals, digest_of
from gpufs.source.base import Entry, Hidden, Kind, Page
from tests.unit.index.helpers import SOURCE, at, check_invariants, directory, file, fill, names, opened


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with opened(tmp_path / "index") as index:
        yield index
        check_invariants(index)


def test_a_new_index_has_an_unlisted_root_and_is_private(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "index") as index:
        root = index.get(ROOT)
        assert root is not None and root.kind is Kind.DIRECTORY and root.mtime_ns > 0
        assert index.resolve(b"") == root
        assert index.listed(ROOT) is None
        assert index.totals() == Totals(0, 0, 0, 0)
        assert stat.S_IMODE((tmp_path / "a" / "index").stat().st_mode) == 0o700


def test_a_listed_tree_answers_every_kind_of_question(index: Index) -> None:
    started = time.time_ns()
    fill(index, "", [directory("d"), file("f", "1234")], started_ns=started)
    link = Entry(b"l", Kind.SYMLINK, 4, 7, mode=0o777, uid=1, gid=2, target=b"../f")
    fill(index, "d", [file("g", "12"), link])
    inode = at(index, "d/g")
    assert index.get(inode.number) == inode
    assert index.lookup(inode.parent, b"g") == inode
    assert index.lookup(inode.parent, b"nothing") is None
    assert index.lookup(inode.parent, b"x" * 600) is None
    assert index.resolve(b"d/nothing/g") is None
    assert index.resolve(b"d/" + b"x" * 600) is None
    assert index.path(inode.number) == b"d/g"
    assert index.path(ROOT) == b""
    assert inode.digest == digest_of(SOURCE, b"d/g", inode.version, 2)
    found = at(index, "d/l")
    assert (found.kind, found.target, found.mode, found.uid, found.gid) == (
        Kind.SYMLINK, b"../f", 0o777, 1, 2,
    )  # fmt: skip
    assert index.listed(ROOT) == Listed(started, True)
    assert index.totals() == Totals(3, 1, 6, 0)
    assert index.get(999) is None
    with pytest.raises(NotFound):
        index.path(999)


def test_children_come_in_order_and_resume_behind_a_name(index: Index) -> None:
    everything = [*sorted(f"{n:03}" for n in range(100)), "a", "a b", "aa"]
    fill(index, "", [file(name) for name in everything[50:]], [file(name) for name in everything[:50]])
    found: list[bytes] = []
    while page := index.children(ROOT, found[-1] if found else None, 7):
        assert len(page) <= 7
        found += [inode.name for inode in page]
    assert found == sorted(name.encode() for name in everything)
    # The name itself may have gone meanwhile.
    assert [inode.name for inode in index.children(ROOT, b"0985", 1)] == [b"099"]


def test_children_of_one_directory_never_spill_into_the_next(index: Index) -> None:
    fill(index, "", [directory("a"), directory("b")])
    fill(index, "a", [])
    fill(index, "b", [file("x")])
    assert names(index, "a") == []


def test_a_remount_finds_everything_and_gives_new_numbers(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, "", [file("a", "1"), directory("d")])
        before = [at(index, path) for path in ("", "a", "d")]
        listed = index.listed(ROOT)
    with opened(tmp_path) as index:
        assert [at(index, path) for path in ("", "a", "d")] == before
        assert index.listed(ROOT) == listed
        fill(index, "d", [file("new")])
        assert at(index, "d/new").number > max(inode.number for inode in before)
        check_invariants(index)


def test_another_source_starts_afresh(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as index:
        fill(index, "", [file("a")])
    with opened(tmp_path, "s3://other") as index:
        assert index.totals().files == 0
    assert "of another source or version" in caplog.text


def test_an_expired_directory_keeps_its_children_until_listed_again(index: Index) -> None:
    fill(index, "", [file("a")])
    index.expire(ROOT)
    assert index.listed(ROOT) == Listed(0, True)
    assert names(index) == ["a"]
    started = time.time_ns()
    fill(index, "", [file("a")], started_ns=started)
    assert index.listed(ROOT) == Listed(started, True)


def test_a_listing_under_way_does_not_undo_an_expiry(index: Index) -> None:
    fill(index, "", [file("a")])
    started = time.time_ns()
    index.expire(ROOT)
    fill(index, "", [file("b")], started_ns=started)
    assert names(index) == ["b"]
    assert index.listed(ROOT) == Listed(0, True)


def test_expiring_what_was_never_listed_does_nothing(index: Index) -> None:
    index.expire(ROOT)
    index.expire(12345)
    assert index.listed(ROOT) is None
    assert index.listed(12345) is None


def test_a_clock_set_back_does_not_freeze_the_tree(index: Index) -> None:
    fill(index, "", [file("a")], started_ns=time.time_ns() + 10**15)
    assert index.listed(ROOT) == Listed(0, True)
    fill(index, "", [file("b")])
    assert names(index) == ["b"]


def test_orphans_stay_readable_until_they_are_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, "", [file("a", "old"), directory("d")])
        fill(index, "d", [file(f"{n}") for n in range(5000)])
        old = at(index, "a")
        below = at(index, "d/7")
        fill(index, "", [file("a", "new")])
    with opened(tmp_path) as index:
        assert index.get(old.number) == old
        assert index.path(below.number) == b"d/7"
        check_invariants(index)
        fill(index, "", [])
        fill(index, "", [file("a", "new")])
        assert index.drop_orphans() == 5002, "and not the one that was left since"
        assert index.drop_orphans() == 0
        assert index.get(old.number) is None
        assert names(index) == ["a"]
        check_invariants(index)


def test_begin_refuses_what_is_not_a_directory_of_the_tree(index: Index) -> None:
    fill(index, "", [file("f"), directory("d")])
    f, d = at(index, "f").number, at(index, "d").number
    fill(index, "", [file("f")])
    with index.write() as writer:
        with pytest.raises(NotADirectory):
            writer.begin(f, 1)
        with pytest.raises(NotFound):
            writer.begin(d, 1)
        with pytest.raises(NotFound):
            writer.begin(999, 1)


def test_a_transaction_resolves_what_it_has_just_added(index: Index) -> None:
    with index.write() as writer:
        listing = writer.begin(ROOT, time.time_ns())
        writer.add(listing, Page(b"", [directory("d")], [], True))
        found = writer.resolve(b"d")
        assert writer.resolve(b"") == ROOT
        assert writer.resolve(b"d/nothing") is None
    assert found == at(index, "d").number


def test_a_finished_crawl_is_remembered_across_mounts(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        assert not index.crawled()
        with index.write() as writer:
            writer.mark_crawled()
    with opened(tmp_path) as index:
        assert index.crawled()


def test_a_failed_transaction_leaves_nothing_and_the_page_can_be_added_again(index: Index) -> None:
    with index.write() as writer:
        listing = writer.begin(ROOT, time.time_ns())
    page = Page(b"", [file("a", "1"), directory("x")], [Hidden(b"/", "empty name", 3)], False)
    clash = Page(b"", [file("x")], [], True)
    with pytest.raises(OSError, match="stop"), index.write() as writer:
        writer.add(listing, page)
        writer.add(listing, clash)
        raise OSError("stop")
    assert index.totals() == Totals(0, 0, 0, 0)
    assert not listing.seen and not listing.waiting
    with index.write() as writer:
        writer.add(listing, page)
        writer.finish(listing)
    assert index.totals() == Totals(1, 1, 1, 3)


def test_a_full_index_raises_and_keeps_what_it_had(index: Index) -> None:
    fill(index, "", [file("kept")])
    index._env.set_mapsize(1 << 18)
    with pytest.raises(IndexUnwritable, match="is the disk full"):
        fill(index, "", [file("kept"), *(file(f"{n:06}") for n in range(10_000))])
    assert names(index) == ["kept"]


def test_readers_and_writers_in_many_threads(index: Index) -> None:
    fill(index, "", [directory(f"d{n}") for n in range(4)])
    failures: list[BaseException] = []

    def guarded(work: object) -> None:
        try:
            assert callable(work)
            work()
        except BaseException as error:
            failures.append(error)

    def write(n: int) -> None:
        for count in range(1, 30):
            fill(index, f"d{n}", [file(f"{i}", str(count)) for i in range(count)])

    def read() -> None:
        for _ in range(300):
            for child in index.children(ROOT, None, 10):
                for inode in index.children(child.number, None, 50):
                    assert index.get(inode.number) == inode
            index.totals()

    threads = [threading.Thread(target=guarded, args=(lambda n=n: write(n),)) for n in range(4)]
    threads += [threading.Thread(target=guarded, args=(read,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert index.totals().files == 4 * 29


_OTHER_MOUNT = """
import sys, time
from pathlib import Path
from gpufs.index.index import Index
from tests.unit.index.helpers import SOURCE, file, fill
index = Index(Path(sys.argv[1]), SOURCE)
fill(index, "", [file("from the other mount", "abc")])
print("filled", flush=True)
sys.stdin.readline()
index.close()
"""


def _drop_elsewhere(folder: Path) -> int:
    """drop_orphans() of a process that opens the index now."""
    code = (
        "import sys; from pathlib import Path; from gpufs.index.index import Index; "
        f"index = Index(Path(sys.argv[1]), {SOURCE!r}); print(index.drop_orphans()); index.close()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, check=True)
    return int(done.stdout)


def test_two_mounts_share_an_index_and_orphans_stay_while_both_are_there(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, "", [file("a", "old")])
        old = at(index, "a").number
        with subprocess.Popen(
            [sys.executable, "-c", _OTHER_MOUNT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == b"filled\n"
            assert names(index) == ["from the other mount"]
            fill(index, "", [file("b")])
            assert _drop_elsewhere(tmp_path) == 0
            assert index.get(old) is not None
            other.stdin.close()
        assert other.returncode == 0
        assert index.drop_orphans() == 0
        assert index.get(old) is not None, "its kernel may have it open"
    with opened(tmp_path) as index:
        assert index.drop_orphans() == 2
        check_invariants(index)


def test_changes_of_another_mount_can_be_told_to_the_kernel(tmp_path: Path) -> None:
    """Added, replaced, removed names; not those of a first listing, nor those below a removed directory."""
    with opened(tmp_path) as index:
        everything = [directory("d"), directory("e"), file("same"), file("gone"), file("other", "1")]
        fill(index, "", everything)
        fill(index, "d", [file("f")])
        assert index.changes_since(0) == []
        before = index.next_number()
    with opened(tmp_path) as index:
        assert index.opened_at == before
        fill(index, "e", [file(f"{n}") for n in range(100)])
        e = at(index, "e").number
        fill(index, "", [directory("e"), file("same"), file("other", "2"), file("new")])
        fill(index, "e", [file(f"{n}") for n in range(1, 101)])
        expected = {(ROOT, b"d"), (ROOT, b"gone"), (ROOT, b"other"), (ROOT, b"new"), (e, b"0"), (e, b"100")}
        assert set(index.changes_since(before)) == expected
        assert set(index.changes_since(0)) == expected
        now = index.next_number()
        fill(index, "", [directory("e"), file("same"), file("other", "2")])
        assert index.changes_since(now) == [Change(ROOT, b"new")]
        assert index.changes_since(index.next_number()) == []


def test_opening_twice_in_one_process_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, "", [file("a")])
        with pytest.raises(IndexUnwritable, match="already open"):
            Index(tmp_path, SOURCE)
        assert names(index) == ["a"]
    with opened(tmp_path) as index:
        assert names(index) == ["a"]


_LIMITED = f"""
import resource, sys
from pathlib import Path
from gpufs.index.index import Index
resource.setrlimit(resource.RLIMIT_AS, ({6 << 30}, {6 << 30}))
index = Index(Path(sys.argv[1]), "s3://bucket")
print(index._env.info()["map_size"] >> 30)
index.close()
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY, reason="limited already"
)
def test_a_limited_address_space_gets_a_smaller_map(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "4\n"


def test_prefault_reads_the_file_and_the_size_is_that_of_the_file(index: Index) -> None:
    fill(index, "", [file(f"{n:06}") for n in range(5000)])
    index.prefault()
    assert 400_000 < index.size_on_disk() < 2_000_000
