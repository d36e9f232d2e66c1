"""Topics: publish once, and each subscribed queue gets its own copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from queue_over_sql.errors import (
    QueueNotFound,
    TopicNotFound,
)
from queue_over_sql.message import Publication, Published
from queue_over_sql.publishing.publisher import as_publication
from queue_over_sql.queue import Queue, core_of, name_of
from queue_over_sql.queues import registry
from queue_over_sql.schema.queue_tables import may_be_name
from queue_over_sql.sql.operation import Operation
from queue_over_sql.topics import store as topic_store
from queue_over_sql.topics.fan_out import FanOut
from queue_over_sql.topics.routing import (
    check_filter,
    check_routing_text,
    filter_of,
    filter_text,
    pattern_fits,
)
from queue_over_sql.values.durations import instant
from queue_over_sql.values.options import (
    PUBLISH_DEFAULTS,
    TopicOptions,
    check_known,
    spelled_out,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.message import CallersConnection
    from queue_over_sql.values.states import OnConflict


@dataclasses.dataclass(frozen=True)
class Subscription:
    """A subscription: which messages of a topic a queue gets.

    Attributes:
        queue: name of the queue.
        pattern: the pattern that routing keys must match.
        where: the payload filter: a mapping of paths to values; None for any payload.
        created_at: when the queue subscribed with this pattern.
    """

    queue: str
    pattern: str
    where: Mapping[str, Any] | None
    created_at: datetime


class Topic:
    """A topic. ``QueueService`` creates it; any thread may use it."""

    def __init__(self, parts: ServiceParts, name: str) -> None:
        self.name = name
        self._parts = parts
        self._fan_out = FanOut(parts, name)

    def subscribe(
        self,
        queue: Queue | str,
        pattern: str = "#",
        where: Mapping[str, Any] | None = None,
    ) -> None:
        """Subscribe a queue: the queue gets a copy of each new message that matches.

        A queue may subscribe with several patterns. It gets only one copy of a message, even if
        several match. Repeating a pattern replaces its ``where``.

        Args:
            queue: the queue or its name.
            pattern: the pattern for routing keys: words joined by dots, ``*`` for exactly one word
                and ``#`` for zero or more words; up to 255 bytes of UTF-8.
            where: a payload filter: a mapping of paths, such as ``address.city`` or
                ``items.0.sku``, to values that must all be equal, as in
                ``queue.messages(payload=…)``.

        Raises:
            QueueNotFound, TopicNotFound: the queue or the topic does not exist.
            TypeError, ValueError: an argument has an invalid value, or the queue cannot subscribe:
                it is an adopted table, has no JSON payloads to filter by, or has columns that a
                topic cannot fill.
        """
        parts, name = self._parts, name_of(queue)
        pattern = check_routing_text("pattern", pattern)
        text = None if where is None else filter_text(check_filter(where))
        subscriber = parts.queue(name)
        _check_subscriber(subscriber, filtered=text is not None)
        name = subscriber.name
        system, prefix = parts.system(), parts.settings.table_prefix

        def do(target: Connection) -> None:
            if not topic_store.hold_topic(target, system, prefix, self.name):
                raise TopicNotFound(self.name)
            if not registry.hold_queue(target, system, prefix, name):
                raise QueueNotFound(name)
            topic_store.put_subscription(
                target,
                system,
                parts.connections.dialect,
                prefix=prefix,
                topic=self.name,
                queue=name,
                pattern=pattern,
                where=text,
            )

        parts.connections.run(Operation(do, atomic=True))

    def unsubscribe(self, queue: Queue | str, pattern: str | None = None) -> bool:
        """Remove the subscription of a queue with a pattern, or all its subscriptions.

        Args:
            queue: the queue or its name.
            pattern: the pattern of the subscription; None: all subscriptions.

        Returns:
            False if there was none.

        Raises:
            DatabaseUnavailable: if the connection broke, it may be unknown whether it was removed.
        """
        parts, name = self._parts, name_of(queue)
        parts.check_open()
        if pattern is not None:
            pattern = check_routing_text("pattern", pattern)
        system, prefix = parts.system(), parts.settings.table_prefix
        name = parts.catalog.resolved(name)
        removing = topic_store.remove_subscriptions.of(
            system, prefix, self.name, queue=name, pattern=pattern
        )
        return may_be_name(name) and parts.connections.run(removing)

    def subscriptions(self) -> list[Subscription]:
        """List all subscriptions, by queue and pattern.

        Raises:
            TopicNotFound: the topic was dropped.
        """
        return [
            Subscription(row.queue, row.pattern, filter_of(row.filter), instant(row.created_at))
            for row in self._fan_out.subscriptions()
        ]

    def matches(self, routing_key: str) -> list[Subscription]:
        """List the subscriptions whose pattern fits a routing key, by queue and pattern.

        Payload filters are not looked at.

        Raises:
            TopicNotFound: the topic was dropped.
            TypeError, ValueError: the routing key is not valid.
        """
        key = check_routing_text("routing_key", routing_key)
        return [each for each in self.subscriptions() if pattern_fits(each.pattern, key)]

    @spelled_out(TopicOptions, PUBLISH_DEFAULTS)
    def publish(
        self,
        payload: Any,
        *,
        routing_key: str,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
        **options: Unpack[TopicOptions],
    ) -> list[Published]:
        """Publish a copy to each queue with a matching subscription, in one transaction.

        Each copy is a normal message of its queue. It has the headers ``topic`` and
        ``routing_key``, which replace given headers of these names.

        Args:
            payload: a payload that each of the queues accepts.
            routing_key: words joined by dots, such as ``orders.eu.paid``; up to 255 bytes of UTF-8.
            on_conflict: as in ``Queue.publish``, for each queue separately.
            connection: the caller's own transaction, which this does not commit. If this raises an
                error about the message, the transaction is still usable and has none of the copies.
            options: those of ``Publication``, without ``columns``.

        Returns:
            One result per copy, ordered by queue name; an empty list if no subscription matches.

        Raises:
            TopicNotFound: the topic was dropped.
            DuplicateKey: the key is taken in one of the queues and ``on_conflict`` is ``"raise"``.
            GroupFull: one of the queues has no room, and ``when_full="reject"``.
            PayloadInvalid, PayloadTooLarge: one of the queues rejects the message.
            WrongDatabase: ``connection`` belongs to another database.
            DatabaseUnavailable: if the connection broke, it is unknown whether the message was
                published.
            QueueError: the subscriptions kept changing; nothing was published.
            TypeError, ValueError: an option has an invalid value for one of the queues, or
                ``connection`` is in autocommit mode.
        """
        check_known("Topic.publish", options, TopicOptions)
        publication = Publication(payload, **options)
        items = [(routing_key, publication)]
        [published] = self._fan_out.publish_many(items, on_conflict, connection)
        return published

    def publish_many(
        self,
        items: Iterable[tuple[str, Any]],
        *,
        on_conflict: OnConflict = "raise",
        connection: CallersConnection | None = None,
    ) -> list[list[Published]]:
        """Publish many messages in one transaction: all their copies or none, in the given order.

        Args:
            items: pairs of a routing key and a payload, or a ``Publication`` without ``columns``.
            on_conflict: as in ``publish``.
            connection: as in ``publish``.

        Returns:
            For each item the results of its copies, ordered by queue name.

        Raises:
            TopicNotFound, DuplicateKey and the other errors of ``publish``: nothing was published.
        """
        addressed = [(key, as_publication(item)) for key, item in items]
        return self._fan_out.publish_many(addressed, on_conflict, connection)

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"


def _check_subscriber(queue: Queue, *, filtered: bool) -> None:
    """Refuse a queue that cannot receive the messages of a topic.

    Raises:
        ValueError: the message says why.
    """
    msg = (
        f"queue {queue.name!r} is an adopted table, so it cannot subscribe. Subscribe another "
        "queue, and insert the rows in its handler."
    )
    core_of(queue).context.tables.expect_payloads(ValueError(msg))
    settings = queue.settings
    if filtered and settings.payload != "json":
        msg = (
            f"where filters JSON payloads, but queue {queue.name!r} has {settings.payload!r} "
            "payloads: subscribe it without where"
        )
        raise ValueError(msg)
    needed = [column.name for column in settings.columns if not column.nullable]
    if needed:
        msg = (
            f"queue {queue.name!r} requires a value for its column {', '.join(needed)}, which a "
            "topic does not provide, so it cannot subscribe"
        )
        raise ValueError(msg)
