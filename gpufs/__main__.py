"""`python -m gpufs`: the command line without an installed script."""

from __future__ import annotations

import sys

from gpufs.cli import main

if __name__ == "__main__":
    sys.exit(main())
