"""The Python of the documentation, to be run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def documented(document: str) -> dict[str, Any]:
    """What the Python of a document defines, by name."""
    names: dict[str, Any] = {}
    text = (DOCS / document).read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, names)
    return names
