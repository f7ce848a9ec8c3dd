"""Processor time of the daemon per name for ls, ls -l, find and stat of 20,000 files in one directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.bench.lab import Dataset, daemon_cpu, fill_index, idle, prepared, served, table

FILES = 20_000
TIMES = 3


def run() -> None:
    dataset = Dataset(FILES, 1)
    walks: dict[str, Callable[[Path], object]] = {
        "ls -f": lambda path: _quiet("ls", "-f", path),
        "ls -l": lambda path: _quiet("ls", "-l", path),
        "find -type f": lambda path: _quiet("find", path, "-type", "f"),
        "find -size +1k (stat of each)": lambda path: _quiet("find", path, "-size", "+1k"),
        "stat of each, by name": lambda path: [os.stat(path / name) for name in names],
        "lookup of absent names": lambda path: [os.path.exists(path / f"{name}.x") for name in names],
    }
    names = [os.fsdecode(dataset.file(number)) for number in range(FILES)]
    rows = []
    with served(dataset) as endpoint, prepared(endpoint) as mounted:
        fill_index(mounted, dataset)
        for what, walk in walks.items():
            spent = []
            for _ in range(TIMES):
                mounted.mount()  # anew each time: the kernel knows no names
                before = idle(mounted)
                walk(mounted.path / os.fsdecode(dataset.directory(0)))
                spent.append(daemon_cpu(mounted) - before)
                mounted.umount()
            rows.append((what, f"{min(spent) / FILES * 1e6:.1f} us per name"))
    table(rows)


def _quiet(*command: str | Path) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
