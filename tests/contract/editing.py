"""What the tests of selections share: edits by name, a consumer with a mark, finished messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, table

from queue_over_sql import Publication
from tests.contract.callers import Caller

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Edited, LiveSelection, Message, Queue

Edit = Callable[..., "Edited"]

LONG_AGO = datetime(2020, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)

EDITS: dict[str, Edit] = {
    "remove": lambda found, caller=None: found.remove(connection=caller),
    "reschedule": lambda found, caller=None: found.reschedule(delay=3600, connection=caller),
    "prioritize": lambda found, caller=None: found.prioritize(priority=1, connection=caller),
    "front": lambda found, caller=None: found.prioritize(front=True, connection=caller),
    "hold": lambda found, caller=None: found.hold(connection=caller),
}
"""Each edit of unheld messages, alone or in a caller's transaction."""


def unhold(found: LiveSelection, caller: Caller | None = None) -> Edited:
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
        assert message.payload == "load"
        message.ack()


def finished(
    queue: Queue, outcome: str, count: int = 1, *, reason: str = "no good"
) -> list[Message]:
    """Claim the next messages and finish them all; returns what was claimed."""
    messages = queue.consume(count)
    assert count == len(messages)
    if outcome == "done":
        queue.ack(messages)
    elif outcome == "rejected":
        queue.reject(messages, reason)
    else:
        queue.nack(messages, error=reason)
    return messages


def row_count(engine: Engine, name: str) -> int:
    """How many rows a table has, as another connection sees it."""
    with engine.connect() as connection:
        counted = connection.execute(select(func.count()).select_from(table(name)))
        return int(counted.scalar_one())


def has_json_paths(engine: Engine) -> bool:
    """Whether the engine can look into payloads: all but H2 before 2.2.220."""
    with engine.connect() as connection:
        version = connection.dialect.server_version_info or ()
        return connection.dialect.name != "h2" or version >= (2, 2, 220)


def close(one: datetime | None, other: datetime, seconds: float = 60) -> bool:
    """Whether two instants are about the same."""
    return one is not None and abs(one - other) < timedelta(seconds=seconds)
