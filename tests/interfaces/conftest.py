"""Fixtures of the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a fresh embedded database, for what is the same on every engine."""
    return f"sqlite:///{tmp_path / 'queues.db'}"
