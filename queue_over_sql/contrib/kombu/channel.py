"""Channels: declare exchanges and queues, publish, consume and settle."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqp.exceptions import RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, object_hook
from kombu.utils.uuid import uuid

from queue_over_sql import (
    ClaimLost,
    PayloadInvalid,
    Queue,
    QueueNotFound,
    QueueService,
    TopicNotFound,
    inside,
)
from queue_over_sql import Message as Claimed
from queue_over_sql.contrib.kombu.names import KINDS, exchange_of, topic_name
from queue_over_sql.contrib.kombu.services import is_counted
from queue_over_sql.errors import shown

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql import Topic

# Settings of a queue that a declaration creates. An operator may change them.
_NEW_QUEUE: Final[dict[str, Any]] = {
    # Killed workers use them up, also of what only waited in them.
    "max_attempts": 100,
    "max_payload_bytes": 16 * 1024 * 1024,
}
# How long a queue that is deleted automatically stays without its consumers.
_UNUSED_SECONDS: Final = 60.0
_MOST_PRIORITIES: Final = 100
# How often the queues of an exchange may be dropped during one publish.
_RACES: Final = 10


def _not_found(what: str, name: str) -> ChannelError:
    """The error for a queue or an exchange that does not exist, as AMQP numbers it."""
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", (50, 10), f"Channel.{what}", 404)


def _refused(text: str) -> ChannelError:
    return ChannelError(f"PRECONDITION_FAILED - {text}", (50, 10), "Channel", 406)


class Consumer(NamedTuple):
    """A consumer of a channel: its queue, and what it does with a message of it."""

    queue: str
    on_message: Callable[[Claimed], None]


class Delivered(virtual.Message):
    """A delivered message; ``claimed`` is the message that was claimed from its queue."""

    def __init__(
        self, claimed: Claimed, channel: Channel | None = None, consumer_tag: str | None = None
    ) -> None:
        self.claimed = claimed
        content = _content(claimed.payload)
        info = {"exchange": "", "routing_key": claimed.queue, "redelivered": claimed.attempt > 1}
        if consumer_tag is not None:
            info["consumer_tag"] = consumer_tag
        properties = {**content["properties"], "delivery_tag": claimed.token}
        properties["delivery_info"] = info | properties.get("delivery_info", {})
        super().__init__({**content, "properties": properties}, channel=channel)


def _content(payload: Any) -> dict[str, Any]:
    """What kombu published; anything else is a body in JSON."""
    if isinstance(payload, dict) and isinstance(payload.get("properties"), dict):
        return {name: part if name == "body" else _restored(part) for name, part in payload.items()}
    return {
        "body": json.dumps(payload),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"body_encoding": "utf-8"},
    }


def _restored(part: Any) -> Any:
    """What kombu's JSON wrote for a value that JSON does not have, such as a UUID in a header."""
    if isinstance(part, dict):
        return object_hook({name: _restored(each) for name, each in part.items()})
    return [_restored(each) for each in part] if isinstance(part, list) else part


class QoS(virtual.QoS):
    """The messages that a channel has delivered and that are not settled; any thread may ask."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        # Not the constructor of its base, which would give back what a parent process holds.
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._delivered: dict[str, Delivered] = {}

    def can_consume(self) -> bool:
        return self.can_consume_max_estimate() != 0

    def can_consume_max_estimate(self) -> int | None:
        """How many messages the channel may get; None: any number."""
        if not self.prefetch_count:
            return None
        return max(0, self.prefetch_count - len(self._delivered))

    def append(self, message: Delivered, delivery_tag: str) -> None:
        self._delivered[delivery_tag] = message

    def get(self, delivery_tag: str) -> Delivered:
        """A message that is not settled.

        Raises:
            ChannelError: this channel has no such message.
            RecoverableConnectionError: it was given back when the channel was closed.
        """
        try:
            return self._delivered[delivery_tag]
        except KeyError:
            if self.channel.closed:
                text = "the channel is closed, so its messages were given back"
                raise RecoverableConnectionError(text) from None
            text = f"unknown delivery tag {delivery_tag:.40}"
            raise _refused(text) from None

    def ack(self, delivery_tag: str) -> None:
        with self._settling(delivery_tag) as claimed:
            claimed.ack()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        with self._settling(delivery_tag) as claimed:
            if requeue:
                claimed.release(count=is_counted(claimed))
            else:
                claimed.reject("rejected by its consumer")

    @contextlib.contextmanager
    def _settling(self, delivery_tag: str) -> Iterator[Claimed]:
        """Forget a message that is settled, lost or gone.

        After another error its place stays taken until the channel is closed, so the connection
        is broken: else a worker that only logs the error would get fewer and fewer messages.
        """
        message = self.get(delivery_tag)
        transport = self.channel.connection
        try:
            yield message.claimed
        except (ClaimLost, QueueNotFound):
            self._forget(delivery_tag)
            raise
        except Exception as error:
            if transport is not None:
                transport.broke(error)
            raise
        self._forget(delivery_tag)

    def _forget(self, delivery_tag: str) -> None:
        self._delivered.pop(delivery_tag, None)
        if self.channel.connection is not None:
            self.channel.connection.made_room()

    def restore_unacked(self) -> list[Any]:
        delivered, self._delivered = self._delivered, {}
        self.channel.connection.shared.give_back(each.claimed for each in delivered.values())
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self.restore_unacked()


class Channel(virtual.Channel):
    """A channel. Its queues are tables, and its exchanges are topics.

    A queue has priorities if it is declared with ``max_priority``; as with RabbitMQ, a higher
    number is more urgent. ``ChannelError`` has AMQP's number: 404 for what does not exist.
    """

    Message = Delivered
    QoS = QoS
    supports_fanout = True
    from_transport_options = ()

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._pid = os.getpid()
        # kombu acks nothing that one of these got.
        self.no_ack_consumers: set[str] = set()
        # How the queues of this channel were declared, to declare them again.
        self._declared: dict[str, dict[str, Any]] = {}

    @property
    def _service(self) -> QueueService:
        service: QueueService = self.connection.shared.service
        return service

    # -- exchanges

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - kombu's
        passive: bool = False,
        **options: Any,
    ) -> None:
        kind = type or "direct"
        exchange = exchange or f"amq.{kind}"
        if kind not in KINDS:
            text = f"NOT_IMPLEMENTED - exchanges of type {kind!r}: use one of {', '.join(KINDS)}"
            raise ChannelError(text, (40, 10), "Channel.exchange_declare", 540)
        found = self._find(exchange)
        if found is None:
            if passive:
                raise _not_found("exchange", exchange)
            self._service.create_topic(topic_name(kind, exchange))
        elif found[0] != kind and not passive:
            text = f"exchange {exchange!r} has the type {found[0]!r}, not {kind!r}"
            raise _refused(text)

    def exchange_delete(self, exchange: str, if_unused: bool = False, **options: Any) -> None:
        found = self._find(exchange)
        if found is None:
            return
        if if_unused and found[1].subscriptions():
            text = f"exchange {exchange!r} has bindings"
            raise _refused(text)
        self._service.drop_topic(found[1].name)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **options: Any
    ) -> None:
        kind, topic = self._existing(exchange or "amq.direct")
        topic.subscribe(queue, "#" if kind == "fanout" else routing_key)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **options: Any
    ) -> None:
        found = self._find(exchange or "amq.direct")
        if found is not None:
            kind, topic = found
            topic.unsubscribe(queue, "#" if kind == "fanout" else routing_key)

    def get_exchanges(self) -> list[str]:
        """The names of the exchanges, but for those that are too long to be read from a topic."""
        named = (exchange_of(topic.name) for topic in self._service.topics())
        return [each[1] for each in named if each is not None]

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """The queue, exchange and routing key of each binding of these exchanges."""
        for topic in self._service.topics():
            if (named := exchange_of(topic.name)) is not None:
                for binding in topic.subscriptions():
                    yield self._service.queue(binding.queue).title, named[1], binding.pattern

    def _find(self, exchange: str) -> tuple[str, Topic] | None:
        for kind in KINDS:
            with contextlib.suppress(TopicNotFound):
                topic = self._service.topic(topic_name(kind, exchange))
                return kind, topic
        return None

    def _existing(self, exchange: str) -> tuple[str, Topic]:
        found = self._find(exchange)
        if found is None:
            raise _not_found("exchange", exchange)
        return found

    # -- queues

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, **options: Any
    ) -> queue_declare_ok_t:
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            return queue_declare_ok_t(queue, self._size(queue), 0)
        self._declared[queue] = options
        self._new_queue(queue)
        # Who publishes declares its queues, and must not wait until a long one is counted.
        return queue_declare_ok_t(queue, 0, 0)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        used = any(each.queue == queue for each in self.connection.consumers.values())
        if (if_unused and used) or (if_empty and self._size(queue)):
            return
        self._declared.pop(queue, None)
        self._service.drop_queue(queue)
        self.connection.shared.exclusive.pop(queue, None)

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def _new_queue(self, queue: str, **options: Any) -> None:
        declared = self._declared.get(queue, {})
        exclusive, auto_delete = declared.get("exclusive"), declared.get("auto_delete")
        settings = dict(self.connection.client.transport_options.get("queue", {}))
        settings |= _settings(declared.get("arguments") or {})
        if auto_delete:
            settings.setdefault("unused_for", _UNUSED_SECONDS)
        if exclusive:
            settings.pop("unused_for", None)
        if exclusive or "unused_for" in settings:
            settings.setdefault("archive", "none")
        try:
            opened = self._service.queue(queue)
            opened.refresh()
        except QueueNotFound:
            settings = _NEW_QUEUE | settings
        else:
            self._check_existing(opened, declared)
        if settings or exclusive:
            self._service.create_queue(queue, temporary=bool(exclusive), **settings)
        if exclusive:
            self.connection.shared.exclusive[queue] = self.connection

    def _check_existing(self, queue: Queue, declared: dict[str, Any]) -> None:
        """Refuse to change a queue that is another connection's, or that is to stay."""
        held_by = self.connection.shared.exclusive.get(queue.title)
        if queue.temporary and held_by not in {None, self.connection}:
            text = f"RESOURCE_LOCKED - another connection holds queue {queue.title!r} exclusively"
            raise ChannelError(text, (50, 10), "Channel.queue", 405)
        ends = declared.get("auto_delete") or (declared.get("arguments") or {}).get("x-expires")
        if ends and not declared.get("exclusive") and queue.settings.unused_for is None:
            text = (
                f"queue {queue.title!r} exists and does not end by itself: declare it without "
                "auto_delete and expires"
            )
            raise _refused(text)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[Queue]:
        try:
            yield self._service.queue(name)
        except QueueNotFound as error:
            raise _not_found("queue", name) from error

    def _size(self, queue: str) -> int:
        with self._opened(queue) as opened:
            return opened.messages(status="ready").count()

    def _purge(self, queue: str) -> int:
        with self._opened(queue) as opened:
            return opened.purge()

    # -- publish

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any
    ) -> None:
        """Publish a message to all queues whose bindings fit its routing key: to all or to none."""
        self._inplace_augment_message(message, exchange, routing_key)
        publish = partial(self._publish_to, exchange) if exchange else self._put
        try:
            publish(routing_key, message)
        except PayloadInvalid:
            # It has headers that JSON does not have; kombu writes them so for other brokers, too.
            publish(routing_key, json.loads(dumps(message)))

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[str, str]:
        """Text stays readable in the table."""
        if isinstance(body, str) and "\0" not in body:
            return body, "utf-8"
        encoded: tuple[str, str] = super().encode_body(body, "base64")
        return encoded

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        with self._opened(queue):
            try:
                self._publish([queue], message)
            except QueueNotFound:
                if queue not in self._declared:
                    raise
                # Somebody dropped it, but this program goes on.
                self._new_queue(queue)
                self._publish([queue], message)

    def _publish_to(self, exchange: str, key: str, message: dict[str, Any]) -> None:
        kind, topic = self._existing(exchange)
        for race in range(_RACES + 1):
            try:
                fitting = {
                    each.queue
                    for each in topic.subscriptions()
                    if kind == "fanout"
                    or each.pattern == key
                    or (kind == "topic" and inside.pattern_fits(each.pattern, key))
                }
                return self._publish(sorted(fitting), message)
            except QueueNotFound:
                if race == _RACES:
                    raise
            except TopicNotFound as error:
                raise _not_found("exchange", exchange) from error
        return None

    def _publish(self, names: Sequence[str], message: dict[str, Any]) -> None:
        queues = [self._service.queue(name) for name in names]
        properties = message["properties"]
        expires = properties.get("expiration")
        seconds = None if expires is None else max(int(expires), 1) / 1000
        priority = max(int(properties.get("priority") or 0), 0)

        def publish(connection: Connection | None = None) -> None:
            for queue in queues:
                last = inside.known_settings(queue).priorities - 1
                level = max(last - priority, 0)
                queue.publish(message, priority=level, expires=seconds, connection=connection)

        if len(queues) == 1:
            publish()
        elif queues:
            inside.run(self._service, publish, atomic=True, durable=True, repeat=False)
            for queue in queues:
                inside.wake_consumers(queue)

    # -- consume

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any
    ) -> None:
        with self._opened(queue) as opened:
            opened.refresh()
        # Its reaper gives back what other consumers held that are dead.
        self._service.start()
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)

        def on_message(claimed: Claimed) -> None:
            if (message := self._handed_over(claimed, no_ack, consumer_tag)) is not None:
                callback(message)

        self.connection.consumers[self, consumer_tag] = Consumer(queue, on_message)

    def basic_cancel(self, consumer_tag: str) -> None:
        super().basic_cancel(consumer_tag)
        self.no_ack_consumers.discard(consumer_tag)
        if self.connection is None:
            return
        cancelled = self.connection.consumers.pop((self, consumer_tag), None)
        others = {each.queue for each in self.connection.consumers.values()}
        if cancelled is not None and cancelled.queue not in others:
            with contextlib.suppress(QueueNotFound):
                inside.asks_no_more(self._service.queue(cancelled.queue))

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Delivered | None:
        self._service.start()
        with self._opened(queue) as opened:
            while messages := opened.consume(keep=True):
                if (message := self._handed_over(messages[0], no_ack)) is not None:
                    return message
        return None

    def _handed_over(
        self, claimed: Claimed, no_ack: bool, tag: str | None = None
    ) -> Delivered | None:
        """The message to deliver; None if kombu cannot read it, so that it is a dead letter."""
        try:
            try:
                message = Delivered(claimed, self, tag)
            except Exception as error:  # noqa: BLE001 - another program may have published anything
                claimed.reject(f"kombu cannot read it: {shown(error)}")
                return None
            if no_ack:
                claimed.ack()
        except Exception:
            self.connection.shared.give_back([claimed])
            raise
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        self.qos.prefetch_count = prefetch_count
        self.connection.made_room()

    def close(self) -> None:
        # What a parent process holds stays its own in a child.
        if self._pid == os.getpid():
            super().close()


def _settings(arguments: Any) -> dict[str, Any]:
    """The settings of a queue for the arguments of its declaration."""
    settings: dict[str, Any] = {}
    if (milliseconds := arguments.get("x-expires")) is not None:
        settings["unused_for"] = max(milliseconds, 1) / 1000
    if (milliseconds := arguments.get("x-message-ttl")) is not None:
        settings["expires"] = max(milliseconds, 1) / 1000
    if (highest := arguments.get("x-max-priority")) is not None:
        settings["priorities"] = min(highest + 1, _MOST_PRIORITIES)
    if (length := arguments.get("x-max-length")) is not None:
        settings |= {"max_length": length, "when_full": "reject"}
    return settings
