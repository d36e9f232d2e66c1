"""The page of the benchmarks matches the committed results."""

from __future__ import annotations

from pathlib import Path

from scripts.benchmarks.page import SECTIONS, page

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_results() -> None:
    """After a run: ``python -m scripts.benchmarks.page > docs/benchmarks.md``."""
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page()


def test_what_was_run_is_on_the_page() -> None:
    """Each result file belongs to a section of the page."""
    for file in (ROOT / "scripts" / "benchmarks" / "results").glob("*.json"):
        assert any(file.stem.startswith(name) for name in SECTIONS), file
    assert "### Workloads: PostgreSQL" in page()
