"""Selection: find, look at, edit and remove messages without claiming them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from queue_over_sql import store
from queue_over_sql.durations import Duration, instant_to_microseconds, to_microseconds
from queue_over_sql.errors import ClaimLost
from queue_over_sql.message import Message, Outcome, Status
from queue_over_sql.payloads.codec import check_text
from queue_over_sql.queues.decoding import UNDECODABLE, decoded, decoded_plainly, undecoded
from queue_over_sql.schema.conditions import (
    check_condition,
    check_fields,
    check_payload_value,
    payload_path,
    rebased,
)
from queue_over_sql.schema.system_tables import KEY_LENGTH, KIND_LENGTH
from queue_over_sql.settings import check_choice, check_flag, check_function, check_whole
from queue_over_sql.store import Chosen, EditResult

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.message import CallersConnection, MessageRow
    from queue_over_sql.queues.context import QueueContext

    Progress = Callable[[int], None]


T = TypeVar("T")
BATCH = 500
"""How many messages one transaction changes where many are changed with progress."""


class Selection:
    """Some messages of a queue or of its archive, in the order of their ids.

    What is listed carries no claim: the verbs of such a message raise ``ClaimLost``.

    Raises:
        QueueNotFound, DatabaseUnavailable, ServiceClosed: of every verb, as their names say.
        WrongDatabase: of a verb whose ``connection`` leads to another database.
    """

    _archived: ClassVar[bool]

    def __init__(
        self,
        context: QueueContext,
        *,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> None:
        self._context = context
        tables = context.tables
        self._table = tables.archive if self._archived else tables.live
        conditions = []
        if where is not None:
            check_condition(where)
            conditions.append(rebased(where, self._table))
        if status is not None:
            conditions.append(self._status(status))
        if not tables.has_payloads:
            self._refuse(key=key, kind=kind, payload=payload)
        if (key := check_text("key", key, KEY_LENGTH)) is not None:
            conditions.append(self._table.c.message_key == key)
        if (kind := check_text("kind", kind, KIND_LENGTH)) is not None:
            conditions.append(self._table.c.kind == kind)
        if payload:
            conditions += self._fields(self._table.c.payload, payload)
        self._chosen = Chosen(self._archived, conditions)

    def list(
        self, limit: int = 100, after: int | None = None, *, newest_first: bool = False
    ) -> list[Message]:
        """One page of messages, ordered by id.

        Args:
            limit: length of the page.
            after: id of the last message of the page before.
            newest_first: the highest ids first.
        """
        check_flag("newest_first", newest_first)
        limit = check_whole("limit", limit)
        if after is not None:
            after = check_whole("after", after, 0)
        sql, chosen = self._context.sql, self._chosen
        rows = self._context.run(
            lambda connection: store.list_messages(
                connection, sql, chosen, limit, after, newest_first=newest_first
            )
        )
        return [self._listed(row) for row in rows]

    def _plain_pages(self, limit: int) -> Iterator[Sequence[Message]]:
        """All messages, page by page, with their payloads as they are without kinds."""
        sql, after = self._context.sql, None
        while True:
            rows = self._context.run(
                lambda c: store.list_messages(c, sql, self._chosen, limit, after)  # noqa: B023 - runs at once
            )
            if rows:
                yield [self._plain(row) for row in rows]
            if len(rows) < limit:
                return
            after = rows[-1].id

    def first(self) -> Message | None:
        """The message with the lowest id; None where there is none."""
        page = self.list(limit=1)
        return page[0] if page else None

    def count(self) -> int:
        """How many messages there are."""
        sql, chosen = self._context.sql, self._chosen
        return self._context.run(lambda connection: store.count_messages(connection, sql, chosen))

    def remove(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Progress | None = None,
    ) -> EditResult:
        """Remove the messages for ever; the key of a live one is free from then on.

        Args:
            connection: the caller's own transaction; it is not committed here.
            progress: remove in transactions of 500 and call this after each with the number so far.

        Returns:
            How many; ``skipped`` counts those that a consumer holds, which stay.
        """
        check_function("progress", progress)
        sql, chosen = self._context.sql, self._chosen
        if progress is None or connection is not None:
            return self._run(lambda c: store.remove_messages(c, sql, chosen), connection)
        removed = skipped = 0
        for batch in self._batches():
            edited = self._run(lambda c: store.remove_messages(c, sql, batch), None)  # noqa: B023 - runs at once
            removed, skipped = removed + edited, skipped + edited.skipped
            progress(removed)
        return EditResult(removed, skipped)

    def _batches(self) -> Iterator[Chosen]:
        context, column = self._context, self._table.c.id
        last = context.run(lambda c: store.last_id(c, context.sql, self._chosen))
        rest = self._chosen
        while last is not None:
            high = context.run(lambda c: store.id_after(c, context.sql, rest, BATCH - 1))  # noqa: B023 - runs at once
            if high is None or high >= last:
                yield rest.also(column <= last)
                return
            yield rest.also(column <= high)
            rest = self._chosen.also(column > high)

    def _run(
        self,
        act: Callable[[Connection], T],
        connection: CallersConnection | None,
        *,
        repeat: bool = False,
    ) -> T:
        if connection is not None:
            return self._context.run_on(connection, act, atomic=True)
        done = self._context.run(act, atomic=True, durable=True, repeat=repeat)
        self._context.announce()
        return done

    def _listed(self, row: MessageRow) -> Message:
        try:
            return decoded(self._context, row, _Unclaimed())
        except UNDECODABLE:
            return self._plain(row)

    def _plain(self, row: MessageRow) -> Message:
        try:
            return decoded_plainly(self._context, row, _Unclaimed())
        except UNDECODABLE:
            return undecoded(self._context, row, _Unclaimed())

    def _refuse(self, **filters: object) -> None:
        named = [name for name, value in filters.items() if value not in (None, {})]
        if named:
            msg = (
                f"{', '.join(named)}: the messages of queue {self._context.name!r} are rows of "
                f"{self._table.fullname!r}; select them by where=, by any column of the table"
            )
            raise ValueError(msg)

    def _fields(
        self, column: ColumnElement[Any], wanted: Mapping[str, Any]
    ) -> Sequence[ColumnElement[bool]]:
        check_fields(wanted)
        # It never changes; to ask the database here would be to wait in a constructor.
        payload_type = self._context.known_settings.payload
        if wanted and payload_type != "json":
            msg = (
                f"payload: queue {self._context.name!r} holds {payload_type!r}, which has no fields"
            )
            raise ValueError(msg)
        conditions = []
        for path, value in wanted.items():
            steps = payload_path(path)
            value = check_payload_value(path, value)  # noqa: PLW2901 - the same one, plain
            conditions.append(self._context.tables.dialect.payload_equals(column, steps, value))
        return conditions

    def _status(self, status: str) -> ColumnElement[bool]:
        if self._archived:
            check_choice("status", status, [outcome.value for outcome in Outcome])
            ended_so: ColumnElement[bool] = self._table.c.outcome == Outcome(status).value
            return ended_so
        check_choice("status", status, [state.value for state in Status])
        return store.has_status(self._context.tables, Status(status))


class LiveSelection(Selection):
    """Some messages of a queue, and what an operator may do to those that nobody holds.

    Each verb is one statement. It returns how many messages it changed; ``skipped`` of the result
    counts the matching ones that were left alone because a consumer holds them. All take the
    caller's own transaction as ``connection``, which is not committed here.
    """

    _archived = False

    def reschedule(
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> EditResult:
        """Let messages be due at an instant, or so long from now; held ones are not held then.

        Raises:
            ValueError: both were given or none, or the instant has no time zone.
        """
        if (at is None) == (delay is None):
            msg = "give either at or delay"
            raise ValueError(msg)
        if at is not None:
            return self._edit(connection, available_at=instant_to_microseconds(at, "at"))
        wait = to_microseconds(delay or 0, "delay", zero=True)
        now = self._context.tables.dialect.now()
        return self._edit(connection, available_at=now + wait)

    def prioritize(
        self,
        *,
        priority: int | None = None,
        front: bool = False,
        connection: CallersConnection | None = None,
    ) -> EditResult:
        """Move messages to another level, or to the front of their own, where they are due now.

        Every consumer finds them by its very next claim.

        Args:
            priority: the level; their place in it is that of their time.
            front: before all others of their level, in the order of their ids; what is held stays
                held.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ValueError: both were given or none, or the queue has no such level.
        """
        if check_flag("front", front) == (priority is not None):
            msg = "give either priority or front=True"
            raise ValueError(msg)
        if priority is not None:
            last = self._context.settings.priorities - 1
            return self._edit(connection, priority=check_whole("priority", priority, 0, last))
        sql, chosen = self._context.sql, self._chosen
        return self._run(lambda c: store.move_to_front(c, sql, chosen), connection)

    def hold(self, *, connection: CallersConnection | None = None) -> EditResult:
        """Take messages out of delivery until ``unhold`` or ``reschedule``."""
        return self._edit(connection, available_at=None)

    def unhold(self, *, connection: CallersConnection | None = None) -> EditResult:
        """Put held messages back to where they were due first."""
        columns = self._table.c
        held = self._chosen.also(columns.available_at.is_(None))
        sql, values = self._context.sql, {"available_at": self._context.tables.due_first()}
        return self._run(lambda c: store.edit_messages(c, sql, held, values), connection)

    def _edit(self, connection: CallersConnection | None, **values: Any) -> EditResult:
        sql, chosen = self._context.sql, self._chosen
        return self._run(
            lambda c: store.edit_messages(c, sql, chosen, values), connection, repeat=True
        )


class ArchiveSelection(Selection):
    """Some finished messages of a queue, which may be sent again."""

    _archived = True

    def requeue(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Progress | None = None,
    ) -> EditResult:
        """Give finished messages a new life, due now, with all attempts before them.

        Each is published anew, under a new id, with its content, key, headers, priority and own
        columns, and leaves the archive in the same transaction, of 500 messages each. Why it had
        failed stands in its header ``previous_error``. A row of an adopted table is sent again
        where it is.

        Args:
            connection: the caller's own transaction for all of them; it is not committed here.
            progress: called after each transaction with the number so far.

        Returns:
            How many.

        Raises:
            DuplicateKey: a live message has the key of one; nothing of its batch was changed.
            PayloadInvalid: an own column of one cannot be read; nothing of its batch was changed.
        """
        check_function("progress", progress)
        context, settings = self._context, self._context.settings
        # A row of an adopted table may be finished again before we are.
        now = context.look(lambda c: store.server_now(c, context.sql), connection)
        chosen = self._chosen.also(self._table.c.finished_at <= now)
        last = context.look(lambda c: store.last_id(c, context.sql, chosen), connection)
        done = 0
        while last is not None:
            batch = self._run(
                lambda c: store.requeue(
                    c,
                    context.sql,
                    chosen,
                    up_to=last,
                    limit=BATCH,
                    priorities=settings.priorities,
                    forget_keys=settings.dedup_window is not None,
                ),
                connection,
            )
            done += batch
            if progress is not None:
                progress(done)
            if batch < BATCH:
                break
        return EditResult(done)


def rows_of(
    selection: Selection,
    columns: Sequence[ColumnElement[Any]],
    *,
    limit: int,
    after: int | None = None,
    newest_first: bool = False,
) -> Sequence[Any]:
    """Some columns of messages, which have their labels, by id; payloads are not read."""
    sql, chosen = selection._context.sql, selection._chosen  # noqa: SLF001 - its own module
    return selection._context.run(  # noqa: SLF001
        lambda connection: store.list_columns(
            connection, sql, chosen, columns, limit=limit, after=after, newest_first=newest_first
        )
    )


class _Unclaimed:
    """What settles a message that was only listed: nothing does."""

    def _refuse(self, message: Any, *_: Any, **__: Any) -> NoReturn:
        msg = (
            f"{message!r} was listed, not claimed, so it cannot be settled or extended. "
            "Claim it with consume()."
        )
        raise ClaimLost(msg, [message])

    ack: Callable[..., None] = _refuse
    nack: Callable[..., None] = _refuse
    release: Callable[..., None] = _refuse
    reject: Callable[..., None] = _refuse
    extend: Callable[..., None] = _refuse
    reply: Callable[..., NoReturn] = _refuse


def plain_pages(selection: Selection, size: int) -> Iterator[Sequence[Message]]:
    """All messages of a selection by id, so many at a time, their payloads as without kinds."""
    return selection._plain_pages(size)  # noqa: SLF001 - for the export and the command line
