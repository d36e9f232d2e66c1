"""Fixture for tests of the asynchronous proxies: the URL of an empty database for their drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase


@pytest.fixture
def url(database: TestDatabase) -> str:
    """The test's database, with the driver left open."""
    given = make_url(database.url)
    plain = given.set(drivername=given.get_backend_name())
    return plain.render_as_string(hide_password=False)
