"""The documentation says what is so: the options it lists, and the tests it names."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpufs.options import Options

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text()

ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", re.MULTILINE)
PROMISE = re.compile(r"^(\d+)\. ", re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def table() -> dict[str, tuple[str, str]]:
    """What the options table of the README says: name -> (form of the value, default)."""
    text = README.partition("\n## Options\n")[2].partition("\n## ")[0]
    return {name: (form.replace("\\|", "|"), default) for name, form, default in ROW.findall(text)}


def written(option: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The defaults of an option that the table must name, root's first."""
    kind, meaning = option.metadata["kind"], option.metadata["meaning"]
    if callable(option.default_factory):
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        found = []
        for uid in (0, 1000):
            monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
            found.append(kind.render(option.default_factory()).replace("/home/me", "~"))
        return [f"`{each}`" for each in found]
    if option.default is None:
        return [meaning.partition("default: ")[2] or "none"]
    return [f"`{kind.render(option.default)}`"]


def test_the_readme_lists_exactly_the_options_there_are() -> None:
    assert list(table()) == [option.name for option in fields(Options)]


@pytest.mark.parametrize("option", fields(Options), ids=lambda option: option.name)
def test_the_readme_gives_the_form_and_the_default_of_an_option(
    option: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, default = table()[option.name]
    assert form == option.metadata["kind"].form
    expected = written(option, monkeypatch)
    if len(expected) == 1:
        assert default == expected[0]
    else:
        root, other = expected
        assert default == f"{root} for root, {other} for others"


@cache
def named_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ) | frozenset(
        # hypothesis: TestModel = Machine.TestCase
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def test_every_test_that_is_named_exists() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED_TEST.findall(SEMANTICS)
        if not (ROOT / path).is_file() or name not in named_in(path)
    ]
    assert not missing


def test_every_promise_names_a_test_that_keeps_it() -> None:
    starts = list(PROMISE.finditer(SEMANTICS))
    assert [int(start[1]) for start in starts] == list(range(1, len(starts) + 1))
    ends = [start.start() for start in starts[1:]] + [len(SEMANTICS)]
    unkept = [
        start[1]
        for start, end in zip(starts, ends, strict=True)
        if not NAMED_TEST.search(SEMANTICS, start.end(), end)
    ]
    assert not unkept


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    where = (ROOT / document).parent
    broken = [link for link in LINK.findall((ROOT / document).read_text()) if not (where / link).exists()]
    assert not broken
