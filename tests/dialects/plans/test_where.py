"""A selective consume with an index of the user's own: an index scan, no sort, oldest first.

The queue holds 102,400 messages of 100 companies. What ``consume(where=…)`` and ``take(where=…)``
really send is recorded and then explained by the engine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, ColumnElement, Connection, Engine, Integer, event, insert, select

from queue_over_sql import Publication

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

COMPANIES, DOUBLINGS = 100, 10
COMPANY = 7
# Between a message and its copy, in microseconds.
STEP = 1_000
BY_COMPANY_IN_ORDER = "company_id, priority, available_at, id"
PARTIAL = {"sqlite", "postgresql"}
# The servers gather such numbers by themselves, sooner or later; H2 plans without. A newer SQLite
# (3.53) takes the queue's own index until somebody has run ANALYZE.
STATISTICS = {
    "sqlite": "ANALYZE",
    "postgresql": "ANALYZE queue_jobs",
    "mariadb": "ANALYZE TABLE queue_jobs",
    "mysql": "ANALYZE TABLE queue_jobs",
}
EXPLAIN = {
    "sqlite": "EXPLAIN QUERY PLAN ",
    "postgresql": "EXPLAIN ",
    "mariadb": "EXPLAIN FORMAT=JSON ",
    "mysql": "EXPLAIN FORMAT=TREE ",
    "h2": "EXPLAIN ",
}
# The user's index, entered at the company, the level and the instant.
INDEX_SCAN = {
    "sqlite": r"SEARCH QUEUE_JOBS USING INDEX JOBS_BY_COMPANY "
    r"\(COMPANY_ID=\? AND PRIORITY=\? AND AVAILABLE_AT>\? AND AVAILABLE_AT<\?\)",
    "postgresql": r"INDEX SCAN USING JOBS_BY_COMPANY ON QUEUE_JOBS .*\n\s*"
    r"INDEX COND: .*COMPANY_ID = .*PRIORITY = .*AVAILABLE_AT >= ",
    "mariadb": r'"KEY": "JOBS_BY_COMPANY",\s*"KEY_LENGTH": "\d+",\s*'
    r'"USED_KEY_PARTS": \["COMPANY_ID", "PRIORITY", "AVAILABLE_AT"\]',
    "mysql": r"RANGE SCAN ON QUEUE_JOBS USING JOBS_BY_COMPANY OVER \(COMPANY_ID = 7 AND PRIORITY",
}
WHOLE_TABLE = {
    "sqlite": r"SCAN QUEUE_JOBS\b",
    "postgresql": r"SEQ SCAN ON QUEUE_JOBS\b",
    "mariadb": r'"ACCESS_TYPE": "ALL"',
    "mysql": r"TABLE SCAN ON QUEUE_JOBS\b",
    "h2": r"QUEUE_JOBS\.TABLESCAN",
}
SORT = r"FILESORT|TEMP B-TREE|SORT KEY|\bSORT:"


@dataclasses.dataclass
class Crowd:
    """A queue with many companies' messages, and a condition on one of them."""

    engine: str
    service: QueueService
    queue: Queue

    @property
    def mine(self) -> ColumnElement[bool]:
        """The condition."""
        condition: ColumnElement[bool] = self.queue.table.c.company_id == COMPANY
        return condition

    @property
    def sql(self) -> Engine:
        """The engine under the queue."""
        return self.service._parts.connections.engine

    def oldest(self, count: int) -> list[Any]:
        """The ids of the oldest messages of the company that nobody holds, and when each is due."""
        columns = self.queue.table.c
        found = (
            select(columns.id, columns.available_at)
            .where(self.mine, columns.consumer_id.is_(None))
            .order_by(columns.available_at, columns.id)
            .limit(count)
        )
        with self.sql.connect() as connection:
            return list(connection.execute(found).all())

    def in_front_of(self, instant: int) -> int:
        """How many messages that nobody holds are due up to an instant, whosever they are."""
        columns = self.queue.table.c
        older = select(columns.id).where(
            columns.consumer_id.is_(None), columns.available_at <= instant
        )
        with self.sql.connect() as connection:
            return len(connection.execute(older).all())


@pytest.fixture
def crowd(
    database: TestDatabase, make_service: MakeService, request: pytest.FixtureRequest
) -> Crowd:
    """The queue, with claims behind it and claims held, of the company and of others.

    Its parameter names the columns of the user's index, if not those that serve best.
    """
    columns: list[Column[Any]] = [Column("company_id", Integer)]
    # The claims must outlast the test, however busy the machine is.
    service = make_service(consumer_timeout=3600)
    queue = service.create_queue("jobs", lease=3600, columns=columns)
    queue.publish_many(Publication(n, columns={"company_id": n}) for n in range(COMPANIES))
    found = Crowd(database.engine, service, queue)
    with found.sql.begin() as connection:
        for doubling in range(DOUBLINGS):
            copy_all(connection, queue, STEP * 2**doubling)
        add_index(connection, getattr(request, "param", BY_COMPANY_IN_ORDER), database.engine)
    queue.ack(queue.consume(500))
    queue.ack(queue.consume(100, where=found.mine))
    queue.consume(500)
    queue.consume(100, where=found.mine)
    if database.engine in STATISTICS:
        with found.sql.begin() as connection:
            connection.exec_driver_sql(STATISTICS[database.engine]).close()
    return found


def copy_all(connection: Connection, queue: Queue, microseconds: int) -> None:
    """Publish each message once more, as if so much earlier: the oldest have the highest ids."""
    columns = [column for column in queue.table.c if column.name != "id"]
    copies = [
        column - microseconds if column.name == "available_at" else column for column in columns
    ]
    names = [column.name for column in columns]
    connection.execute(insert(queue.table).from_select(names, select(*copies)))


def add_index(connection: Connection, columns: str, engine: str) -> None:
    """Create the user's index, of unclaimed messages only where the engine can."""
    only = " WHERE consumer_id IS NULL" if engine in PARTIAL else ""
    connection.exec_driver_sql(
        f"CREATE INDEX jobs_by_company ON queue_jobs ({columns}){only}"
    ).close()


def sent(crowd: Crowd, act: Callable[[], object]) -> list[tuple[str, Any]]:
    """The statements with the user's condition that an act sends, with their parameters."""
    statements: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, text: str, parameters: Any, *___: Any) -> None:
        if re.search(r"\bcompany_id\W* = ", text):
            statements.append((text, parameters))

    event.listen(crowd.sql, "before_cursor_execute", note)
    try:
        act()
    finally:
        event.remove(crowd.sql, "before_cursor_execute", note)
    return statements


def plan(crowd: Crowd, explain: str, statement: tuple[str, Any]) -> str:
    """The engine's plan of a statement, in upper case, as text."""
    text, parameters = statement
    with crowd.sql.connect() as connection:
        rows = connection.exec_driver_sql(explain + text, parameters).all()
        connection.rollback()
    return "\n".join(" ".join(map(str, row)) for row in rows).upper()


def consumed(crowd: Crowd) -> list[tuple[str, Any]]:
    """What ``consume(where=…)`` sends."""
    return sent(crowd, lambda: crowd.queue.consume(10, where=crowd.mine))


def taken(crowd: Crowd) -> list[tuple[str, Any]]:
    """What ``take(where=…)`` sends."""

    def take() -> None:
        with crowd.sql.begin() as connection:
            crowd.queue.take(10, connection=connection, where=crowd.mine)

    return sent(crowd, take)


@pytest.mark.parametrize("ask", [consumed, taken])
def test_a_selective_claim_reads_no_more_than_an_index(
    crowd: Crowd, ask: Callable[[Crowd], list[tuple[str, Any]]]
) -> None:
    """It enters the user's index at the company, follows its order and sorts nothing.

    Except on H2, where the pick must not be sorted, because H2 locks every row that it sorts. So
    the order has to be that of an index, and only the queue's own is known to have it: the claim
    follows that one by a hint, and passes by what does not match.
    """
    statements = ask(crowd)
    assert statements
    for statement in statements:
        found = plan(crowd, EXPLAIN[crowd.engine], statement)
        # MariaDB reads all that it has found.
        found = re.sub(r'"<DERIVED2>",\s*"ACCESS_TYPE": "ALL"', "", found)
        assert not re.search(WHOLE_TABLE[crowd.engine], found), found
        assert not re.search(SORT, found), found
        if crowd.engine == "h2":
            follows_h2(statement, found)
        else:
            assert re.search(INDEX_SCAN[crowd.engine], found), found


def follows_h2(statement: tuple[str, Any], found: str) -> None:
    """Without a hint, as on versions without SKIP LOCKED, it may be the user's index as well."""
    if "USE INDEX" in statement[0]:
        assert "/* PUBLIC.QUEUE_JOBS_CLAIM_IX: " in found, found
        assert "ORDER BY" not in found, found
    else:
        assert re.search(r"/\* PUBLIC\.(QUEUE_JOBS_CLAIM_IX|JOBS_BY_COMPANY): ", found), found


@pytest.mark.engines("h2")
def test_h2_stops_where_enough_match(crowd: Crowd) -> None:
    """Along its claim index H2 reads up to the last match that was asked for, and no further."""
    statement = taken(crowd)[0]
    in_front = crowd.in_front_of(crowd.oldest(10)[-1].available_at)
    found = plan(crowd, "EXPLAIN ANALYZE ", statement)
    read = re.search(r"CLAIM_IX: .*?SCANCOUNT: (\d+)", found, re.DOTALL)
    assert read is not None, found
    # It counts the step over the end, too.
    assert int(read[1]) <= in_front + 1


@pytest.mark.parametrize("crowd", [BY_COMPANY_IN_ORDER, "company_id"], indirect=True)
def test_the_oldest_that_match_come_first(crowd: Crowd) -> None:
    """A batch is the oldest matching messages in their order, whatever the user's index is.

    That is not the order of their ids here, nor that in which an index on the company has them.
    """
    expected = [row.id for row in crowd.oldest(101)]
    messages: list[Message] = []
    for count in (1, 100):
        messages += crowd.queue.consume(count, where=crowd.mine)
    assert expected == [message.id for message in messages]
    assert expected != sorted(expected)
    assert {COMPANY} == {message.columns["company_id"] for message in messages}
