"""The sections of the documentation, and how long they are.

``docs/README.md`` is the navigation: each heading is a section, and each item that begins with a
link is a page.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
USER_SECTIONS = ("Tutorial", "Concepts", "How-to", "Spark")
"""The sections for users; the others are for reference, and for contributors."""
_PAGE = re.compile(r"^- \[[^\]]+\]\(([^)#]+\.md)\)", re.MULTILINE)


def sections() -> dict[str, list[str]]:
    """The pages of each section in order, relative to docs/."""
    parts = re.split(r"^## (.+)$", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
    return {
        title: pages
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
        if (pages := _PAGE.findall(text))
    }


def words(page: str) -> int:
    """The number of words of a page, including samples."""
    return len((DOCS / page).read_text().split())


def user_words() -> dict[str, int]:
    """The words of each page for users: the README and all users' sections."""
    pages = [page for title in USER_SECTIONS for page in sections()[title]]
    return {page: words(page) for page in ("../README.md", *pages)}


if __name__ == "__main__":
    for title, pages in sections().items():
        sys.stdout.write(f"{title}\n")
        for page in pages:
            sys.stdout.write(f"{words(page):8,}  {page}\n")
    sys.stdout.write(f"{sum(user_words().values()):8,}  in what a user needs\n")
