"""Results: what finished messages were acked with, in the headers of their archived rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from queue_over_sql.archive.statements import ending_of, is_live
from queue_over_sql.errors import DatabaseUnavailable, NoResult, ResultTimeout, visible
from queue_over_sql.payloads.codec import UnreadableHeaders, decode_headers
from queue_over_sql.statements.operations import rows_by_ids
from queue_over_sql.values.backoff import OutageLog, poll_pauses
from queue_over_sql.values.durations import duration_text, to_timedelta
from queue_over_sql.values.headers import RESULT
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.values.durations import Duration

# Shortest and longest pause in seconds between two polls for a result.
_FIRST_LOOK: Final = 0.01
_LAST_LOOK: Final = 0.25


def keeps_no_results(queue: str) -> str:
    """What an error says of a queue that does not keep finished messages."""
    return (
        f"Queue {queue!r} does not keep finished messages, so it has no results. Keep them with "
        f"create_queue({queue!r}, archive='all')."
    )


def is_unfinished(connection: Connection, sql: StatementCache, message_id: int) -> bool:
    """Whether a message is live."""
    return bool(rows_by_ids(connection, sql, is_live, [message_id]))


def read_ending(
    connection: Connection, sql: StatementCache, message_id: int
) -> Sequence[Any] | None:
    """The outcome, the reason and the headers of an archived message; None if there is none."""
    rows = rows_by_ids(connection, sql, ending_of, [message_id])
    return rows[0] if rows else None


class Results:
    """Reads the results of one queue, and waits for them."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    def result(self, message_id: int, wait: Duration) -> Any:
        """The result of a finished message; see ``Queue.result``."""
        seconds = to_timedelta(wait, "wait", zero=True).total_seconds()
        if self._context.settings.archive != "all":
            raise NoResult(keeps_no_results(self._context.name), self._context.name, message_id)
        deadline, pauses = time.monotonic() + seconds, poll_pauses(_FIRST_LOOK, _LAST_LOOK)
        outage, arrivals = OutageLog("A wait for a result"), self._context.arrivals
        while True:
            seen = arrivals.count
            try:
                if not self._context.run(lambda c: is_unfinished(c, self._context.sql, message_id)):
                    return self._read(message_id)
                outage.ended()
            except DatabaseUnavailable as error:
                if time.monotonic() >= deadline:
                    raise
                outage.began(error)
            left = deadline - time.monotonic()
            if left <= 0:
                self._time_out(message_id, seconds)
            self._context.wakeups.await_next_poll(seen, pauses, left)

    def _read(self, message_id: int) -> Any:
        name, sql = self._context.name, self._context.sql
        found = self._context.run(lambda c: read_ending(c, sql, message_id))
        if found is None:
            msg = (
                f"Queue {name!r} has no message {message_id}: it was deleted, requeued with a new "
                "id, or pruned from the archive, or it never existed."
            )
            raise NoResult(msg, name, message_id)
        outcome, reason, headers = found
        if outcome != Outcome.DONE:
            said = visible(str(reason), keep="")
            msg = (
                f"Message {message_id} of queue {name!r} has no result, because it became a dead "
                f"letter ({outcome}: {said}). To have it handled again, requeue it."
            )
            raise NoResult(msg, name, message_id, outcome, reason)
        try:
            return decode_headers(headers).get(RESULT)
        except UnreadableHeaders as error:
            msg = f"The result of message {message_id} of queue {name!r} is lost: {error}."
            raise NoResult(msg, name, message_id, outcome) from error

    def _time_out(self, message_id: int, seconds: float) -> NoReturn:
        name = self._context.name
        msg = (
            f"Message {message_id} of queue {name!r} was not finished within "
            f"{duration_text(seconds)}. Wait longer, or ask queue.why({message_id}) what it waits "
            "for."
        )
        raise ResultTimeout(msg, name, message_id)
