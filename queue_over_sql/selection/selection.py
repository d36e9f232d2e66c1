"""List, count, edit and remove messages without claiming them, and operations on a whole queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from sqlalchemy import and_, literal, select

from queue_over_sql.errors import ClaimLost, DatabaseRefused, PayloadInvalid, no_groups
from queue_over_sql.message import Message
from queue_over_sql.queues.context import once_more
from queue_over_sql.queues.decoding import UNDECODABLE, decoded, decoded_plainly, undecoded
from queue_over_sql.schema.queue_tables import MOST_ATTEMPTS
from queue_over_sql.selection.operations import (
    Criteria,
    EditResult,
    Page,
    count_selected,
    edit_messages,
    has_status,
    last_id,
    list_columns,
    list_ids,
    list_messages,
    move_to_front,
    remove_messages,
)
from queue_over_sql.selection.unreadable import can_be_unreadable, list_apart
from queue_over_sql.sql.conditions import (
    check_condition,
    check_fields,
    check_payload_value,
    payload_path,
    rebased,
)
from queue_over_sql.values.checks import (
    check_choice,
    check_flag,
    check_function,
    check_id,
    check_text,
    check_whole,
)
from queue_over_sql.values.durations import Duration, instant_to_microseconds, to_microseconds
from queue_over_sql.values.limits import GROUP_LENGTH, KEY_LENGTH, KIND_LENGTH
from queue_over_sql.values.states import Outcome, Status
from queue_over_sql.values.texts import printable

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import ColumnElement

    from queue_over_sql.message import CallersConnection, MessageRow
    from queue_over_sql.queues.context import QueueContext

    Progress = Callable[[int], None]


T = TypeVar("T")
BATCH = 500
"""How many messages each transaction changes if ``progress`` is given."""


class Selection:
    """The matching messages of a queue or of its archive, ordered by id.

    Listed messages are not claimed, so their verbs raise ``ClaimLost``.

    Raises:
        QueueNotFound, DatabaseUnavailable, ServiceClosed: every verb may raise these.
        WrongDatabase: ``connection`` belongs to another database.
    """

    _archived: ClassVar[bool]

    def __init__(
        self,
        context: QueueContext,
        *,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        group: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> None:
        self._context = context
        if group is not None and not context.tables.grouped:
            # Another process may have turned groups on, which changes the tables.
            context.look_again()
        tables = context.tables
        self._table = tables.archive if self._archived else tables.live
        conditions = []
        if where is not None:
            check_condition(where)
            conditions.append(rebased(where, self._table))
        named = None if status is None else self._status(status)
        self._check_content(key=key, kind=kind, payload=payload)
        if (key := check_text("key", key, KEY_LENGTH)) is not None:
            conditions.append(self._table.c.message_key == key)
        if (kind := check_text("kind", kind, KIND_LENGTH)) is not None:
            conditions.append(self._table.c.kind == kind)
        if group is not None:
            conditions.append(self._in_group(group))
        if payload:
            conditions += self._fields(self._table.c.payload, payload)
        of_group = group is not None and not self._archived
        self._chosen = Criteria(self._archived, conditions, named, of_group)

    @once_more
    def list(
        self,
        limit: int = 100,
        after: int | None = None,
        *,
        newest_first: bool = False,
        connection: CallersConnection | None = None,
    ) -> list[Message]:
        """Return one page of messages, ordered by id.

        Args:
            limit: the maximum number of messages.
            after: id of the last message of the previous page.
            newest_first: whether the highest ids come first.
            connection: the caller's own transaction, which sees what it has not committed.
        """
        check_flag("newest_first", newest_first)
        limit = check_whole("limit", limit)
        if after is not None:
            after = check_id("after", after)
        sql, chosen, page = self._context.sql, self._chosen, Page(limit, after, newest_first)
        try:
            rows = self._context.run(lambda c: list_messages(c, sql, chosen, page), connection)
        except (DatabaseRefused, PayloadInvalid, UnicodeError) as error:
            # It may have ended the caller's transaction.
            if connection is not None or not can_be_unreadable(error):
                raise
            rows = list_apart(self._context, chosen, page)
        return [self._listed(row) for row in rows]

    def _plain_pages(self, limit: int) -> Iterator[Sequence[Message]]:
        """All messages, page by page, with payloads undecoded by their kinds."""
        sql, after = self._context.sql, None
        while True:
            rows = self._context.run(
                lambda c: list_messages(c, sql, self._chosen, Page(limit, after))  # noqa: B023 - runs at once
            )
            if rows:
                yield [self._plain(row) for row in rows]
            if len(rows) < limit:
                return
            after = rows[-1].id

    def first(self, *, connection: CallersConnection | None = None) -> Message | None:
        """Return the message with the lowest id; None if there is none."""
        page = self.list(limit=1, connection=connection)
        return page[0] if page else None

    @once_more
    def count(self, *, connection: CallersConnection | None = None) -> int:
        """Count the messages."""
        sql, chosen = self._context.sql, self._chosen
        return self._context.run(lambda c: count_selected(c, sql, chosen), connection)

    @once_more
    def remove(
        self,
        *,
        connection: CallersConnection | None = None,
        progress: Progress | None = None,
    ) -> EditResult:
        """Permanently remove the messages; the keys of live messages become free.

        Args:
            connection: the caller's own transaction, which this does not commit.
            progress: remove in transactions of 500 messages, and call this function after each with
                the number so far.

        Returns:
            How many were removed; ``skipped`` counts those that a consumer holds, which stay.
        """
        check_function("progress", progress)
        sql, chosen = self._context.sql, self._chosen
        if progress is None or connection is not None:
            return self._context.run(remove_messages.of(sql, chosen), connection)
        removed = skipped = 0
        for batch in self._batches():
            edited = self._context.run(remove_messages.of(sql, batch))
            removed, skipped = removed + edited, skipped + edited.skipped
            progress(removed)
        return EditResult(removed, skipped)

    def _batches(self) -> Iterator[Criteria]:
        context, column = self._context, self._table.c.id
        last = context.run(lambda c: last_id(c, context.sql, self._chosen))
        rest = self._chosen
        while last is not None:
            ids = context.run(lambda c: list_ids(c, context.sql, rest, Page(BATCH)))  # noqa: B023 - runs at once
            if len(ids) < BATCH or ids[-1] >= last:
                yield rest.also(column <= last)
                return
            yield rest.also(column <= ids[-1])
            rest = self._chosen.also(column > ids[-1])

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

    def _in_group(self, group: str) -> ColumnElement[bool]:
        tables = self._context.tables
        if not tables.grouped:
            raise ValueError(no_groups(self._context.name))
        name = check_text("group", group, GROUP_LENGTH, least=0)
        named = tables.archived_group() if self._archived else tables.live.c.group_key
        return named == literal(name, tables.live.c.group_key.type)

    def _check_content(self, **filters: object) -> None:
        named = [name for name, value in filters.items() if value not in (None, {})]
        if named:
            msg = (
                f"{', '.join(named)}: the messages of queue {self._context.name!r} are rows of "
                f"{self._table.fullname!r}; select them with where= and the columns of the table"
            )
            self._context.tables.expect_payloads(ValueError(msg))

    def _fields(
        self, column: ColumnElement[Any], wanted: Mapping[str, Any]
    ) -> Sequence[ColumnElement[bool]]:
        check_fields(wanted)
        # The status never changes, and a query in a constructor would be a surprise.
        payload_type = self._context.known_settings.payload
        if wanted and payload_type != "json":
            msg = (
                f"payload: queue {self._context.name!r} has {payload_type!r} payloads, which have "
                "no fields"
            )
            raise ValueError(msg)
        conditions = []
        for path, value in wanted.items():
            steps = payload_path(path)
            value = check_payload_value(path, value)  # noqa: PLW2901 - the same one, plain
            conditions.append(self._context.tables.expressions.payload_equals(column, steps, value))
        return conditions

    def _status(self, status: str) -> ColumnElement[bool]:
        choices = [each.value for each in (Outcome if self._archived else Status)]
        try:
            check_choice("status", status, choices)
        except ValueError as error:
            advice = (
                f"Messages that are {status} are in the queue, not in the archive"
                if status in [*Status]
                else "Dead letters are in the archive: failed, rejected and expired"
            )
            msg = f"{error}. {advice}"
            raise ValueError(msg) from None
        if self._archived:
            ended_so: ColumnElement[bool] = self._table.c.outcome == Outcome(status).value
            return ended_so
        return has_status(self._context.tables, Status(status))


class LiveSelection(Selection):
    """The matching live messages of a queue, with verbs to edit those that no consumer holds.

    Each verb is one statement. It returns how many messages it changed. ``skipped`` of the result
    counts the matching messages that a consumer holds; they stay unchanged. Each verb accepts the
    caller's own transaction as ``connection``, which it does not commit.
    """

    _archived = False

    def reschedule(
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        connection: CallersConnection | None = None,
    ) -> EditResult:
        """Make messages due at a time or after a delay, and end the hold of held ones.

        Raises:
            ValueError: both were given or none, or the time has no time zone.
        """
        if (at is None) == (delay is None):
            msg = "give either at or delay"
            raise ValueError(msg)
        if at is not None:
            return self._edit(connection, available_at=instant_to_microseconds(at, "at"))
        wait = to_microseconds(delay or 0, "delay", zero=True)
        now = self._context.tables.expressions.now()
        return self._edit(connection, available_at=now + wait)

    @once_more
    def prioritize(
        self,
        *,
        priority: int | None = None,
        front: bool = False,
        connection: CallersConnection | None = None,
    ) -> EditResult:
        """Move messages to another priority, or to the front of their own, due now.

        The next claim of every consumer finds them.

        Args:
            priority: the new priority; among its messages they are ordered by their due time.
            front: move them before all others of their priority, ordered by id; held messages stay
                held.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            ValueError: both were given or none, or the queue does not have this priority.
        """
        if check_flag("front", front) == (priority is not None):
            msg = "give either priority or front=True"
            raise ValueError(msg)
        if priority is not None:
            last = self._context.settings.priorities - 1
            return self._edit(connection, priority=check_whole("priority", priority, 0, last))
        sql, chosen = self._context.sql, self._chosen
        return self._context.run(move_to_front.of(sql, chosen), connection)

    def set_max_attempts(
        self, max_attempts: int, *, connection: CallersConnection | None = None
    ) -> EditResult:
        """Allow so many attempts of each message, whatever its publisher or the queue allows.

        Args:
            max_attempts: how many attempts in all, those before included.
            connection: the caller's own transaction, which this does not commit.

        Raises:
            TypeError, ValueError: it is not a whole number from 1 to 2,147,483,647.
        """
        most = check_whole("max_attempts", max_attempts, 1, MOST_ATTEMPTS)
        return self._edit(connection, max_attempts=most)

    def hold(self, *, connection: CallersConnection | None = None) -> EditResult:
        """Hold messages: they are not delivered until ``unhold`` or ``reschedule``."""
        return self._edit(connection, available_at=None)

    def unhold(self, *, connection: CallersConnection | None = None) -> EditResult:
        """End the hold of messages; they are due at their original time."""
        sql, tables = self._context.sql, self._context.tables
        held, values = self._chosen.also(tables.is_held()), {"available_at": tables.due_first()}
        # Repeated, it would count none of what it changed.
        unholding = edit_messages.of(sql, held, values)._replace(repeatable=False)
        return self._context.run(unholding, connection)

    @once_more
    def _edit(self, connection: CallersConnection | None, **values: Any) -> EditResult:
        sql, chosen = self._context.sql, self._chosen
        return self._context.run(edit_messages.of(sql, chosen, values), connection)


def condition_of(
    context: QueueContext, payload: Mapping[str, Any], where: ColumnElement[bool] | None
) -> ColumnElement[bool]:
    """The condition for live messages with these fields of the payload.

    Raises:
        TypeError, ValueError, UnsupportedByEngine: as ``Queue.messages``.
    """
    selection = LiveSelection(context, payload=payload, where=where)
    return and_(*selection._chosen.conditions)  # noqa: SLF001 - its own module


def rows_of(
    selection: Selection,
    columns: Sequence[ColumnElement[Any]],
    *,
    limit: int,
    after: int | None = None,
    newest_first: bool = False,
) -> Sequence[Any]:
    """The given columns of messages, with their labels, by id; payloads are not read."""
    sql, chosen = selection._context.sql, selection._chosen  # noqa: SLF001 - its own module
    page = Page(limit, after, newest_first)
    return selection._context.run(  # noqa: SLF001
        lambda connection: list_columns(connection, sql, chosen, page, columns)
    )


class _Unclaimed:
    """The settler of a message that was only listed; it refuses every verb."""

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
    token: Callable[..., NoReturn] = _refuse


def plain_pages(selection: Selection, size: int) -> Iterator[Sequence[Message]]:
    """All messages of a selection by id, page by page, with payloads undecoded by their kinds."""
    return selection._plain_pages(size)  # noqa: SLF001 - for the export and the command line


def read_traceback(context: QueueContext, message_id: int) -> str | None:
    """The traceback of a message's last failure; see ``Queue.last_traceback``."""
    for table in dict.fromkeys((context.tables.live, context.tables.archive)):
        if "last_traceback" in table.c:
            wanted = select(table.c.last_traceback).where(table.c.id == message_id)
            found = context.run(lambda c: c.execute(wanted).first())  # noqa: B023 - runs at once
            if found is not None:
                return printable(found[0])
    return None
