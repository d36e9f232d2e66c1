"""New messages on their way in: what each has, the rows they become, and the chunks they go in."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from queue_over_sql.dialects.requests import NewRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# How much text one INSERT carries at most: servers bound it (MariaDB at 16 MiB by default).
_CHARACTERS_PER_INSERT = 2_000_000
# The columns of a message's content that each queue has.
_COMMON_COLUMNS = 6
# Of these, plain texts and numbers, many messages have the same.
_ALIKE = frozenset({"message_key", "kind", "headers", "priority", "max_attempts", "lease_us"})

B = TypeVar("B", bound="Batch")


class NewMessage(NamedTuple):
    """A publication, checked and encoded; ``at`` and ``delay`` in microseconds.

    ``dedup``: its key may be taken by a message that finished a short while ago.
    """

    key: str | None
    content: Mapping[str, Any]
    delay: int
    at: int | None
    dedup: bool = False

    def values(self, parameters: Mapping[str, str], now: int | None = None) -> dict[str, Any]:
        """The bind parameters of a publish by the database's clock, or by ``now`` of its batch.

        Args:
            parameters: their names, by column.
            now: in microseconds.
        """
        given = {parameters[name]: value for name, value in self.content.items()}
        at = self.at if now is None else self.due(now)
        return given | {"p_message_key": self.key, "p_delay": self.delay, "p_at": at}

    def given(self, parameters: Mapping[str, str], now: int | None) -> dict[str, Any]:
        """The same without what is NULL."""
        content = self.content.items()
        given = {parameters[name]: value for name, value in content if value is not None}
        if self.key is not None:
            given["p_message_key"] = self.key
        if now is not None or self.delay or self.at is not None:
            given |= {"p_delay": self.delay, "p_at": self.at if now is None else self.due(now)}
        return given

    def due(self, now: int) -> int:
        """When it is due if it is published at ``now``."""
        return now + self.delay if self.at is None else self.at


class Batch(Protocol):
    """Messages that go in together, checked and encoded."""

    @property
    def keyed(self) -> bool:
        """Whether one of them has a key."""
        ...

    @property
    def dedup(self) -> bool:
        """Whether the key of one may be taken by a message that finished a short while ago."""
        ...

    def __len__(self) -> int: ...

    def part(self, start: int, end: int) -> Self:
        """Those from the one at ``start`` to the one before ``end``."""
        ...

    def messages(self) -> Sequence[NewMessage]:
        """Each by itself."""
        ...

    def weights(self) -> Iterator[int]:
        """How much text each carries."""
        ...

    def rows(self, now: int) -> NewRows:
        """Their rows, published at ``now``, in microseconds."""
        ...


class MixedMessages:
    """Messages each of which may have options of its own."""

    def __init__(self, messages: Sequence[NewMessage]) -> None:
        self._messages = messages

    @property
    def keyed(self) -> bool:
        """Whether one of them has a key."""
        return any(message.key is not None for message in self._messages)

    @property
    def dedup(self) -> bool:
        """Whether the key of one may be taken by a finished one."""
        return any(message.dedup for message in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def part(self, start: int, end: int) -> MixedMessages:
        """Those from the one at ``start`` to the one before ``end``."""
        return MixedMessages(self._messages[start:end])

    def messages(self) -> Sequence[NewMessage]:
        """Each by itself."""
        return self._messages

    def weights(self) -> Iterator[int]:
        """How much text each carries: payload, headers, and columns of the queue's own."""
        return map(_weight, self._messages)

    def rows(self, now: int) -> NewRows:
        """Their rows; what all of them share is told once."""
        messages = self._messages
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
        return NewRows(len(messages), same, differing)


class PlainMessages:
    """Messages that are no more than their payloads.

    Args:
        payloads: encoded for the table.
        blank: the content of a message of which only the payload is missing.
    """

    keyed = False
    dedup = False

    def __init__(self, payloads: Sequence[str | bytes], blank: Mapping[str, Any]) -> None:
        self._payloads = payloads
        self._blank = blank

    def __len__(self) -> int:
        return len(self._payloads)

    def part(self, start: int, end: int) -> PlainMessages:
        """Those from the one at ``start`` to the one before ``end``."""
        return PlainMessages(self._payloads[start:end], self._blank)

    def messages(self) -> list[NewMessage]:
        """Each by itself."""
        blank = self._blank
        return [NewMessage(None, {**blank, "payload": each}, 0, None) for each in self._payloads]

    def weights(self) -> Iterator[int]:
        """How much text each carries."""
        return map(len, self._payloads)

    def rows(self, now: int) -> NewRows:
        """Their rows."""
        same = _plain_values(self._blank, now)
        return NewRows(len(self._payloads), same, {"payload": self._payloads})


class PlainPayloads:
    """Payloads without options that are encoded when each is wanted, while a server works.

    Args:
        payloads: as they were given.
        encode: encodes one for the table, or raises.
        blank: the content of a message of which only the payload is missing.
    """

    def __init__(
        self,
        payloads: Sequence[Any],
        encode: Callable[[Any], str | bytes],
        blank: Mapping[str, Any],
    ) -> None:
        self._payloads = payloads
        self._encode = encode
        self._blank = blank

    def encoded(self) -> PlainMessages:
        """All of them, encoded now.

        Raises:
            PayloadInvalid, PayloadTooLarge: of one of them.
        """
        return PlainMessages(list(map(self._encode, self._payloads)), self._blank)

    def rows(self, now: int) -> NewRows:
        """Their rows, published at ``now``, which can be read once; that may raise as above."""
        encoded = map(self._encode, self._payloads)
        return NewRows(len(self._payloads), _plain_values(self._blank, now), {"payload": encoded})


def chunks(batch: B, rows: int, *, rounded: bool = True) -> Iterator[B]:
    """Cut into what one statement takes.

    Args:
        batch: all.
        rows: at most so many at once.
        rounded: in powers of two, so that few statements have to be compiled.
    """
    if not rounded and 0 < len(batch) <= rows and sum(batch.weights()) <= _CHARACTERS_PER_INSERT:
        yield batch
        return
    start = 0
    ends = list(itertools.accumulate(batch.weights(), initial=0))
    while start < len(batch):
        left = len(batch) - start
        size = min(rows, 1 << (left.bit_length() - 1) if rounded else left)
        while size > 1 and ends[start + size] - ends[start] > _CHARACTERS_PER_INSERT:
            size //= 2
        yield batch.part(start, start + size)
        start += size


def _plain_values(blank: Mapping[str, Any], now: int) -> dict[str, Any]:
    same = {**blank, "message_key": None}
    same |= {"published_at": now, "scheduled_at": now, "available_at": now}
    del same["payload"]
    return same


def _weight(message: NewMessage) -> int:
    content = message.content
    weight = len(content["payload"]) + len(content["headers"] or "")
    if len(content) > _COMMON_COLUMNS:
        weight += sum(len(value) for value in content.values() if isinstance(value, str | bytes))
    return weight
