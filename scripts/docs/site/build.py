"""Build the site of the documentation: ``python scripts/docs/site/build.py``.

It first copies the pages to ``.cache/docs``. There the index gets the navigation, and ``<!--
reference: Queue -->`` is replaced by the docstrings.
"""

# ruff: noqa: INP001, T201 - a script, not part of a package

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from navigation import DOCS, sections
from sphinx.cmd.build import build_main

HERE = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / ".cache" / "docs" / "source"
SITE = ROOT / ".cache" / "docs" / "html"
_REFERENCE = re.compile(r"^<!-- reference: (.+) -->$", re.MULTILINE)
_CLASSES = re.compile(r"\]\((api/[\w-]+\.md)\)")
_OUTSIDE = re.compile(r"\]\(\.\./((?!\w+\.md)[^)#]+)\)")
_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//"""
)


def main() -> int:
    """Build the site with warnings as errors; it loads nothing from another host."""
    stage()
    failed = (
        build_main(["-W", "--keep-going", "-q", "-c", str(HERE), str(SOURCE), str(SITE)])
        or report_what_comes_from_elsewhere()
    )
    if not failed:
        print(f"{SITE / 'index.html'}")
    return failed


def stage() -> None:
    """Copy the pages, and add the parts that only the site has."""
    shutil.rmtree(SOURCE.parent, ignore_errors=True)
    shutil.copytree(DOCS, SOURCE)
    (SOURCE / "README.md").rename(SOURCE / "index.md")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, SOURCE)
    for page in SOURCE.rglob("*.md"):
        page.write_text(as_on_the_site(page))
    for name, trees in (("index.md", navigation()), ("api.md", toctree("Parts", classes()))):
        with (SOURCE / name).open("a") as page:
            page.write(trees)


def as_on_the_site(page: Path) -> str:
    """The text of a page with its reference, and with links to files within the site."""
    text = _REFERENCE.sub(reference, page.read_text())
    if page.parent == SOURCE:
        for file in _OUTSIDE.findall(text):
            (SOURCE / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, SOURCE / file)
        text = text.replace("](../", "](").replace("](docs/", "](")
    return text.replace("](README.md", "](index.md")


def reference(names: re.Match[str]) -> str:
    """Directives that show the docstrings of public names."""
    lines = []
    for name in names[1].split():
        module, _, last = f"queue_over_sql.{name}".rpartition(".")
        lines += [f".. currentmodule:: {module}", "", f".. {directive(last)}:: {last}", ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def directive(name: str) -> str:
    """The directive for a constant, a class or a function, each with its own syntax."""
    if name.isupper():
        return "autodata"
    return "autoclass" if name[0].isupper() else "autofunction"


def navigation() -> str:
    """The sections as the tree of the site, which the page itself does not show."""
    return "".join(toctree(title, pages) for title, pages in sections().items())


def toctree(caption: str, pages: Iterable[str]) -> str:
    """A directive that adds pages to the tree of the site."""
    names = [page.removeprefix("../") for page in pages]
    return "\n".join(
        ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""]
    )


def classes() -> list[str]:
    """The pages of the reference, in the order of its index."""
    return _CLASSES.findall((DOCS / "api.md").read_text())


def report_what_comes_from_elsewhere() -> int:
    """Report pages that would load fonts, scripts or pictures from another host."""
    guilty = [page for page in SITE.rglob("*.html") if _FROM_ELSEWHERE.search(page.read_text())]
    for page in guilty:
        print(f"error: {page.relative_to(SITE)} loads from another host", file=sys.stderr)
    return len(guilty)


if __name__ == "__main__":
    sys.exit(main())
