"""Which errors cost a session, and how old sessions become."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import DatabaseRefused, DatabaseUnavailable
from queue_over_sql.service import parts_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from queue_over_sql import Queue, QueueService

_SESSION = {"postgresql": "SELECT pg_backend_pid()"}


def session(connection: Connection) -> int:
    """The server's number of a session."""
    asked = _SESSION.get(connection.dialect.name, "SELECT CONNECTION_ID()")
    return int(connection.exec_driver_sql(asked).scalar_one())


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_an_old_session_is_replaced(service: QueueService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switchover may leave its server alive; so no session is kept for ever, nor in the pool."""
    connections = parts_of(service).connections
    first = connections.run(session)
    assert first == connections.run(session)
    monkeypatch.setitem(vars(connections.dialect.features), "session_seconds", 0.0)
    connections._sessions.renew()
    found = {connections.run(session) for _ in range(3)}
    with connections.transaction() as connection:
        found.add(session(connection))
    assert 4 == len(found - {first})


@pytest.mark.engines("mysql", "mariadb")
@pytest.mark.parametrize("code", [1047, 1927, 9001])
def test_a_node_that_is_not_ready_counts_as_a_lost_connection(
    service: QueueService, code: int
) -> None:
    """As one of Galera's says while it joins (1047), or a proxy (9001): a new one is opened."""
    connections = parts_of(service).connections
    seen: list[int] = []

    def operation(connection: Connection) -> None:
        seen.append(session(connection))
        connection.exec_driver_sql(
            f"SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not ready'"
        )

    with pytest.raises(DatabaseUnavailable, match="not ready"):
        connections.run(operation)
    assert 3 == len(set(seen))


@pytest.mark.engines("postgresql", "mysql", "mariadb")
def test_a_callers_read_only_transaction_is_named(queue: Queue, engine: Engine) -> None:
    """It is neither an outage nor repeated: the caller is told what to begin."""
    begin = "SET TRANSACTION READ ONLY"
    if engine.dialect.name != "postgresql":
        begin = "START TRANSACTION READ ONLY"
    with engine.connect() as connection:
        connection.exec_driver_sql(begin)
        with pytest.raises(DatabaseRefused, match="begin one that may write"):
            queue.publish(1, connection=connection)
    queue.publish(2)
