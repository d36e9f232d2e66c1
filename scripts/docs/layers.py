"""Draw the layers of the package from its import contract: ``python scripts/docs/layers.py``.

The picture goes to standard output; a test compares it with that in ``docs/architecture.md``.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def picture() -> str:
    """The layers from top to bottom, as a Mermaid diagram."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    boxes = [
        f'    l{number}["{" · ".join(re.split(" [|:] ", layer))}"]'
        for number, layer in enumerate(contract["layers"], 1)
    ]
    arrows = " --> ".join(f"l{number}" for number in range(1, len(boxes) + 1))
    return "\n".join(["```mermaid", "flowchart TD", *boxes, f"    {arrows}", "```"])


if __name__ == "__main__":
    sys.stdout.write(picture() + "\n")
