"""The dashboard: its page is one whole, its figures are those of the mount, only its address opens it."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from gpufs.errors import GpufsError
from gpufs.observe.dashboard import KEPT, Recorder, answers
from gpufs.observe.figures import Figures, Process
from gpufs.observe.web import WebServer
from tests.unit.observe.helpers import figures

TOKEN = "not-to-be-guessed"
PAGE = files("gpufs.observe").joinpath("page.html").read_text()
VOID = {"meta", "link", "input", "br"}


class World:
    """A recorder that is asked to look by the test, behind a server."""

    def __init__(self) -> None:
        self.moment = 0
        self.error: GpufsError | None = None
        self.recorder = Recorder(self.ask, self.ask(), lambda: 1e9 + self.moment)
        self.server = WebServer("127.0.0.1", 0, answers(self.recorder, TOKEN))
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def ask(self) -> Figures:
        if self.error is not None:
            raise self.error
        self.moment += 1
        return figures(
            float(self.moment),
            counters={"opens": 10 * self.moment, "hits": 5 * self.moment},
            processes=[Process(7, "<b>evil</b>", float(self.moment), 0.0, 1, 1)],
            mountpoint="/d\udcff",
        )

    def get(self, path: str, **headers: str) -> tuple[str, dict[str, str]]:
        request = urllib.request.Request(self.server.address + path, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode(), dict(answer.headers)

    def status(self, path: str, **headers: str) -> int:
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.get(path, **headers)
        refused.value.close()
        return refused.value.code


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def test_the_points_come_once_and_all_else_as_it_is_now(world: World) -> None:
    for _ in range(3):
        world.recorder.look()
    document = json.loads(world.get(f"/{TOKEN}/figures/0")[0])
    assert [point["n"] for point in document["points"]] == [1, 2, 3]
    assert all(point["opens"] == 10 and point["hit_ratio"] == 0.5 for point in document["points"])
    assert document["points"][-1]["t"] == 1e9 + world.moment
    assert document["mountpoint"] == "/d\\xff" and document["error"] is None
    assert document["limit"]["what"] == "nothing"
    assert document["stalls"][0]["command"] == "<b>evil</b>" and document["stalls"][0]["now"] == 1.0
    world.recorder.look()
    later = json.loads(world.get(f"/{TOKEN}/figures/3")[0])
    assert [point["n"] for point in later["points"]] == [4]


def test_every_field_that_the_page_reads_of_a_point_is_there(world: World) -> None:
    world.recorder.look()
    (point,) = world.recorder.document(0)["points"]
    read = set(re.findall(r"\bp\.(\w+)", PAGE))
    assert len(read) > 20 and not read - point.keys()
    gauges = set(re.findall(r"\bg\.(\w+)", PAGE))
    assert gauges and not gauges - world.recorder.document(0)["gauges"].keys()


def test_only_ten_minutes_are_kept(world: World) -> None:
    for _ in range(KEPT + 5):
        world.recorder.look()
    points = world.recorder.document(0)["points"]
    assert len(points) == KEPT and points[0]["n"] == 6


def test_a_daemon_that_does_not_answer_is_told(world: World) -> None:
    world.error = GpufsError("it is starting")
    world.recorder.look()
    assert world.recorder.document(0)["error"] == "it is starting"
    world.error = None
    world.recorder.look()
    assert world.recorder.document(0)["error"] is None


@pytest.mark.parametrize(
    "path",
    ["/", "/guess/", "/guess/figures/0", f"/{TOKEN}/figures/x", f"/{TOKEN}/figures/", f"/{TOKEN}/../x"],
)
def test_nothing_else_is_there(world: World, path: str) -> None:
    assert world.status(path) == 404


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:80", "127.0.0.1.attacker.example", ""]
)
def test_who_comes_by_another_name_is_sent_away(world: World, host: str) -> None:
    """DNS rebinding: a page of somebody else's, whose name leads to loopback."""
    assert world.status(f"/{TOKEN}/", Host=host) == 421


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80"])
def test_the_names_of_loopback_are_good(world: World, host: str) -> None:
    assert "<title>" in world.get(f"/{TOKEN}/", Host=host)[0]


def test_the_page_runs_its_own_script_and_nothing_else(world: World) -> None:
    text, headers = world.get(f"/{TOKEN}/")
    policy = headers["Content-Security-Policy"]
    nonces = set(re.findall(r"nonce-([\w-]+)", policy))
    assert len(nonces) == 1 and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert set(re.findall(r'<(?:style|script) nonce="([\w-]+)">', text)) == nonces
    assert text.count("<script") == text.count("<style") == 1
    assert world.get(f"/{TOKEN}/")[0] != text, "a nonce is good for one answer"
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_needs_nothing_from_outside() -> None:
    addresses = set(re.findall(r"[a-z]+://[^\"'\s`]+", PAGE))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a namespace, which nobody asks for"
    assert not re.search(r"\bsrc=|url\(|@import|innerHTML|insertAdjacentHTML|document\.write|\beval\b", PAGE)
    assert not re.search(r"\sstyle=|\son\w+=", PAGE), "the policy would refuse it"


class _Checked(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("for", "aria-labelledby", "aria-describedby"):
                self.refers.append(str(value))
            if name == "href" and str(value).startswith("#"):
                self.refers.append(str(value)[1:])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_can_be_used_with_a_keyboard() -> None:
    checked = _Checked()
    checked.feed(PAGE)
    assert not checked.open and len(checked.ids) == len(set(checked.ids))
    assert not set(checked.refers) - set(checked.ids)
    assert not set(re.findall(r'\$\("([\w-]+)"\)', PAGE)) - set(checked.ids)
    assert PAGE.startswith("<!doctype html>") and '<html lang="en">' in PAGE
    assert "width=device-width" in PAGE and ":focus-visible" in PAGE and "prefers-color-scheme: dark" in PAGE
    assert PAGE.count('class="skip"') == 2 and "aria-live" in PAGE and "As a table" in PAGE
