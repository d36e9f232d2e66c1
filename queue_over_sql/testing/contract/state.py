"""A queue from outside: SQL on its table, its counts, and callers' transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue

STATE_COLUMNS = (
    "id",
    "priority",
    "available_at",
    "attempt_count",
    "consumer_id",
    "consumer_round",
    "claimed_at",
    "lease_expires_at",
    "last_attempt_at",
)
"""The columns of a live row that a claim or settle may change, without large texts."""

effects = Table(
    "effects",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("note", String(100)),
)
"""The user's own table, for effects that commit together with the queue's."""


def live_rows(engine: Engine, queue: Queue) -> list[tuple[Any, ...]]:
    """The committed live rows by id, as another connection sees them."""
    columns = [queue.table.c[name] for name in STATE_COLUMNS]
    with engine.connect() as connection:
        found = connection.execute(select(*columns).order_by(queue.table.c.id))
        return [tuple(row) for row in found]


def set_columns(engine: Engine, queue: Queue, message_id: int, **values: object) -> None:
    """Change a live row directly in the database."""
    change = update(queue.table).where(queue.table.c.id == message_id).values(**values)
    with engine.begin() as connection:
        connection.execute(change)


def counts(queue: Queue) -> tuple[int, int, int]:
    """``(ready, claimed, archived)``: how many messages are in each state."""
    stats = queue.stats()
    return stats.ready, stats.claimed, stats.archived


def ids(messages: Iterable[Message]) -> list[int]:
    """The ids of messages, in order."""
    return [message.id for message in messages]


def payloads(messages: Iterable[Message]) -> list[Any]:
    """The payloads of messages, in order."""
    return [message.payload for message in messages]


def archived(queue: Queue) -> list[Message]:
    """The messages of the archive, by id."""
    return list(queue.archive.messages().list())


def add_effect(connection: Connection | Session, number: int, note: str = "") -> None:
    """Write one effect in the caller's own transaction."""
    connection.execute(insert(effects).values(id=number, note=note))


def effect_count(engine: Engine) -> int:
    """How many effects are committed."""
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(effects)).scalar_one())


# -- the two kinds of callers' transactions

Caller = Connection | Session

Opener = Callable[[Engine], Caller]

OPENERS: dict[str, Opener] = {"connection": Engine.connect, "session": Session}


@contextmanager
def opened(opener: Opener, engine: Engine) -> Iterator[Caller]:
    """A caller's connection or session, closed at the end."""
    caller = opener(engine)
    try:
        yield caller
    finally:
        caller.close()
