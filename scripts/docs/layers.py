"""List the layers of the package from its import contract: ``python scripts/docs/layers.py``.

It writes to standard output; a test compares it with the list in ``docs/architecture.md``.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def layers() -> str:
    """The layers from top to bottom, as a numbered list."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return "\n".join(
        f"{number}. {', '.join(f'`{name}`' for name in re.split(' [|:] ', layer))}"
        for number, layer in enumerate(contract["layers"], 1)
    )


if __name__ == "__main__":
    sys.stdout.write(layers() + "\n")
