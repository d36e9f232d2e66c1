"""Clients: claims messages for HTTP clients, and settles them by tokens.

All HTTP clients share one consumer, ``http-api``, which never expires, as the clients of the SQL
API do. So their claims outlive a server, any server can settle them, and each ends with its lease.
The stamp of a claim is a random number, which is part of the client's token. Only a client with the
token holds the message.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
import secrets
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token
from sqlalchemy import select

from queue_over_sql.claiming.claimer import FIRST_POLL, LAST_POLL, Claimer
from queue_over_sql.consumers import registrations
from queue_over_sql.consumers.consumer import Consumer, Identity
from queue_over_sql.errors import ClaimLost, QueueError, ServiceClosed
from queue_over_sql.message import Claim, Message, MessageRow, claim_of
from queue_over_sql.queue import core_of
from queue_over_sql.queues.context import QueueContext
from queue_over_sql.queues.decoding import Decoder
from queue_over_sql.recovery.recovery import Recovery
from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.settling.settlements import Settlements
from queue_over_sql.values.backoff import poll_pauses
from queue_over_sql.values.durations import to_microseconds

if TYPE_CHECKING:
    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.queue import Queue
    from queue_over_sql.web.threads import Threads


_log = logging.getLogger(__name__)

HTTP_CLIENTS: Final = "http-api"
"""The consumer that all HTTP clients share."""

_REGISTRATION: Final = {
    "consumer_id": HTTP_CLIENTS,
    "name": HTTP_CLIENTS,
    "host": "any HTTP client",
    "pid": 0,
}
_TOKEN: Final = struct.Struct(">qq")
_ROUND_BITS: Final = 62
# How often the notification thread checks whether anybody still waits.
_HEARING_SECONDS: Final = 1.0


class WrongToken(ValueError):
    """The client sent a text that is not a claim token."""


def token_of(message: Message) -> str:
    """The token of a claimed message."""
    claim = claim_of(message)
    number = 0 if claim is None else claim.consumer_round
    return base64.urlsafe_b64encode(_TOKEN.pack(message.id, number)).decode().rstrip("=")


def read_token(token: str) -> tuple[int, int]:
    """The message's id and the claim's stamp in a token.

    Raises:
        WrongToken: it is not a token.
    """
    try:
        found = _TOKEN.unpack(base64.b64decode(f"{token}==", altchars=b"-_", validate=True))
    except (struct.error, binascii.Error, ValueError) as error:
        msg = f"{token[:50]!r} is not a claim token: send the token of the claim unchanged"
        raise WrongToken(msg) from error
    return int(found[0]), int(found[1])


class _Life(Identity):
    """The one identity of the consumer of all HTTP clients."""

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.consumer_id = HTTP_CLIENTS

    def next_claim(self) -> Claim:
        # A random stamp, because other servers claim with the same consumer.
        return Claim(HTTP_CLIENTS, secrets.randbits(_ROUND_BITS) + 1)


class _HttpConsumer(Consumer):
    """The consumer of all HTTP clients; registered at the first claim, and never removed."""

    def _register(self) -> Identity:
        system, dialect = self._system(), self._connections.dialect
        self._connections.run(
            lambda c: registrations.register_for_good(c, system, dialect, _REGISTRATION),
            atomic=True,
        )
        return _Life()

    def made(self, claim: Claim) -> bool:
        return claim.consumer_id == HTTP_CLIENTS

    def check(self, messages: Sequence[Message], claims: Iterable[Claim]) -> None:
        del messages, claims
        if self._closed:
            raise ServiceClosed


class ClientQueue:
    """One queue as HTTP clients use it."""

    def __init__(self, queue: Queue, consumer: Consumer) -> None:
        shared = core_of(queue).context
        self.queue = queue
        self.context = context = QueueContext(
            shared.tables,
            shared.known_settings,
            connections=shared.connections,
            consumer=consumer,
            service=shared.service,
            arrivals=shared.arrivals,
            wakeups=shared.wakeups,
            observer=shared.observer,
        )
        self.settlements = settlements = Settlements(context, self._came_back)
        decoder = Decoder(context, self, settlements.defer)
        self._claimer = Claimer(context, decoder, Recovery(context))
        self.ack, self.nack, self.release = settlements.ack, settlements.nack, settlements.release
        self.reject, self.extend = settlements.reject, settlements.extend
        # Only one waiting request polls, so many cost no more than one.
        self.line = anyio.Lock()

    def claim(self, count: int, lease: float | None) -> list[Message]:
        """Claim messages that are available now."""
        return self._claimer.consume(count, lease, 0.0, None)

    def settle(self, tokens: Sequence[str], act: Callable[[list[Message]], None]) -> list[str]:
        """Settle claims by their tokens.

        Args:
            tokens: the tokens of the claims.
            act: a verb of ``settlements``.

        Returns:
            The tokens of lost claims; all others were settled.

        Raises:
            WrongToken: one is not a token; nothing was settled.
        """
        stamps = {token: read_token(token) for token in tokens}
        held = self._held(set(stamps.values()))
        lost = [token for token, stamp in stamps.items() if stamp not in held]
        if held:
            try:
                act(list(held.values()))
            except ClaimLost as error:
                lost += [token_of(message) for message in error.messages]
        return lost

    def reply(self, *_: Any) -> NoReturn:
        """HTTP clients cannot reply to requests."""
        raise NotImplementedError

    def give_back(self, messages: list[Message]) -> None:
        """Give back, uncounted, messages for a client that is gone; never raises."""
        try:
            self.release(messages)
        except QueueError as error:
            _log.warning(
                "Messages of queue %s could not be released; they are redelivered when "
                "their leases expire: %s",
                self.queue.name,
                error,
            )

    def _held(self, stamps: set[tuple[int, int]]) -> dict[tuple[int, int], Message]:
        c = self.context.tables.live.c
        wanted = (
            *(c.id, c.consumer_round, c.attempt_count, c.max_attempts),
            *(c.claimed_at, c.lease_us),
        )
        ids = sorted({stamp[0] for stamp in stamps})
        mine = select(*wanted).where(c.id.in_(ids), c.consumer_id == HTTP_CLIENTS)
        rows = self.context.run(lambda connection: connection.execute(mine).all())
        found = {(row[0], row[1]): self._message(*row) for row in rows}
        return {stamp: message for stamp, message in found.items() if stamp in stamps}

    def _message(self, message_id: int, number: int, *facts: Any) -> Message:
        attempt, most, claimed_at, lease = facts
        # The lease of the claim, because without a length extensions would add up.
        lease = lease or to_microseconds(self.context.settings.lease, "lease")
        row = MessageRow(
            id=message_id,
            message_key=None,
            kind=None,
            payload=None,
            headers=None,
            priority=0,
            published_at=0,
            scheduled_at=0,
            available_at=None,
            attempt_count=attempt,
            max_attempts=most,
            lease_us=None,
            consumer_id=HTTP_CLIENTS,
            consumer_round=number,
            claimed_at=claimed_at,
            lease_expires_at=None if claimed_at is None else claimed_at + lease,
            last_attempt_at=None,
            last_error=None,
            columns={},
        )
        allowed = self.context.settings.max_attempts
        return Message(
            row,
            queue=self.queue.name,
            settler=self,
            payload=None,
            headers={},
            queue_max_attempts=allowed,
        )

    def _came_back(self, available_at: int | None) -> None:
        self._claimer.look_fully(available_at)
        self.context.announce()


class Clients:
    """The queues of a service as HTTP clients use them."""

    def __init__(self, service: QueueService, threads: Threads) -> None:
        self._service = service
        self._parts: ServiceParts = parts_of(service)
        self._threads = threads
        parts = self._parts
        self._consumer = _HttpConsumer(
            parts.connections, parts.system, parts.settings, lambda: None
        )
        self._queues: dict[str, ClientQueue] = {}
        self._lock = threading.Lock()
        self._news = _News(self._parts)
        self._ending = False

    def queue(self, name: str) -> ClientQueue:
        """Open a queue.

        Raises:
            QueueNotFound: there is no such queue.
        """
        queue = self._service.queue(name)
        with self._lock:
            known = self._queues.get(name)
            # A queue that was dropped and created again is a different one.
            if known is None or known.queue is not queue:
                known = self._queues[name] = ClientQueue(queue, self._consumer)
            return known

    async def claim(
        self, queue: ClientQueue, count: int, lease: float | None, wait: float
    ) -> list[Message]:
        """Claim messages; while there are none, poll again for up to ``wait`` seconds.

        If it is cancelled, no message stays claimed.
        """
        messages = await self._look(queue, count, lease)
        if messages or not wait or self._ending:
            return messages
        with anyio.move_on_after(wait):
            async with queue.line:
                pauses = poll_pauses(FIRST_POLL, LAST_POLL)
                while True:
                    seen = self._news.count
                    messages = await self._look(queue, count, lease)
                    if messages or self._ending:
                        break
                    await self._news.wait(seen, pauses.pause())
        return messages

    def end_waits(self) -> None:
        """Answer all waiting requests at once from now on, because the server is shutting down."""
        self._ending = True
        self._parts.arrivals.announce()

    async def _look(self, queue: ClientQueue, count: int, lease: float | None) -> list[Message]:
        # Always wait for a running claim; a cancelled request gives its messages back.
        messages: list[Message] = []
        with anyio.CancelScope(shield=True):
            messages += await self._threads.run_quick(lambda: queue.claim(count, lease))
        return messages


class _News:
    """Notifies the event loop of new messages, from one thread while anybody waits."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._arrivals = parts.arrivals
        self._waiting = 0
        self._lock = threading.Lock()
        self._hearing = False
        self._event: anyio.Event | None = None

    @property
    def count(self) -> int:
        """The count of arrivals."""
        return self._arrivals.count

    async def wait(self, seen: int, seconds: float) -> None:
        """Wait until something arrives, at most ``seconds``; return at once if it already has."""
        event = self._joined()
        try:
            if self._arrivals.count == seen:
                with anyio.move_on_after(seconds):
                    await event.wait()
        finally:
            with self._lock:
                self._waiting -= 1

    def _joined(self) -> anyio.Event:
        if self._event is None:
            self._event = anyio.Event()
        with self._lock:
            self._waiting += 1
            if not self._hearing:
                self._hearing = True
                self._parts.wakeups.listen()
                token = current_token()
                hear = threading.Thread(
                    target=self._hear,
                    args=(token, self._arrivals.count),
                    name="queue-over-sql-web-news",
                    daemon=True,
                )
                hear.start()
        return self._event

    def _hear(self, token: EventLoopToken, count: int) -> None:
        while not self._parts.closed:
            self._arrivals.wait(count, _HEARING_SECONDS)
            if self._arrivals.count != count:
                count = self._arrivals.count
                try:
                    from_thread.run_sync(self._ring, token=token)
                except RuntimeError:
                    # The loop has ended.
                    break
            with self._lock:
                if not self._waiting:
                    self._hearing = False
                    return
        with self._lock:
            self._hearing = False

    def _ring(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()
