"""Fixtures of the chaos tests, in addition to those of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from queue_over_sql.testing.plugin import TestDatabase
from tests.chaos.processes import Crew


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Starts child processes; all are dead and reaped after the test."""
    crew = Crew(tmp_path)
    yield crew
    crew.close()


@pytest.fixture
def sql(database: TestDatabase) -> Iterator[Engine]:
    """Plain SQLAlchemy on the test's database, to look and write around the library."""
    engine = create_engine(database.url, poolclass=NullPool)
    yield engine
    engine.dispose()
