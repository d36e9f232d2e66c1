"""Write the guide for language models and their tools: ``python scripts/docs/llms.py > llms.txt``.

It follows the form of llms.txt: a title, a summary, what must be known to write code, and the pages
with what each answers. All comes from the README and from ``docs/README.md``; a test compares it.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\): (.+)$", re.MULTILINE)
_OTHERS = ("Benchmarks and rationale",)


def guide() -> str:
    """The whole text."""
    readme = (ROOT / "README.md").read_text()
    title, summary, facts = re.split(r"\n\n+", readme, maxsplit=2)
    facts, _, rest = facts.partition("\n## ")
    not_it = next(part for part in rest.split("\n## ") if part.startswith("What it is not\n"))
    parts = [title, f"> {summary}", facts, f"## {not_it}"]
    for heading, pages in _sections():
        parts += [f"## {'Optional' if heading in _OTHERS else heading}", pages]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _sections() -> list[tuple[str, str]]:
    """The sections of the documentation with their pages, from the repository's root."""
    found = re.split(r"^## (.+)$", (ROOT / "docs" / "README.md").read_text(), flags=re.MULTILINE)
    return [
        (heading, "\n".join(f"- [{name}]({_path(page)}): {says}" for name, page, says in items))
        for heading, text in zip(found[1::2], found[2::2], strict=True)
        if (items := _ITEM.findall(text))
    ]


def _path(page: str) -> str:
    return page.removeprefix("../") if page.startswith("../") else f"docs/{page}"


if __name__ == "__main__":
    sys.stdout.write(guide())
