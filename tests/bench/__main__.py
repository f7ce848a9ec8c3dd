"""`python -m tests.bench [--only NAME ...]`, or `make bench`: runs the measurements and prints tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tests.bench import (
    cache,
    compress,
    crawl,
    fastpath,
    index,
    inventory,
    memory,
    names,
    nfs,
    pages,
    policy,
    prefetch,
    scheduler,
    shared,
    startup,
    warm,
)

MODULES = (
    index,
    inventory,
    cache,
    names,
    fastpath,
    crawl,
    inventory,
    memory,
    pages,
    startup,
    warm,
    compress,
    policy,
    prefetch,
    scheduler,
    nfs,
    shared,
)


def main() -> None:
    named = {module.__name__.rpartition(".")[2]: module for module in MODULES}
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure this checkout. Processor times are steadier than seconds on a busy machine.",
        epilog="measurements:\n" + "".join(f"  {n:<10}{_title(m.__doc__)}\n" for n, m in named.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=named, metavar="NAME", help="some of those below")
    for name in parser.parse_args().only or named:
        print(f"{name}: {_title(named[name].__doc__)}", flush=True)
        run: Callable[[], None] = named[name].run
        begin = time.monotonic()
        run()
        print(f"  ({time.monotonic() - begin:.0f} s)\n", flush=True)


def _title(docstring: str | None) -> str:
    return (docstring or "").strip().splitlines()[0]


if __name__ == "__main__":
    main()
