"""List the packages in the order of the import contract: ``python scripts/docs/layers.py``.

It writes the table of ``docs/architecture.md``, with the first line of each package's docstring; a
test compares them. ``pictures.py`` draws the same layers.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "queue_over_sql"

# The first module of each band, its title, and what it is.
BANDS = {
    "contrib": ("Guests", "interfaces, monitoring and Spark, built on public names and the door"),
    "inside": ("The door", "what guests may use of the core besides public names"),
    "aio": ("Service", "puts the parts together; the same for an event loop"),
    "dialects": ("Engines", "what each database does otherwise"),
    "roles": ("Features", "one capability each, whole: public class, rules, SQL"),
    "queue": ("A queue", "its verbs, and a folder for each idea behind them"),
    "statements": ("Database", "statements, connections, tables, the interface to engines"),
    "plots": ("Values", "what users meet, and pure values; nothing here knows a database"),
}


def layers() -> list[str]:
    """The layers from top to bottom, as the contract writes them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    written: list[str] = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return written


def bands() -> list[tuple[str, str, list[list[str]]]]:
    """Title, meaning and layers of each band; a layer is a list of modules.

    Raises:
        ValueError: a band begins with a module that begins no layer, or they are in another order.
    """
    found: list[tuple[str, str, list[list[str]]]] = []
    for layer in layers():
        modules = re.split(" [|:] ", layer)
        if modules[0] in BANDS:
            found.append((*BANDS[modules[0]], []))
        found[-1][2].append(modules)
    if [title for title, _, _ in found] != [title for title, _ in BANDS.values()]:
        msg = "BANDS does not fit the import contract"
        raise ValueError(msg)
    return found


def said_of(module: str) -> str:
    """The first line of a module's docstring."""
    file = PACKAGE / module / "__init__.py"
    if not file.exists():
        file = PACKAGE / f"{module}.py"
    line = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    return line.replace("``", "`").rstrip(".")


def place_of(module: str) -> str:
    """The path of a module inside the package."""
    return f"{module}/" if (PACKAGE / module).is_dir() else f"{module}.py"


def table() -> Iterator[str]:
    """The lines of the table of the architecture page."""
    yield "| band | where | what is there |"
    yield "|---|---|---|"
    for title, _, rows in bands():
        for number, module in enumerate(module for row in rows for module in row):
            yield f"| {'' if number else title} | `{place_of(module)}` | {said_of(module)} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
