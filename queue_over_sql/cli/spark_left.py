"""What a query of `spark process` leaves in its queue, for a person to know what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql import QueueError
from queue_over_sql.cli.session import Session
from queue_over_sql.cli.values import counted


@dataclass(frozen=True)
class Left:
    """Messages of a queue that are not done.

    Attributes:
        waiting: are due, and free for anybody.
        own: are held by the query that was looked for, or were not acknowledged by it yet.
        others: are held by other consumers.
    """

    waiting: int
    own: int
    others: int


def left_in(session: Session, queue: str, consumer: str) -> Left | None:
    """What is left in a queue, as the durable consumer of a query sees it.

    It adds to what was told already: where the database does not answer it is None.
    """
    try:
        with session.queue(queue) as found:
            own = found.durable_consumer(consumer, owner="").outstanding()
            stats = found.stats()
    except (QueueError, SQLAlchemyError):
        return None
    return Left(stats.ready, own, max(0, stats.claimed - own))


@contextlib.contextmanager
def told_what_is_held(session: Session, queue: str, consumer: str) -> Iterator[None]:
    """Where the query inside has failed, say that its messages wait for it, and for how long."""
    try:
        yield
    except typer.Exit as ended:
        left = left_in(session, queue, consumer) if ended.exit_code else None
        if left is not None and left.own:
            session.output.note(
                f"{consumer} holds {counted(left.own, 'message')} until it is started again with "
                f"the same checkpoint. Give them to others with: queue-over-sql consumer release "
                f"{consumer}"
            )
        raise
