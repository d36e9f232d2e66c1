"""The library's errors in the words of the command line: what to type, not what to call."""

from __future__ import annotations

from queue_over_sql import DuplicateKey, QueueNotFound, ScheduleNotFound, TopicNotFound
from queue_over_sql.errors import near_queue_name


def in_words(error: Exception) -> str:
    """What went wrong, with advice for somebody at a shell."""
    if isinstance(error, QueueNotFound):
        name = near_queue_name(error.queue)
        return (
            f"There is no queue {error.queue!r} in this database; "
            f"create it with: queue-over-sql create {name}"
        )
    if isinstance(error, TopicNotFound):
        name = near_queue_name(error.topic)
        return (
            f"There is no topic {error.topic!r} in this database; "
            f"create it with: queue-over-sql topic create {name}"
        )
    if isinstance(error, ScheduleNotFound):
        return (
            f"There is no schedule {error.schedule!r} in this database; "
            "queue-over-sql schedule list shows those that are there"
        )
    if isinstance(error, DuplicateKey):
        return (
            f"Queue {error.queue!r} has a live message with key {error.key!r} already "
            f"(id {error.id}): use --on-conflict skip or replace."
        )
    return str(error) or type(error).__name__
