"""The log: one line per event, in two forms, never too many of them, and no secret in any."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gpufs.logs import LINES, WINDOW, LimitedHandler, LineFormatter, message_of
from gpufs.redaction import redacted


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lab:
    """A logger that writes to a string."""

    def __init__(self, *, json_form: bool = False, journal: bool = False) -> None:
        self.stream, self.clock = io.StringIO(), Clock()
        self.handler = LimitedHandler(self.stream, self.clock)
        self.handler.setFormatter(LineFormatter(json_form=json_form, journal=journal))
        self.log = logging.Logger("gpufs.some", logging.DEBUG)
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.handler.close()


def test_text_is_one_line_of_key_and_value(lab: Lab) -> None:
    lab.log.warning("cannot read %s", 'a "file"\nof\x1b two lines')
    lab.log.info("unmounted")
    first, second = lab.lines
    assert first.split(" logger=")[0].endswith("Z level=WARNING")
    assert first.endswith(' msg="cannot read a \\"file\\"\\nof\\u001b two lines"')
    assert second.endswith(f"logger=gpufs.some pid={os.getpid()} msg=unmounted")


def test_json_is_one_object_per_line() -> None:
    lab = Lab(json_form=True)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        lab.log.exception("it failed: %s", "\udcff😀\u2028")
    (line,) = lab.lines
    document = json.loads(line)
    assert document["level"] == "ERROR" and document["msg"] == "it failed: \udcff😀\u2028"
    assert "\u2028" not in line and "two\nlines" in document["trace"]
    assert message_of(line) == document["msg"]


@pytest.mark.parametrize("message", ["plain", "with words", 'a "quote" \\', "a=b", ""])
def test_the_message_can_be_read_back(lab: Lab, message: str) -> None:
    lab.log.error("%s", message)
    assert message_of(lab.lines[0]) == message


def test_the_message_of_older_versions_can_be_read() -> None:
    assert (
        message_of("time=2026-11-30 10:00:00,000 level=INFO logger=x msg=as it is: here") == "as it is: here"
    )


def test_the_journal_gets_priorities_and_no_times() -> None:
    """sd-daemon(3): <2> to <7>; it has the time itself."""
    lab = Lab(journal=True)
    for level in (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG):
        lab.log.log(level, "x")
    assert [line[:3] for line in lab.lines] == ["<2>", "<3>", "<4>", "<6>", "<7>"]
    assert all("time=" not in line for line in lab.lines)


def test_the_journal_is_known_by_its_stream() -> None:
    """Priorities appear only where JOURNAL_STREAM names what stderr is, not where it was inherited."""
    code = (
        "import os, logging\n"
        "found = os.fstat(2)\n"
        "os.environ['JOURNAL_STREAM'] = f'{found.st_dev}:{found.st_ino + OFF}'\n"
        "from gpufs.logs import setup_logging\n"
        "setup_logging('info', 'text')\n"
        "logging.getLogger('gpufs.x').warning('hello')"
    )
    for off, begins in ((0, "<4>level=WARNING "), (1, "time=")):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("OFF", str(off))], capture_output=True, text=True, check=True
        )
        assert done.stderr.startswith(begins)


def test_the_words_of_libraries_below_warnings_are_left_out() -> None:
    """Debugging gpufs does not make botocore print its headers."""
    code = (
        "import logging\n"
        "from gpufs.logs import setup_logging\n"
        "setup_logging('debug', 'text')\n"
        "logging.getLogger('botocore.auth').debug('headers')\n"
        "logging.getLogger('gpufs.x').debug('ours')\n"
        "logging.getLogger('urllib3').warning('broken')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [message_of(line) for line in done.stderr.splitlines()] == ["ours", "broken"]


def test_a_flood_is_cut_and_counted(lab: Lab) -> None:
    for number in range(1000):
        lab.log.warning("cannot read %s", number)
    lab.log.warning("another event")
    assert len(lab.lines) == LINES + 1
    lab.clock.now += WINDOW
    lab.log.warning("cannot read %s", "again")
    assert message_of(lab.lines[LINES + 1]) == f"{1000 - LINES} more like this in 60 s: cannot read 999"
    assert message_of(lab.lines[LINES + 2]) == "cannot read again"


def test_errors_of_another_kind_are_another_event(lab: Lab) -> None:
    """A flood of timeouts does not hide the one refusal."""
    for _ in range(100):
        lab.log.warning("read: %s", TimeoutError("silence"))
    lab.log.warning("read: %s", PermissionError("refused"))
    assert "refused" in lab.lines[-1]


def test_what_was_left_out_is_told_though_nothing_follows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []
    monkeypatch.setattr(threading.Timer, "start", lambda self: timers.append(self))
    for number in range(LINES + 5):
        lab.log.info("event %d", number)
    assert [timer.interval for timer in timers] == [WINDOW]
    lab.clock.now += WINDOW
    timers[0].function()
    assert message_of(lab.lines[-1]) == f"5 more like this in 60 s: event {LINES + 4}"


def test_what_was_left_out_is_told_at_the_end(lab: Lab) -> None:
    for number in range(LINES + 2):
        lab.log.info("event %d", number)
    lab.clock.now += 7
    lab.handler.close()
    assert message_of(lab.lines[-1]).startswith("2 more like this in 7 s: ")


def test_debugging_is_not_cut(lab: Lab) -> None:
    for number in range(100):
        lab.log.debug("step %d", number)
    assert len(lab.lines) == 100


@pytest.mark.parametrize(
    "text",
    [
        "https://host/x?X-Amz-Algorithm=AWS4&X-Amz-Signature=PLANTED&x=1",
        "https://host/x?X-Amz-Credential=PLANTED%2F2026&X-Amz-Security-Token=PLANTED",
        "https://storage.googleapis.com/b?X-Goog-Signature=PLANTED",
        "https://a.blob.core.windows.net/c/b?sv=2021&sig=PLANTED",
        "cannot connect to proxy http://user:PLANTED@proxy:3128",
        "http://user:PLA@NTED@proxy:3128/",
        "{'Authorization': 'AWS4-HMAC-SHA256 Credential=PLANTED/x, Signature=PLANTED'}",
        "Authorization: Bearer PLANTED",
        "Proxy-Authorization: Basic PLANTED",
        "{'X-Amz-Security-Token': 'PLANTED'}",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=PLANTED;EndpointSuffix=y",
        "POST /token grant_type=x&client_secret=PLANTED",
    ],
)
def test_secrets_of_known_forms_are_hidden(lab: Lab, text: str) -> None:
    lab.log.error("failed: %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        lab.log.exception("failed")
    shown = lab.stream.getvalue() + redacted(text)
    assert "PLANTED" not in shown and "NTED" not in shown and "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a@b/c: the server answered 403 AccessDenied (request id 4442587FB7D0A2F9)",
        "abfss://container@account.dfs.core.windows.net/x",
        "sftp://me@host:22/x is not there",
        "cannot connect to 127.0.0.1:9000; check endpoint_url",
        "the code: 12, the key = a/b",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert redacted(text) == text
