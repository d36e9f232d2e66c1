"""Tokens: claims as text, which settle their messages in any process.

A token names the queue, the message and the stamp of the claim, and is signed with a key of the
claim's consumer. The key is random and stands beside the consumer's registration, so a claim needs
no further round trip. It goes with the registration: what a consumer that is gone had claimed is
given back, and its tokens are worth nothing.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import struct
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from queue_over_sql.consumers import registrations
from queue_over_sql.errors import ClaimLost, InvalidToken, shown
from queue_over_sql.message import (
    Claim,
    Message,
    claim_of,
    claimed_lease_us,
    note_lease,
    note_token,
)
from queue_over_sql.queues.decoding import UNDECODABLE, decoded, undecoded
from queue_over_sql.settling import operations
from queue_over_sql.values.durations import elapsed_clock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from queue_over_sql.message import CallersConnection, MessageRow, Settler
    from queue_over_sql.queues.context import QueueContext

_VERSION: Final = 1
# The version, the message's id, the round, and the length of the lease in microseconds.
_HEAD: Final = struct.Struct(">Bqqq")
_SIGNATURE_BYTES: Final = 16
# Far more than the longest names need.
_LONGEST: Final = 500


class _Token(NamedTuple):
    message_id: int
    claim: Claim
    lease_us: int
    prefix: str
    queue: str

    def signed(self, key: str) -> str:
        """The token as text."""
        body = self._body()
        return base64.urlsafe_b64encode(body + _signature(key, body)).decode().rstrip("=")

    def _body(self) -> bytes:
        head = _HEAD.pack(_VERSION, self.message_id, self.claim.consumer_round, self.lease_us)
        return head + f"{self.claim.consumer_id}\0{self.prefix}\0{self.queue}".encode()


def _signature(key: str, body: bytes) -> bytes:
    return hmac.digest(key.encode(), body, "sha256")[:_SIGNATURE_BYTES]


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _read(text: str) -> _Token | None:
    """What a token says, whoever signed it; None if it is none."""
    if len(text) > _LONGEST:
        return None
    try:
        data = base64.b64decode(f"{text}{'=' * (-len(text) % 4)}", altchars=b"-_", validate=True)
        body = data[:-_SIGNATURE_BYTES]
        version, message_id, consumer_round, lease_us = _HEAD.unpack_from(body)
        consumer_id, prefix, queue = body[_HEAD.size :].decode().split("\0")
    except (struct.error, binascii.Error, ValueError):
        return None
    if version != _VERSION:
        return None
    return _Token(message_id, Claim(consumer_id, consumer_round), lease_us, prefix, queue)


class Tokens:
    """The tokens of one queue: of messages that this service claimed, and of any others."""

    def __init__(self, context: QueueContext, settler: Settler) -> None:
        self._context = context
        self._settler = settler

    def of(self, message: Message) -> str:
        """The token of a claimed message.

        Raises:
            ClaimLost: it has no claim.
        """
        claim, tables = claim_of(message), self._context.tables
        key = None if claim is None else self._context.consumer.token_key(claim.consumer_id)
        if claim is None or key is None:
            msg = f"{message!r} has no token, because this process did not claim it."
            raise ClaimLost(msg, [message])
        lease = claimed_lease_us(message) or 0
        return _Token(message.id, claim, lease, tables.prefix, tables.queue).signed(key)

    def held(
        self,
        texts: Iterable[str],
        *,
        contents: bool = True,
        connection: CallersConnection | None = None,
    ) -> dict[str, Message]:
        """The messages that claims still hold, by the tokens of these claims.

        Args:
            texts: the tokens.
            contents: whether to read the whole messages; else only what settling needs. Then an
                extension takes the lease of the message or the queue, not that of the claim.
            connection: the caller's own transaction.

        Raises:
            InvalidToken: one is not a token of this queue.
            TypeError: one is not a text.
        """
        tokens = self._signed({text: self._parsed(text) for text in texts}, connection)
        if not tokens:
            return {}
        began = elapsed_clock()
        ids = sorted({token.message_id for token in tokens.values()})
        sql = self._context.sql
        reading = partial(operations.claimed_rows, sql=sql, ids=ids, contents=contents)
        found = self._context.run(reading, connection)
        rows = {(row.id, row.claim): (row, now) for row, now in found}
        held: dict[str, Message] = {}
        for text, token in tokens.items():
            row, now = rows.get((token.message_id, token.claim), (None, 0))
            if row is not None:
                message = held[text] = self._message(row, token.lease_us, contents=contents)
                note_token(message, text)
                if (ends := row.lease_expires_at) is not None:
                    note_lease(message, ends, began + (ends - now) / 1_000_000)
        return held

    def lost(self, text: str) -> ClaimLost:
        """The error for a token whose claim no longer holds its message."""
        msg = (
            f"Queue {self._context.name!r}: the claim of message {self._parsed(text).message_id} "
            "is lost (its lease or its consumer expired, it was already settled or deleted, or "
            "another consumer claimed it)."
        )
        return ClaimLost(msg, [])

    def _parsed(self, text: str) -> _Token:
        if not isinstance(text, str):
            msg = f"token must be a str, not {type(text).__name__}"
            raise TypeError(msg)
        token = _read(text)
        if token is None:
            raise self._invalid(text)
        return token

    def _signed(
        self, tokens: dict[str, _Token], connection: CallersConnection | None
    ) -> dict[str, _Token]:
        """The tokens whose consumer is there and has signed them."""
        keys = self._keys({token.claim.consumer_id for token in tokens.values()}, connection)
        doubtful = {
            token.claim.consumer_id
            for text, token in tokens.items()
            if (key := keys.get(token.claim.consumer_id)) and not _equal(text, token.signed(key))
        }
        # Another process may have registered the consumer again, with another key.
        keys |= self._stored_keys(doubtful, connection)
        signed, tables = dict[str, _Token](), self._context.tables
        for text, token in tokens.items():
            key = keys.get(token.claim.consumer_id)
            if key is not None and not _equal(text, token.signed(key)):
                raise self._invalid(text)
            if (token.prefix, token.queue) != (tables.prefix, tables.queue):
                msg = (
                    f"The token belongs to the queue {shown(token.queue)} with the table prefix "
                    f"{shown(token.prefix)}. Open that queue to settle its message."
                )
                raise InvalidToken(msg)
            # A consumer without a key is gone and holds nothing, or gives no tokens.
            if key is not None:
                signed[text] = token
        return signed

    def _keys(
        self, consumer_ids: Iterable[str], connection: CallersConnection | None
    ) -> dict[str, str]:
        consumer, keys, others = self._context.consumer, dict[str, str](), list[str]()
        for consumer_id in consumer_ids:
            key = consumer.token_key(consumer_id)
            if key is None:
                others.append(consumer_id)
            else:
                keys[consumer_id] = key
        return keys | self._stored_keys(others, connection)

    def _stored_keys(
        self, consumer_ids: Collection[str], connection: CallersConnection | None
    ) -> dict[str, str]:
        if not consumer_ids:
            return {}
        system, ids = self._context.tables.system, sorted(consumer_ids)
        reading = partial(registrations.token_keys, system=system, consumer_ids=ids)
        found = self._context.run(reading, connection)
        self._context.consumer.learn(found)
        return found

    def _invalid(self, text: str) -> InvalidToken:
        msg = (
            f"{shown(text, 50)} is not a token of a claim of queue {self._context.name!r}. Pass "
            "the whole token, unchanged."
        )
        return InvalidToken(msg)

    def _message(self, row: MessageRow, lease_us: int, *, contents: bool) -> Message:
        if not contents:
            lease_us = row.lease_us or self._context.settings.lease_us
        # Without a length, an extension takes that of the claim. Extensions must not add up.
        ends = None if row.claimed_at is None else row.claimed_at + lease_us
        row = row._replace(by_token=True, lease_expires_at=ends)
        if contents:
            try:
                return decoded(self._context, row, self._settler)
            except UNDECODABLE:
                # It can still be settled.
                return undecoded(self._context, row, self._settler)
        return undecoded(self._context, row, self._settler)


def texts_of(given: str | Sequence[str]) -> list[str]:
    """One token or several, without duplicates.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(given, str):
        msg = "tokens must be several tokens: use held() for one"
        raise TypeError(msg)
    return list(dict.fromkeys(given))
