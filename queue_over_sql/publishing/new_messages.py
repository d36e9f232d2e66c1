"""New messages: their content, checked and encoded, alone and in batches."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_over_sql.errors import PayloadInvalid, PayloadTooLarge
from queue_over_sql.statements.requests import NewRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Sized


# Limit of text in one INSERT, unless the server's own limit is lower.
_CHARACTERS_PER_INSERT = 2_000_000


# A character takes at most four bytes of a statement, as UTF-8 or with a backslash before it. The
# other values of a row take less than so many.
BYTES_PER_CHARACTER = 4


CHARACTERS_PER_ROW = 64


CONTENT: Final[Mapping[str, Any]] = {
    "kind": None,
    "payload": None,
    "headers": None,
    "priority": 0,
    "max_attempts": None,
    "lease_us": None,
}
"""The columns of content that each queue has, and their values in a message without options."""


_REFUSALS: Final = frozenset({PayloadInvalid, PayloadTooLarge, TypeError, ValueError})


# Those that often have the same value in many messages.
_ALIKE = frozenset({"message_key", *CONTENT}) - {"payload"}


class Room(NamedTuple):
    """How many messages may be unfinished beside a new one (``when_full``).

    Attributes:
        limit: of the group, unless it has one of its own, or of the queue.
        replaces: whether the new one replaces one that waits; else it is refused.
        group: None: all messages of the queue count.
        most: whether it is the largest length of the queue, which may be large.
    """

    limit: int
    replaces: bool
    group: str | None
    most: bool = False


class NewMessage(NamedTuple):
    """A publication, checked and encoded; ``at``, ``delay`` and ``expires`` in microseconds.

    ``dedup``: whether a recently finished message may have its key. ``room``: None if a publish
    does not ask whether there is room.
    """

    key: str | None
    content: Mapping[str, Any]
    delay: int
    at: int | None
    dedup: bool = False
    expires: int | None = None
    room: Room | None = None

    def given(
        self, parameters: Mapping[str, str], now: int | None, *, timed: bool = False
    ) -> dict[str, Any]:
        """The bind parameters of a publish, by the database's clock or by ``now`` of its batch.

        NULLs are left out. So is the time of a message that is due at once, unless ``timed``.
        """
        content = self.content.items()
        given = {parameters[name]: value for name, value in content if value is not None}
        if self.key is not None:
            given["p_message_key"] = self.key
        if timed or now is not None or self.delay or self.at is not None:
            given |= {"p_delay": self.delay, "p_at": self.at if now is None else self.due(now)}
        if timed or self.expires is not None:
            given["p_expires"] = self.expires
            if now is not None and self.at is None and self.expires is not None:
                # The statement counts from the time at which it is due, which includes the delay.
                given["p_expires"] = self.expires - self.delay
        return given

    def due(self, now: int) -> int:
        """When it is due if it is published at ``now``."""
        return now + self.delay if self.at is None else self.at

    def expiry(self, now: int) -> int | None:
        """Until when it must be started if it is published at ``now``."""
        begins = now if self.at is None else max(now, self.at)
        return None if self.expires is None else begins + self.expires


class MixedMessages:
    """Messages that may each have options of their own."""

    def __init__(self, messages: Sequence[NewMessage]) -> None:
        self._messages = messages

    @property
    def keyed(self) -> bool:
        """Whether one of them has a key."""
        return any(message.key is not None for message in self._messages)

    @property
    def dedup(self) -> bool:
        """Whether a recently finished message may have the key of one of them."""
        return any(message.dedup for message in self._messages)

    @property
    def expiring(self) -> bool:
        """Whether one of them expires."""
        return any(message.expires is not None for message in self._messages)

    @property
    def needs_room(self) -> bool:
        """Whether a publish must ask whether there is room for them."""
        return any(message.room is not None for message in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def part(self, start: int, end: int) -> MixedMessages:
        """Those from index ``start`` to before ``end``."""
        return MixedMessages(self._messages[start:end])

    def messages(self) -> Sequence[NewMessage]:
        """The messages one by one."""
        return self._messages

    def weights(self) -> Iterator[int]:
        """The size of the text of each: payload, headers, and the queue's own columns."""
        return map(_weight, self._messages)

    def rows(self, now: int) -> NewRows:
        """Their rows, published at ``now`` (microseconds); shared values are given once."""
        messages = self._messages
        keys = [message.key for message in messages if message.key is not None]
        columns: dict[str, list[Any]] = {"message_key": [message.key for message in messages]}
        contents = [message.content for message in messages]
        for name in contents[0]:
            columns[name] = [content[name] for content in contents]
        same: dict[str, Any] = {"published_at": now}
        differing: dict[str, Sequence[Any]] = {}
        for name, column in columns.items():
            if name in _ALIKE and column.count(column[0]) == len(column):
                same[name] = column[0]
            elif all(value is None for value in column):
                same[name] = None
            else:
                differing[name] = column
        if any(message.delay or message.at is not None for message in messages):
            due = [message.due(now) for message in messages]
            differing |= {"scheduled_at": due, "available_at": due}
        else:
            same |= {"scheduled_at": now, "available_at": now}
        if self.expiring:
            differing["expires_at"] = [message.expiry(now) for message in messages]
        locking = len(messages) > 1 and bool(keys) and len(set(keys)) == len(keys)
        return NewRows(len(messages), same, differing, locking)


class PlainMessages:
    """Messages that only have payloads, which are encoded for the table.

    ``blank`` is the content of a message without its payload.
    """

    keyed = False
    dedup = False
    expiring = False
    needs_room = False

    def __init__(self, payloads: Sequence[str | bytes], blank: Mapping[str, Any]) -> None:
        self._payloads = payloads
        self._blank = blank

    def __len__(self) -> int:
        return len(self._payloads)

    def part(self, start: int, end: int) -> PlainMessages:
        """As in ``MixedMessages``."""
        return PlainMessages(self._payloads[start:end], self._blank)

    def messages(self) -> list[NewMessage]:
        """The messages one by one."""
        blank = self._blank
        return [NewMessage(None, {**blank, "payload": each}, 0, None) for each in self._payloads]

    def weights(self) -> Iterator[int]:
        """The size of the text of each."""
        return map(len, self._payloads)

    def rows(self, now: int) -> NewRows:
        """Their rows."""
        same = _plain_values(self._blank, now)
        return NewRows(len(self._payloads), same, {"payload": self._payloads})


class PlainPayloads:
    """Payloads without options. Each is encoded only when it is sent, while the server works."""

    def __init__(
        self,
        payloads: Sequence[Any],
        encode: Callable[[Any], str | bytes],
        blank: Mapping[str, Any],
    ) -> None:
        self._payloads = payloads
        self._encode = encode
        self._blank = blank

    def encoded(self, start: int = 0) -> PlainMessages:
        """All of them, encoded now; ``start`` is the place of the first among all items.

        Raises:
            PayloadInvalid, PayloadTooLarge: one of them is invalid.
        """
        encoded: list[str | bytes] = []
        with naming_item(encoded, self._payloads, start):
            encoded.extend(map(self._encode, self._payloads))
        return PlainMessages(encoded, self._blank)

    def rows(self, now: int) -> NewRows:
        """Their rows, published at ``now``; they can be read once, which raises as ``encoded``."""
        encoded = map(self._encode, self._payloads)
        return NewRows(len(self._payloads), _plain_values(self._blank, now), {"payload": encoded})


@contextlib.contextmanager
def naming_item(done: Sized, items: Sized, start: int = 0) -> Iterator[None]:
    """Say which of several items is refused: the one after those that are done.

    ``start``: how many items came before these.
    """
    try:
        yield
    except (PayloadInvalid, PayloadTooLarge, TypeError, ValueError) as error:
        if (len(items) == 1 and not start) or type(error) not in _REFUSALS:
            raise
        # With the attributes of its class, whose constructor would write another text.
        named = type(error).__new__(type(error), f"items[{start + len(done)}]: {error}")
        vars(named).update(vars(error))
        raise named from error


def chunks(
    batch: Batch, rows: int, statement_bytes: int | None = None, *, rounded: bool = True
) -> Iterator[Batch]:
    """Split a batch so that each part fits one statement: by number of rows and size of text.

    With ``rounded``, sizes are powers of two, so that fewer statements are compiled. A part of one
    message may be larger than the server's limit of ``statement_bytes``.
    """
    most = _CHARACTERS_PER_INSERT
    if statement_bytes is not None:
        most = min(most, statement_bytes // BYTES_PER_CHARACTER)
    if not rounded and 0 < len(batch) <= rows and sum(batch.weights()) <= most:
        yield batch
        return
    start = 0
    ends = list(itertools.accumulate(batch.weights(), initial=0))
    while start < len(batch):
        left = len(batch) - start
        size = min(rows, 1 << (left.bit_length() - 1) if rounded else left)
        while size > 1 and ends[start + size] - ends[start] > most - size * CHARACTERS_PER_ROW:
            size //= 2
        yield batch.part(start, start + size)
        start += size


Batch = MixedMessages | PlainMessages


def _plain_values(blank: Mapping[str, Any], now: int) -> dict[str, Any]:
    same = {**blank, "message_key": None}
    same |= {"published_at": now, "scheduled_at": now, "available_at": now}
    del same["payload"]
    return same


def _weight(message: NewMessage) -> int:
    content = message.content
    weight = len(content["payload"]) + len(content["headers"] or "") + len(message.key or "")
    if len(content) > len(CONTENT):
        weight += sum(len(value) for value in content.values() if isinstance(value, str | bytes))
    return weight
