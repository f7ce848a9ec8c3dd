"""The form of the log, the same in every process of a mount: one line per event, none of it a secret."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from gpufs.redaction import redacted

LINES = 10  # of one kind of event, in each WINDOW; how many more there were is said at its end
WINDOW = 60.0  # seconds

# sd-daemon(3): what a line begins with, for the journal. Compared from the top.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def setup_logging(level: str, form: str) -> None:
    """Log to stderr; `form` is "text" (key=value) or "json". To the journal without a time, but with
    priorities. What libraries say below a warning is left out: it is theirs, and may hold headers."""
    journal = _is_journal(sys.stderr)
    handler = LimitedHandler(sys.stderr)
    handler.setFormatter(LineFormatter(json_form=form == "json", journal=journal))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("gpufs").setLevel(level.upper())


def message_of(line: str) -> str:
    """The message of a line of the log, in either form, or of one that an older version wrote."""
    if line.startswith("{"):
        return str(json.loads(line)["msg"])
    text = line.partition(" msg=")[2]
    return str(json.JSONDecoder().raw_decode(text)[0]) if text.startswith('"') else text


class LineFormatter(logging.Formatter):
    """One line per record, a traceback included."""

    def __init__(self, *, json_form: bool, journal: bool) -> None:
        super().__init__()
        self._json_form = json_form
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {} if self._journal else {"time": _time_text(record.created)}
        fields |= {"level": record.levelname, "logger": record.name, "pid": record.process}
        fields["msg"] = redacted(record.getMessage())
        if record.exc_info:
            fields["trace"] = redacted(self.formatException(record.exc_info))
        if self._json_form:
            line = _quoted(fields)
        else:
            line = " ".join(f"{name}={_value(str(value))}" for name, value in fields.items())
        return f"<{_priority(record.levelno)}>{line}" if self._journal else line


@dataclass(slots=True)
class _Window:
    """What came of one kind of event since `began`, of which some lines were not written."""

    began: float
    lines: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes at most LINES lines of one kind of event in a WINDOW, and then how many more there were.

    Of one kind is what the same call of the logger says about errors of the same classes. Debugging is
    not limited. Thread-safe, as every handler: the callers of emit() hold its lock.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._windows: dict[object, _Window] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        self._end_windows()
        window = self._windows.setdefault(_kind_of(record), _Window(self._clock()))
        if window.lines < LINES:
            window.lines += 1
            super().emit(record)
            return
        window.left_out += 1
        window.last = record
        if self._timer is None:
            self._timer = threading.Timer(window.began + WINDOW - self._clock(), self._look)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
            self._end_windows(at_once=True)
        finally:
            self.release()
        super().close()

    def _look(self) -> None:
        """In the timer's thread: say what was left out, in case nothing more is logged for long."""
        self.acquire()
        try:
            self._timer = None
            self._end_windows()
            waiting = [window.began for window in self._windows.values() if window.left_out]
            if waiting:
                self._timer = threading.Timer(min(waiting) + WINDOW - self._clock(), self._look)
                self._timer.daemon = True
                self._timer.start()
        finally:
            self.release()

    def _end_windows(self, *, at_once: bool = False) -> None:
        now = self._clock()
        for kind, window in list(self._windows.items()):
            if at_once or now >= window.began + WINDOW:
                del self._windows[kind]
                if window.last is not None:
                    super().emit(_summary(window.last, window.left_out, now - window.began))


def _summary(last: logging.LogRecord, count: int, seconds: float) -> logging.LogRecord:
    text = f"{count} more like this in {seconds:.0f} s: {last.getMessage()}"
    return logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)


def _kind_of(record: logging.LogRecord) -> object:
    arguments = record.args if isinstance(record.args, tuple) else ()
    errors = tuple(type(value) for value in arguments if isinstance(value, BaseException))
    return record.name, record.levelno, record.msg, errors


def _is_journal(stream: TextIO) -> bool:
    """systemd.exec(5), $JOURNAL_STREAM: device and inode of the stream that the journal reads."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)


def _time_text(seconds: float) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    milliseconds = int(seconds * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03d}Z"


def _value(text: str) -> str:
    """Bare where that cannot be misread, else as a JSON string."""
    bare = text and text.isprintable() and not any(c in text for c in ' "=\\')
    return text if bare else _quoted(text)


def _quoted(value: object) -> str:
    """As JSON, every character that would not show escaped, bytes that are no UTF-8 among them."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
