"""Selection: look at messages without claiming them, by status, key, kind or any SQL condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import Select, and_, func, select

from queue_over_sql.context import UNDECODABLE
from queue_over_sql.dialects.rows import (
    archive_columns,
    message_columns,
    read_archive_rows,
    read_rows,
)
from queue_over_sql.errors import ClaimLost
from queue_over_sql.message import Message, Outcome, Status
from queue_over_sql.settings import check_choice, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.context import QueueContext
    from queue_over_sql.message import MessageRow


class Selection:
    """Some messages of a queue or of its archive, in the order of their ids.

    What is listed carries no claim: the verbs of such a message raise ``ClaimLost``.
    """

    def __init__(
        self,
        context: QueueContext,
        *,
        archived: bool,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> None:
        self._context = context
        self._archived = archived
        tables = context.tables
        self._table = tables.archive if archived else tables.live
        self._conditions: list[ColumnElement[bool]] = [] if where is None else [where]
        if status is not None:
            self._conditions.append(self._status(status))
        if key is not None:
            self._conditions.append(self._table.c.message_key == key)
        if kind is not None:
            self._conditions.append(self._table.c.kind == kind)

    def list(self, limit: int = 100, after: int | None = None) -> list[Message]:
        """One page of messages, ordered by id.

        Args:
            limit: length of the page.
            after: id of the last message of the page before.
        """
        check_whole("limit", limit)
        tables, sql = self._context.tables, self._context.sql
        names = archive_columns(tables) if self._archived else message_columns(tables, self._table)
        statement = self._where(select(*names)).order_by(self._table.c.id).limit(limit)
        if after is not None:
            statement = statement.where(self._table.c.id > after)

        def act(connection: Connection) -> list[MessageRow]:
            rows = connection.execute(statement).all()
            if self._archived:
                return read_archive_rows(sql, rows)
            return [row._replace(listed=True) for row in read_rows(sql, rows)]

        return [self._listed(row) for row in self._context.run(act)]

    def first(self) -> Message | None:
        """The message with the lowest id; None where there is none."""
        page = self.list(limit=1)
        return page[0] if page else None

    def count(self) -> int:
        """How many messages there are."""
        statement = self._where(select(func.count()).select_from(self._table))
        return int(self._context.run(lambda c: c.execute(statement).scalar_one()))

    def _listed(self, row: MessageRow) -> Message:
        """A message; with its payload as it is stored where that cannot be decoded."""
        try:
            return self._context.message(row, _Unclaimed())
        except UNDECODABLE:
            return self._context.raw_message(row, _Unclaimed())

    def _where(self, statement: Select[Any]) -> Select[Any]:
        return statement.where(*self._conditions)

    def _status(self, status: str) -> ColumnElement[bool]:
        if self._archived:
            check_choice("status", status, [outcome.value for outcome in Outcome])
            return self._table.c.outcome == str(status)
        check_choice("status", status, [state.value for state in Status])
        columns, now = self._table.c, self._context.tables.dialect.now()
        unclaimed = columns.consumer_id.is_(None)
        return {
            Status.READY: and_(unclaimed, columns.available_at <= now),
            Status.DELAYED: and_(unclaimed, columns.available_at > now),
            Status.HELD: and_(unclaimed, columns.available_at.is_(None)),
            Status.CLAIMED: columns.consumer_id.is_not(None),
        }[Status(status)]


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


class Archive:
    """The finished messages that a queue keeps."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    def messages(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> Selection:
        """Select archived messages.

        Args:
            status: an outcome: ``done``, ``failed``, ``rejected`` or ``expired``.
            key: the key they were published under.
            kind: the name of their payload's type.
            where: any SQLAlchemy condition on ``table``.

        Raises:
            ValueError: there is no such outcome.
        """
        return Selection(
            self._context, archived=True, status=status, key=key, kind=kind, where=where
        )

    @property
    def table(self) -> Any:
        """The archive's SQLAlchemy ``Table``."""
        return self._context.tables.archive
