"""Differences between databases stay in ``dialects/``: the core never asks for the engine."""

from __future__ import annotations

import re
from pathlib import Path

import queue_over_sql

PACKAGE = Path(queue_over_sql.__file__).parent
# Interfaces name engines in help texts and URLs; the test servers are servers of engines.
ELSEWHERE = ("dialects", "cli", "testing")
ASKS = re.compile(
    r"dialect\.name\b|get_backend_name|(==|!=|\bin)\s*[(\[{]?[\"'](sqlite|postgresql|mysql|mariadb|h2)"
)


def test_no_engine_is_asked_for_by_name() -> None:
    """A capability of the dialect answers instead."""
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ASKS.search(line)
    ]
    assert [] == found


def test_only_the_store_and_its_kin_know_statements() -> None:
    """Nobody above the store builds SQL of the hot path."""
    statements = re.compile(r"import .*statements|dialects\.statements")
    allowed = ("store", "dialects")
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in allowed
        and not path.stem.endswith("store")
        and statements.search(path.read_text())
    ]
    assert [] == found
