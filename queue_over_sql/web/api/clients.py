"""Clients: claims messages for HTTP clients, and settles them by tokens.

All HTTP clients share one consumer, ``http-api``, which never expires, as the clients of the SQL
API do. So their claims outlive a server, any server can settle them, and each ends with its lease.
Only a client with the token of a claim holds its message.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

from queue_over_sql import Message, Queue, QueueService, inside
from queue_over_sql.errors import ClaimLost, InvalidToken, QueueError

if TYPE_CHECKING:
    from queue_over_sql.web.threads import Threads


_log = logging.getLogger(__name__)

HTTP_CLIENTS: Final = "http-api"
"""The consumer that all HTTP clients share."""

# What servers of an earlier release gave. Anybody could compute it, so it holds nothing any more.
_FORMER_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{22}\Z")
# How often the notification thread checks whether anybody still waits.
_HEARING_SECONDS: Final = 1.0


class ClientQueue:
    """One queue as HTTP clients use it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._claims = inside.ClientClaims(queue, HTTP_CLIENTS, "any HTTP client")
        # Only one waiting request polls, so many cost no more than one.
        self.line = anyio.Lock()

    def claim(self, count: int, lease: float | None) -> list[Message]:
        """Claim messages that are available now."""
        return self._claims.claim(count, lease)

    def settle(self, tokens: Sequence[str], do: Callable[[list[Message]], None]) -> list[str]:
        """Settle claims by their tokens.

        Args:
            tokens: the tokens of the claims.
            do: a verb of the queue.

        Returns:
            The tokens of lost claims; all others were settled.

        Raises:
            ValueError: one is not a token; nothing was settled.
        """
        present = [token for token in tokens if not _FORMER_TOKEN.match(token)]
        try:
            held = self._claims.held(present)
        except InvalidToken as error:
            raise ValueError(*error.args) from error
        lost = [token for token in tokens if token not in held]
        if held:
            try:
                do(list(held.values()))
            except ClaimLost as error:
                lost += [message.token for message in error.messages]
        return lost

    def give_back(self, messages: list[Message]) -> None:
        """Give back, uncounted, messages for a client that is gone; never raises."""
        try:
            self.queue.release(messages)
        except QueueError as error:
            _log.warning(
                "Messages of queue %s could not be released; they are redelivered when "
                "their leases expire: %s",
                self.queue.name,
                error,
            )


class Clients:
    """The queues of a service as HTTP clients use them."""

    def __init__(self, service: QueueService, threads: Threads) -> None:
        self._service = service
        self._arrivals = inside.Arrivals(service)
        self._threads = threads
        self._queues: dict[str, ClientQueue] = {}
        self._lock = threading.Lock()
        self._news = _News(self._arrivals)
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
                known = self._queues[name] = ClientQueue(queue)
            return known

    async def claim(
        self, queue: ClientQueue, count: int, lease: float | None, wait: float
    ) -> list[Message]:
        """Claim messages; while there are none, poll again for up to ``wait`` seconds.

        If it is cancelled, no message stays claimed.
        """
        messages = await self._poll(queue, count, lease)
        if messages or not wait or self._ending:
            return messages
        with anyio.move_on_after(wait):
            async with queue.line:
                pauses = inside.poll_pauses()
                while True:
                    seen = self._news.count
                    messages = await self._poll(queue, count, lease)
                    if messages or self._ending:
                        break
                    await self._news.wait(seen, pauses.pause())
        return messages

    def end_waits(self) -> None:
        """Answer all waiting requests at once from now on, because the server is shutting down."""
        self._ending = True
        self._arrivals.notify()

    async def _poll(self, queue: ClientQueue, count: int, lease: float | None) -> list[Message]:
        # Always wait for a running claim; a cancelled request gives its messages back.
        messages: list[Message] = []
        with anyio.CancelScope(shield=True):
            messages += await self._threads.run_quick(lambda: queue.claim(count, lease))
        return messages


class _News:
    """Notifies the event loop of new messages, from one thread while anybody waits."""

    def __init__(self, arrivals: inside.Arrivals) -> None:
        self._arrivals = arrivals
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
                self._arrivals.listen()
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
        while not self._arrivals.ended:
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
