"""The sections of the documentation, and how long they are.

``docs/README.md`` is the navigation: each heading is a section, each item that begins with a link a
page.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
USER_SECTIONS = ("Tutorial", "Concepts", "How-to", "Spark")
"""What a user reads; the other sections are for looking things up, and for those who build it."""
_PAGE = re.compile(r"^- \[[^\]]+\]\(([^)#]+\.md)\)", re.MULTILINE)


def sections() -> dict[str, list[str]]:
    """The pages of each section, relative to docs/, in their order."""
    parts = re.split(r"^## (.+)$", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
    return {
        title: pages
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
        if (pages := _PAGE.findall(text))
    }


def words(page: str) -> int:
    """How many words a page has, samples and all."""
    return len((DOCS / page).read_text().split())


def user_words() -> dict[str, int]:
    """The words of each page that a user needs: the README and all of the user's sections."""
    pages = [page for title in USER_SECTIONS for page in sections()[title]]
    return {page: words(page) for page in ("../README.md", *pages)}


if __name__ == "__main__":
    for title, pages in sections().items():
        sys.stdout.write(f"{title}\n")
        for page in pages:
            sys.stdout.write(f"{words(page):8,}  {page}\n")
    sys.stdout.write(f"{sum(user_words().values()):8,}  in what a user needs\n")
