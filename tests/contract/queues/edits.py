"""Edits by name, with or without a caller's transaction, and the messages to edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

from queue_over_sql import Publication
from tests.contract.caller_transactions import Caller

if TYPE_CHECKING:
    from queue_over_sql import EditResult, LiveSelection, Queue

Edit = Callable[..., "EditResult"]

LONG_AGO = datetime(2020, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)

EDITS: dict[str, Edit] = {
    "remove": lambda found, caller=None: found.remove(connection=caller),
    "reschedule": lambda found, caller=None: found.reschedule(delay=3600, connection=caller),
    "prioritize": lambda found, caller=None: found.prioritize(priority=1, connection=caller),
    "front": lambda found, caller=None: found.prioritize(front=True, connection=caller),
    "hold": lambda found, caller=None: found.hold(connection=caller),
}
"""Each edit of unheld messages, alone or in a caller's transaction."""


def unhold(found: LiveSelection, caller: Caller | None = None) -> EditResult:
    """The edit of held messages."""
    return found.unhold(connection=caller)


def of_kind(queue: Queue, kind: str) -> LiveSelection:
    """The live messages of a kind, which is how these tests name what they edit."""
    return queue.messages(kind=kind)


def publish_kinds(queue: Queue, kinds: Iterable[str], **options: Any) -> list[int]:
    """Publish one message for each kind, one after another; the kind is the payload too."""
    return [queue.publish(kind, kind=kind, **options).id for kind in kinds]


def busy_consumer(consumer: Queue, publisher: Queue) -> None:
    """Put ``consumer`` in the middle of a long queue, with a mark well above what was before.

    Its next claims are bounded by the mark: the last full look was just now, and no claim came
    back short. A back-dated message lies well below the mark; none may be due while this runs.
    """
    publisher.publish_many([Publication("load", kind="load")] * 30)
    for _ in range(5):
        (message,) = consumer.consume()
        assert "load" == message.payload
        message.ack()


def refuse_changes_of(message_id: int, url: str) -> None:
    """Let a database of SQLite refuse each change of a message of the queue jobs."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for change in ("UPDATE", "DELETE"):
            trigger = (
                f"CREATE TRIGGER no_{change} BEFORE {change} ON queue_jobs "
                f"WHEN OLD.id = {message_id} BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            connection.execute(text(trigger))
    engine.dispose()
