"""Fixtures of the tests of single engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import NullPool, create_engine

from queue_over_sql import QueueService
from queue_over_sql.testing.plugin import TestDatabase
from tests.sql_api.sql_clients import SqlClient

MakeClient = Callable[..., SqlClient]


@pytest.fixture
def make_client(database: TestDatabase) -> Iterator[MakeClient]:
    """Opens sessions on the test's database, which commit each statement unless told otherwise."""
    with ExitStack() as stack:

        def make(url: str = database.url, *, autocommit: bool = True) -> SqlClient:
            engine = create_engine(url, poolclass=NullPool)
            connection = stack.enter_context(engine.connect())
            if autocommit:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            return SqlClient(connection)

        yield make


@pytest.fixture
def installed(service: QueueService) -> QueueService:
    """The service of the test, with the queue ``jobs`` and the SQL API."""
    service.create_queue("jobs", archive="all")
    service.sql_api.install()
    return service


@pytest.fixture
def client(installed: QueueService, make_client: MakeClient) -> SqlClient:
    """A session beside that service."""
    assert installed.started is False
    return make_client()
