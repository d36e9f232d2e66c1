"""The transport: a connection of kombu to the queues of a database."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from amqp.exceptions import RecoverableConnectionError
from kombu.transport import virtual

from queue_over_sql import (
    ClaimLost,
    ConsumerExpired,
    DatabaseRefused,
    DatabaseUnavailable,
    InvalidQueueName,
    QueueNotFound,
    QueueSchemaMismatch,
    ServiceClosed,
    TopicNotFound,
    __version__,
    inside,
)
from queue_over_sql.contrib.kombu import services
from queue_over_sql.contrib.kombu.bell import Bell
from queue_over_sql.contrib.kombu.channel import Channel, Consumer
from queue_over_sql.contrib.kombu.names import KINDS
from queue_over_sql.inside.databases import read_url, shown_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql import Message

# How many messages to claim at once where the consumer sets no limit.
_AT_ONCE: Final = 10


class Transport(virtual.Transport):
    """The transport of ``queue-over-sql+<URL of a database>``.

    All connections of a process to one database share one ``QueueService``; a forked child makes
    its own. ``transport_options`` may have:

    - ``service``: the arguments of ``QueueService`` beside the URL.
    - ``queue``: settings of all declared queues, as ``create_queue`` takes them.
    """

    Channel = Channel
    can_parse_url = True
    # Not "sql": for that Celery's workers send no events.
    driver_type = driver_name = "queue_over_sql"
    connection_errors = (
        *virtual.Transport.connection_errors,
        ClaimLost,
        ConsumerExpired,
        DatabaseRefused,
        DatabaseUnavailable,
        ServiceClosed,
    )
    channel_errors = (
        *virtual.Transport.channel_errors,
        InvalidQueueName,
        QueueNotFound,
        QueueSchemaMismatch,
        TopicNotFound,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(KINDS), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._pid = -1
        self._shared: services.Shared | None = None
        self._pauses = inside.poll_pauses()
        # The consumers of its channels; who waits longest for a message comes first.
        self.consumers: dict[tuple[virtual.Channel, str], Consumer] = {}
        # Why a message could not be settled.
        self._broken: Exception | None = None
        self._bell: Bell | None = None
        # Whether the last poll left out a channel whose consumers have all that they may have.
        self._left_out = False

    @property
    def shared(self) -> services.Shared:
        """This process's service of the database."""
        if self._shared is None or self._pid != os.getpid():
            options = self.client.transport_options.get("service", {})
            self._shared = services.acquire(self.client.hostname, options)
            self._pid = os.getpid()
        return self._shared

    def driver_version(self) -> str:
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        url, prefix = read_url(uri), self.client.uri_prefix
        if include_password:
            shown = url.render_as_string(hide_password=False)
        else:
            # Wherever it is, also among the parameters.
            shown = shown_url(url).replace("***", mask)
        return f"{prefix}+{shown}" if prefix else shown

    def establish_connection(self) -> Transport:
        try:
            inside.read_clock(self.shared.service)
            super().establish_connection()
        except BaseException:
            self._leave()
            raise
        return self

    def close_connection(self, connection: Transport) -> None:
        try:
            super().close_connection(connection)
        finally:
            self._leave()

    def _leave(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self.consumers.clear()
        self._broken = None
        shared, self._shared = self._shared, None
        if shared is None or self._pid != os.getpid():
            return
        try:
            shared.drop_exclusive(self)
        finally:
            services.leave(shared)

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let an event loop deliver messages as they arrive: Celery's, with prefork workers."""
        arrivals = inside.Arrivals(self.shared.service)
        arrivals.listen()
        self._bell = Bell(arrivals, loop, self._deliver_in_turn)
        self._bell.ring()

    def _deliver_in_turn(self, bell: Bell) -> None:
        if self._deliver_some():
            self._pauses.reset()
            # What else the loop has to do gets its turn before the next messages.
            bell.ring()
        else:
            bell.ring_after(self._pauses.pause())

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Wait for messages, and deliver those of one queue.

        Raises:
            TimeoutError: none arrived in time.
            RecoverableConnectionError: a queue was dropped, or a message was not settled.
        """
        until = None if timeout is None else time.monotonic() + timeout
        arrivals = inside.Arrivals(self.shared.service)
        arrivals.listen()
        while True:
            seen = arrivals.count
            if self._deliver_some():
                self._pauses.reset()
                return
            pause = self._pauses.pause()
            if until is not None:
                pause = min(pause, until - time.monotonic())
                if pause <= 0:
                    raise TimeoutError
            arrivals.wait(seen, pause)

    def made_room(self) -> None:
        """A message was settled, so that its channel may get another one."""
        if self._left_out:
            self._wake()

    def broke(self, error: Exception) -> None:
        """A message could not be settled: as with AMQP, whoever waits has to connect again."""
        self._broken = error
        self._wake()

    def _wake(self) -> None:
        # Another thread may settle a message of a connection that was closed.
        if (shared := self._shared) is not None:
            inside.Arrivals(shared.service).notify()

    def _deliver_some(self) -> bool:
        if (broken := self._broken) is not None:
            text = f"a message was not settled: {broken}"
            raise RecoverableConnectionError(text) from broken
        shared = self.shared
        if shared.owed:
            shared.give_back()
        room = self._room()
        if not room:
            return False
        try:
            queues = {shared.service.queue(title): title for title in room}
            most = min(count for _, count in room.values())
            messages = shared.service.consume(list(queues), most, keep=True)
        except QueueNotFound as error:
            # Whoever connects again declares its queues again.
            text = f"queue {error.queue!r} was dropped"
            raise RecoverableConnectionError(text) from error
        for queue, title in queues.items():
            if messages and queue.name == messages[0].queue:
                self._deliver_all(room[title][0], messages)
        return bool(messages)

    def _room(self) -> dict[str, tuple[tuple[virtual.Channel, str], int]]:
        """Which consumer of each queue is the next one, and how many messages it may get."""
        room: dict[str, tuple[tuple[virtual.Channel, str], int]] = {}
        self._left_out = False
        for key, consumer in list(self.consumers.items()):
            if consumer.queue in room:
                continue
            count = key[0].qos.can_consume_max_estimate()
            if count == 0:
                self._left_out = True
                # A message may have been settled just before that.
                count = key[0].qos.can_consume_max_estimate()
            if count != 0:
                room[consumer.queue] = key, _AT_ONCE if count is None else min(count, _AT_ONCE)
        return room

    def _deliver_all(self, key: tuple[virtual.Channel, str], messages: Sequence[Message]) -> None:
        waiting = list(messages)
        if (consumer := self.consumers.pop(key, None)) is not None:
            # The other consumers of its queue have their turns.
            self.consumers[key] = consumer
        try:
            while waiting and (consumer := self.consumers.get(key)) is not None:
                consumer.on_message(waiting.pop(0))
        finally:
            # Its consumer has raised an error, or was cancelled.
            self.shared.give_back(waiting)
