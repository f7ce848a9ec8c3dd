"""What a check found, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is its name, `text` what was found, `remedy` what to do about it (never "" unless ok)."""

    check: str
    state: State
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warn(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warn", text, remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "FAIL", text, remedy)


def line_of(finding: Finding, width: int) -> str:
    """One or two lines; names of checks have `width` columns."""
    line = f"  {finding.state:<4}  {finding.check:<{width}}  {finding.text}"
    return f"{line}\n{' ' * (width + 10)}-> {finding.remedy}" if finding.remedy else line


def summary(findings: Iterable[Finding]) -> str:
    states = [finding.state for finding in findings]
    failed, warned = states.count("FAIL"), states.count("warn")
    if not failed and not warned:
        return "all is well"
    return f"{failed} failed, {warned} to be looked at, {states.count('ok')} well"
