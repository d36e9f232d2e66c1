"""Finding the message that a batch was refused for, by publishing one by one and rolling back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection

from queue_over_sql import DatabaseUnavailable, Publication, Queue, QueueError, QueueService

PATIENCE_SECONDS = 5.0


class _EnoughError(Exception):
    """Ends the transaction, so that nothing of it stays."""


def first_refused(
    service: QueueService, queue: Queue, batch: Sequence[Publication], on_conflict: str
) -> tuple[int, Exception] | None:
    """The place in `batch` of the first message that is refused by itself, and the reason.

    None when it cannot be told: each is accepted alone, it takes too long, or the database has
    gone. Nothing is published.
    """
    found: list[tuple[int, Exception]] = []

    def probe(connection: Connection) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        for place, publication in enumerate(batch):
            try:
                queue.publish_many([publication], on_conflict=on_conflict, connection=connection)
            except DatabaseUnavailable:
                break
            except (QueueError, ValueError, TypeError) as error:
                found.append((place, error))
                break
            if time.monotonic() > deadline:
                break
        raise _EnoughError

    try:
        with service.connections.transaction() as connection:
            probe(connection)
    except (_EnoughError, QueueError):
        return found[0] if found else None
    return None
