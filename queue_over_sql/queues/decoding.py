"""Decoding: from claimed rows to messages, and the handling of rows that cannot be decoded."""

from __future__ import annotations

import contextlib
import json
import logging
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import QueueError, visible
from queue_over_sql.message import Message, MessageRow, Unreadable, expiry_of_row
from queue_over_sql.payloads import codec as payloads
from queue_over_sql.payloads.types import UnfitPayload
from queue_over_sql.sql.conditions import check_condition
from queue_over_sql.statements.requests import LONGEST_DEFERRAL_US, Aside, Disposition, Where
from queue_over_sql.values.durations import MICROSECOND, instant_to_microseconds
from queue_over_sql.values.headers import UNFIT_SINCE
from queue_over_sql.values.reasons import not_started_within
from queue_over_sql.values.states import Outcome
from queue_over_sql.values.texts import is_unicode, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from sqlalchemy import ColumnElement

    from queue_over_sql.message import Settler
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.settings import EffectiveSettings
    from queue_over_sql.statements.requests import Feed


_log = logging.getLogger(__name__)

UNDECODABLE = (ValueError, RecursionError)
"""The exceptions that decoding a stored payload may raise."""

_SHORTEST: Final = 1_000_000


def deferral(message: Message, reason: str, now: int, timeout: timedelta) -> Aside | None:
    """How to defer a message that does not fit its kind; None if that cannot go on.

    Then it was deferred for too long, or its headers are nested too deeply to be written again.

    ``message`` has its payload without its kind; ``now`` is the database's clock in microseconds.
    """
    published = instant_to_microseconds(message.published_at, "published_at")
    since = _since(message.headers.get(UNFIT_SINCE), published, now)
    left = timeout // MICROSECOND - (now - since)
    if left <= 0:
        return None
    growing = min(LONGEST_DEFERRAL_US, max(_SHORTEST, (now - since) // 2))
    noted = message.headers | {UNFIT_SINCE: since / 1_000_000}
    try:
        headers = payloads.encode_read_headers(noted)
    except payloads.UnreadableHeaders:
        return None
    return Aside(min(growing, left), headers, reason)


def _since(header: Any, published: int, now: int) -> int:
    """The time in the header, unless it is invalid or before the message was published.

    A publisher may put anything into it, and may copy the headers of another message.
    """
    if isinstance(header, bool) or not isinstance(header, int | float):
        return now
    since = header * 1_000_000
    return round(since) if published <= since <= now else now


class Decoder:
    """Turns rows of one queue into messages, and sets aside rows that cannot be decoded."""

    def __init__(
        self,
        context: QueueContext,
        settler: Settler,
        defer: Callable[[Message, str], None],
        expire: Callable[[Sequence[Message]], None],
    ) -> None:
        self._context = context
        self._settler = settler
        self._defer = defer
        self._expire_claimed = expire

    def messages(self, rows: Sequence[MessageRow]) -> list[Message]:
        """The messages of claimed rows; those that cannot be decoded are given back at once.

        Those that had expired when they were claimed end.
        """
        if any(map(expiry_of_row, rows)):
            expired = [row for row in rows if row.is_expired(row.claimed_at)]
            if expired:
                self._expire(expired)
                rows = [row for row in rows if row not in expired]
        with contextlib.suppress(*UNDECODABLE):
            return decoded_rows(self._context, rows, self._settler)
        messages = []
        for row in rows:
            try:
                messages.append(decoded(self._context, row, self._settler))
            except UNDECODABLE as error:
                self._give_back(row, error)
        return messages

    @property
    def done(self) -> Disposition:
        """The disposition of a taken message that can be read."""
        settings = self._context.settings
        return Disposition(settings.archive == "all", settings.dedup_us)

    def taken(
        self, rows: Sequence[MessageRow], clock: Callable[[], int]
    ) -> tuple[list[Message], dict[Disposition, list[MessageRow]]]:
        """The messages of taken rows, and the dispositions of the others.

        These cannot be decoded, or have expired. ``clock`` is the database's, in microseconds.
        """
        unreadable: dict[Disposition, list[MessageRow]] = {}
        if any(map(expiry_of_row, rows)):
            settings, now = self._context.settings, clock()
            for row in rows:
                if row.is_expired(now):
                    end = expiry(row, settings, self._context.feed)
                    unreadable.setdefault(end, []).append(row)
            rows = [row for row in rows if not row.is_expired(now)]
        with contextlib.suppress(*UNDECODABLE):
            return decoded_rows(self._context, rows, self._settler), unreadable
        messages: list[Message] = []
        for row in rows:
            try:
                messages.append(decoded(self._context, row, self._settler))
            except UNDECODABLE as error:
                unreadable.setdefault(self._disposition(row, clock, error), []).append(row)
        return messages, unreadable

    def _disposition(
        self, row: MessageRow, clock: Callable[[], int], error: Exception
    ) -> Disposition:
        settings = self._context.settings
        keep_dead, dedup = settings.archive != "none", settings.dedup_us
        blocks, feed = settings.blocks_groups, self._context.feed
        if isinstance(error, UnfitPayload):
            reason = self._reason(row, error)
            message = decoded_plainly(self._context, row, self._settler)
            waits = deferral(message, reason, clock(), settings.kind_timeout)
            reason_of_end = None if waits else reason
            return Disposition(keep_dead, dedup, reason_of_end, waits, blocks=blocks, feed=feed)
        return Disposition(keep_dead, dedup, self._reason(row, error), blocks=blocks, feed=feed)

    def _expire(self, rows: Sequence[MessageRow]) -> None:
        try:
            self._expire_claimed([undecoded(self._context, row, self._settler) for row in rows])
        except QueueError as failure:
            for row in rows:
                self._warn(row, str(failure))

    def _give_back(self, row: MessageRow, error: Exception) -> None:
        reason = self._reason(row, error)
        try:
            if isinstance(error, UnfitPayload):
                self._defer(decoded_plainly(self._context, row, self._settler), reason)
            else:
                self._settler.nack(undecoded(self._context, row, self._settler), error=reason)
        except QueueError as failure:
            self._warn(row, str(failure))

    def _reason(self, row: MessageRow, error: Exception) -> str:
        reason = undecodable(error)
        self._warn(row, reason)
        return reason

    def _warn(self, row: MessageRow, text: str) -> None:
        said = visible(text, keep="")
        _log.warning("Message %d of queue %s: %s", row.id, self._context.name, said)


def expiry(row: MessageRow, settings: EffectiveSettings, feed: Feed | None) -> Disposition:
    """How an expired message ends."""
    keep, dedup_us = settings.archive != "none", settings.dedup_us
    waited = None if row.expires_at is None else row.expires_at - row.published_at
    reason = not_started_within(waited)
    return Disposition(keep, dedup_us, reason, outcome=Outcome.EXPIRED, feed=feed)


def as_where(condition: ColumnElement[bool] | None) -> Where | None:
    """Read ``where=``.

    Raises:
        TypeError: it is not an SQLAlchemy expression.
    """
    if condition is None:
        return None
    check_condition(condition)
    return Where(condition)


def decoded(context: QueueContext, row: MessageRow, settler: Settler) -> Message:
    """Turn a row into a message.

    Raises:
        UnfitPayload: the payload does not fit its kind here.
        ValueError: the payload does not have the queue's payload type.
    """
    message = decoded_plainly(context, row, settler)
    if context.kinds is not None and row.kind is not None:
        message.payload = context.kinds.decode(row.kind, message.payload)
    return message


def decoded_rows(
    context: QueueContext, rows: Sequence[MessageRow], settler: Settler
) -> list[Message]:
    """Turn rows into messages, as ``decoded`` does, but faster for queues of plain JSON.

    Raises:
        UnfitPayload: see ``decoded``.
        ValueError: see ``decoded``.
    """
    settings, tables = context.known_settings, context.tables
    plain = context.kinds is None and tables.is_plain
    if plain and settings.payload == "json" and _have_plain_words(rows, tables.own_columns):
        read, name, most = payloads.READ_JSON, context.name, settings.max_attempts
        with contextlib.suppress(*payloads.NOT_QUICK):
            return [
                Message(
                    row,
                    queue=name,
                    settler=settler,
                    payload=read(row.payload),
                    headers={} if row.headers is None else payloads.decode_headers(row.headers),
                    queue_max_attempts=most,
                )
                for row in rows
            ]
    return [decoded(context, row, settler) for row in rows]


def _read_payload(payload_type: str, stored: Any) -> Any:
    if payload_type == "json":
        try:
            return payloads.READ_JSON(stored)
        except payloads.NOT_QUICK:
            pass  # the slow way reads it, or raises the usual error
    return payloads.decode(payload_type, stored)


def decoded_plainly(context: QueueContext, row: MessageRow, settler: Settler) -> Message:
    """Turn a row into a message with its payload undecoded by its kind.

    Raises:
        ValueError: the payload does not have the queue's payload type, or a column value cannot be
            read.
    """
    settings = context.known_settings
    _check_readable(row)
    payload, own, row = context.tables.content(row, partial(_read_payload, settings.payload))
    return Message(
        row,
        queue=context.name,
        settler=settler,
        payload=payload,
        headers={} if row.headers is None else payloads.decode_headers(row.headers),
        queue_max_attempts=settings.max_attempts,
        own_row=own,
    )


def undecoded(context: QueueContext, row: MessageRow, settler: Settler) -> Message:
    r"""Turn a row that cannot be decoded into a message with the stored payload.

    Values that cannot be read become None; bytes that are no UTF-8 are written as ``\xff``.
    """
    columns = {name: _presentable(value) for name, value in row.columns.items()}
    shown = MessageRow._make(map(_presentable, row))._replace(columns=columns)
    return Message(
        shown,
        queue=context.name,
        settler=settler,
        payload=shown.payload,
        headers={},
        queue_max_attempts=context.known_settings.max_attempts,
    )


class _UnreadableColumn(ValueError):
    pass


WORDS: Final = ("message_key", "kind", "payload", "headers")
"""The columns of a message that hold texts of its publisher."""
_key, _kind = attrgetter("message_key"), attrgetter("kind")


def _have_plain_words(rows: Sequence[MessageRow], own_columns: Sequence[str]) -> bool:
    # Most queues have neither; then this takes no step of Python for each message.
    for read in (_key, _kind):
        if any(map(read, rows)) and not all(map(_is_plain, map(read, rows))):
            return False
    if not own_columns:
        return True
    return all(_is_plain(row.columns[name]) for name in own_columns for row in rows)


def _is_plain(word: Any) -> bool:
    return word is None or (isinstance(word, str) and is_unicode(word))


def _check_readable(row: MessageRow) -> None:
    named = [(name, getattr(row, name)) for name in WORDS]
    for name, value in [*named, *row.columns.items()] if row.columns else named:
        if isinstance(value, Unreadable):
            msg = f"its column {name!r} cannot be read: {value.error!r}"
            raise _UnreadableColumn(msg) from value.error
        if isinstance(value, str) and not is_unicode(value):
            msg = f"its column {name!r} is not valid UTF-8"
            raise _UnreadableColumn(msg)


def _presentable(value: Any) -> Any:
    if isinstance(value, Unreadable):
        return None
    return printable(value) if isinstance(value, str) else value


def undecodable(error: Exception) -> str:
    """The error text for a message whose payload this queue cannot read."""
    if isinstance(error, UnfitPayload):
        return str(error)
    if isinstance(error, _UnreadableColumn | payloads.UnreadableHeaders):
        return f"the message cannot be read: {error}"
    kind = "JSON" if isinstance(error, json.JSONDecodeError) else "what the queue holds"
    return f"the payload is not {kind}: {error}"
