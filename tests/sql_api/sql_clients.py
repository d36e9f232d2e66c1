"""A client of the SQL API: a plain session of the driver, without the library."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

Delivered = dict[str, Any]
FUNCTIONS = ("put_message_in_queue", "put_message_in_group", "put_messages_in_queue")
UNKNOWN, LOST, WRONG, PAYLOAD = "unknown queue", "claim lost", "wrong argument", "payload"
_CODES = {
    "QS001": UNKNOWN,
    "QS002": LOST,
    "QS003": WRONG,
    "QS004": PAYLOAD,
    31001: UNKNOWN,
    31002: LOST,
    31003: WRONG,
    31004: PAYLOAD,
}


@contextlib.contextmanager
def trusting_creators(database: TestDatabase, *, trusted: bool = True) -> Iterator[None]:
    """Let a MySQL server that writes a binary log create functions that change data, or not."""
    if database.engine != "mysql":
        yield
        return
    engine = create_engine(database.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    setting = "GLOBAL log_bin_trust_function_creators"
    with engine.connect() as connection:
        before = connection.exec_driver_sql(f"SELECT @@{setting.replace(' ', '.')}").scalar_one()
        connection.exec_driver_sql(f"SET {setting} = {int(trusted)}").close()
        try:
            yield
        finally:
            connection.exec_driver_sql(f"SET {setting} = {before}").close()


class SqlClient:
    """One session that calls the routines as a shell of its engine would."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement and read its rows."""
        result = self.connection.exec_driver_sql(statement, values)
        rows = [dict(row._mapping) for row in result] if result.returns_rows else []
        result.close()
        return rows

    def call(self, routine: str, *values: Any) -> list[dict[str, Any]]:
        """Call a routine in the way of the engine, and read what it returns."""
        marks = ", ".join(["%s"] * len(values))
        if self.connection.dialect.name == "postgresql":
            casts = ", ".join(f"%s{_CASTS.get(type(value), '')}" for value in values)
            return self.rows(f"SELECT * FROM {routine}({casts}) AS result", *values)
        if routine in FUNCTIONS:
            return self.rows(f"SELECT {routine}({marks}) AS result", *values)
        return self.rows(f"CALL {routine}({marks})", *values)

    def put(
        self, payload: str | None, read_cnt: Any = None, lease: Any = None, queue: str = "jobs"
    ) -> int:
        """Put a message in; returns its id."""
        [row] = self.call("put_message_in_queue", queue, payload, read_cnt, lease)
        return int(row["result"])

    def put_all(self, payloads: str, queue: str = "jobs") -> list[int]:
        """Put several in; returns their ids."""
        [row] = self.call("put_messages_in_queue", queue, payloads)
        ids = row["result"]
        loaded: list[int] = json.loads(ids) if isinstance(ids, str) else ids
        return loaded

    def get(self, queue: str = "jobs") -> Delivered | None:
        """Get the next message."""
        rows = self.call("get_message_from_queue", queue)
        assert len(rows) <= 1
        return rows[0] if rows else None

    def must_get(self, queue: str = "jobs") -> Delivered:
        """Get the next message, which must be there."""
        found = self.get(queue)
        assert found is not None
        return found

    def get_many(self, count: int, queue: str = "jobs") -> list[Delivered]:
        """Get several."""
        return self.call("get_messages_from_queue", queue, count)

    def settle(self, verb: str, message: Delivered, *more: Any, queue: str = "jobs") -> None:
        """Call one of the verbs that take a token."""
        self.call(f"{verb}_message", queue, message["id"], message["token"], *more)

    def ack_all(self, messages: Sequence[Delivered], queue: str = "jobs") -> None:
        """Acknowledge several."""
        claims = [{"id": message["id"], "token": message["token"]} for message in messages]
        self.call("ack_messages", queue, json.dumps(claims))

    def delete(self, message_id: int, queue: str = "jobs") -> None:
        """Acknowledge without a token."""
        self.call("delete_message_from_queue", queue, message_id)


_CASTS = {int: "::bigint", str: "::text"}


def refusal(error: DBAPIError) -> str:
    """Which of the API's own refusals an error is."""
    codes = (getattr(error.orig, "sqlstate", None), *getattr(error.orig, "args", ()))
    known = [_CODES[code] for code in codes if code in _CODES]
    return known[0] if known else f"another error: {error.orig}"
