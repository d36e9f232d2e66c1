"""Delivery: from claimed rows to messages in the caller's hands, and back into the verbs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from queue_over_sql.conditions import check_condition
from queue_over_sql.context import UNDECODABLE, undecodable
from queue_over_sql.errors import ClaimLost, QueueError, shown
from queue_over_sql.kinds import UnfitPayload
from queue_over_sql.message import Message
from queue_over_sql.store import TakenFate, Where
from queue_over_sql.unfit import aside

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql.context import QueueContext
    from queue_over_sql.message import MessageRow, Settler

_log = logging.getLogger(__name__)


class Delivery:
    """Hands out rows of one queue as messages, and sets aside what cannot be decoded."""

    def __init__(
        self,
        context: QueueContext,
        settler: Settler,
        set_aside: Callable[[Message, str], None],
    ) -> None:
        self._context = context
        self._settler = settler
        self._set_aside = set_aside

    def messages(self, rows: Sequence[MessageRow]) -> list[Message]:
        """The messages of claimed rows; those that cannot be decoded are given back on the spot."""
        messages = []
        for row in rows:
            try:
                messages.append(self._context.message(row, self._settler))
            except UNDECODABLE as error:
                self._give_back(row, error)
        return messages

    def fate(self, row: MessageRow, now: int) -> TakenFate:
        """What becomes of a taken message: done, or buried or set aside where it is unreadable.

        Args:
            row: of the message.
            now: by the database's clock, in microseconds.
        """
        settings = self._context.settings
        keep_dead, dedup = settings.archive != "none", settings.dedup_us
        try:
            self._context.message(row, self._settler)
        except UnfitPayload as error:
            reason = self._reason(row, error)
            message = self._context.plain_message(row, self._settler)
            waits = aside(message, reason, now, settings.kind_timeout)
            return TakenFate(keep_dead, dedup, None if waits else reason, waits)
        except UNDECODABLE as error:
            return TakenFate(keep_dead, dedup, self._reason(row, error))
        return TakenFate(settings.archive == "all", dedup)

    def _give_back(self, row: MessageRow, error: Exception) -> None:
        reason = self._reason(row, error)
        try:
            if isinstance(error, UnfitPayload):
                self._set_aside(self._context.plain_message(row, self._settler), reason)
            else:
                self._settler.nack(self._context.raw_message(row, self._settler), error=reason)
        except QueueError as failure:
            _log.warning("Message %d of queue %s: %s", row.id, self._context.name, failure)

    def _reason(self, row: MessageRow, error: Exception) -> str:
        reason = undecodable(error)
        _log.warning("Message %d of queue %s: %s", row.id, self._context.name, reason)
        return reason


def as_list(messages: Message | Sequence[Message]) -> list[Message]:
    """One message or several, each once.

    Raises:
        TypeError: something is no message.
    """
    if not isinstance(messages, Message | Iterable):
        msg = f"messages must be a Message or several, not {type(messages).__name__}"
        raise TypeError(msg)
    given = [messages] if isinstance(messages, Message) else list(messages)
    for item in given:
        if not isinstance(item, Message):
            msg = f"messages must be Message objects as consume() gave them, not {shown(item)}"
            raise TypeError(msg)
    return list(dict.fromkeys(given))


def as_where(condition: ColumnElement[bool] | None) -> Where | None:
    """Read ``where=``.

    Raises:
        TypeError: it is no SQLAlchemy expression.
    """
    if condition is None:
        return None
    check_condition(condition)
    return Where(condition)


@contextlib.contextmanager
def marking_settled(messages: Sequence[Message]) -> Iterator[None]:
    """Messages are settled when it worked, and when they turned out to be lost."""
    try:
        yield
    except ClaimLost:
        mark_settled(messages)
        raise
    mark_settled(messages)


def mark_settled(messages: Sequence[Message]) -> None:
    """Note on the messages that one of their verbs was called."""
    for message in messages:
        message.settled = True
