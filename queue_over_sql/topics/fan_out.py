"""Fan-out: each subscribed queue gets its own copy of a message, all or none."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from queue_over_sql.database.callers import callers
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    PayloadInvalid,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    ServiceClosed,
    TopicNotFound,
)
from queue_over_sql.message import Publication, Published
from queue_over_sql.payloads import codec as payloads
from queue_over_sql.publishing.publisher import (
    ON_CONFLICT,
    check_options,
    notify_published,
    with_headers,
)
from queue_over_sql.queue import core_of
from queue_over_sql.queues import registry
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import Operation
from queue_over_sql.topics import store as topic_store
from queue_over_sql.topics.routing import (
    check_routing_text,
    filter_of,
    pattern_fits,
    pattern_of,
    payload_fits,
)
from queue_over_sql.topics.store import Copy, SubscriptionRow
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.checks import check_choice, check_keyed
from queue_over_sql.values.headers import ROUTING_KEY, TOPIC

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.message import CallersConnection
    from queue_over_sql.queues.context import QueueContext

# How often subscriptions may change during one publish before it fails.
_RACES: Final = 50
# What says nothing about a queue that may be gone.
_HOPELESS: Final = frozenset(
    {ErrorKind.TRANSIENT, ErrorKind.CANCELLED, ErrorKind.DISCONNECT, ErrorKind.STALE_PLAN}
)

_NO_JSON: Final = object()


@dataclasses.dataclass(frozen=True)
class RoutedMessage:
    """A publication with its routing key and all its headers."""

    publication: Publication
    routing_key: str

    @cached_property
    def plain(self) -> Any:
        """The payload as read from JSON, if it is plain JSON for every queue."""
        try:
            return json.loads(payloads.encode_json(self.publication.payload, "payload"))
        except PayloadInvalid:
            return _NO_JSON


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The copies for some subscriptions, or the reason why one of them is impossible."""

    copies: Sequence[Copy] = ()
    refusal: Exception | None = None

    def checked(self) -> Sequence[Copy]:
        """The copies; raises the error if there is one."""
        if self.refusal is not None:
            raise self.refusal
        return self.copies


class FanOut:
    """Publishes to the subscribers of one topic.

    The copies are encoded before the transaction, for the last known subscriptions. The transaction
    reads the subscriptions again. If they changed, it writes nothing and the work starts again. So
    no transaction waits for Python, and none uses outdated subscriptions.
    """

    def __init__(self, parts: ServiceParts, topic: str) -> None:
        self._parts = parts
        self._topic = topic
        self._sql = StatementCache(parts.system(), parts.connections.engine.dialect)
        self._seen: list[SubscriptionRow] = []

    def subscriptions(self) -> list[SubscriptionRow]:
        """The subscriptions by queue and pattern; TopicNotFound if the topic was dropped."""
        self._parts.check_open()
        return self._existing(self._parts.connections.run(self._rows))

    def publish_many(
        self,
        items: Sequence[tuple[str, Publication]],
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> list[list[Published]]:
        """Publish messages by their routing keys to all subscribers; see ``Topic.publish_many``."""
        self._parts.check_open()
        check_choice("on_conflict", on_conflict, ON_CONFLICT)
        items = [(check_routing_text("routing_key", key), each) for key, each in items]
        for _, publication in items:
            check_keyed(on_conflict, publication.key)
            if publication.columns:
                msg = "a message of a topic does not accept columns: queues have different ones"
                raise TypeError(msg)
        observer = self._parts.observer
        if observer is None or not items:
            return self._published(items, on_conflict, connection)
        began = time.monotonic()
        with observer.publishing(self._topic, len(items)) as headers:
            traced = [(key, with_headers(publication, headers)) for key, publication in items]
            published = self._published(traced, on_conflict, connection)
            seconds = time.monotonic() - began
            for copy in itertools.chain.from_iterable(published):
                notify_published(observer, str(copy.queue), [copy], seconds)
        return published

    def _published(
        self,
        items: Sequence[tuple[str, Publication]],
        on_conflict: str,
        connection: CallersConnection | None,
    ) -> list[list[Published]]:
        messages = [self._addressed(publication, key) for key, publication in items]
        if connection is not None:
            return self._publish_on(connection, messages, on_conflict)
        published = self._publish(messages, on_conflict)
        reached = {copy.queue for copies in published for copy in copies}
        if reached:
            self._parts.arrivals.notify()
        # No query here: it is published, and a queue dropped since then must not raise an error.
        for queue in self._parts.catalog.opened:
            if queue.name in reached:
                self._parts.wakeups.notify(core_of(queue).context.sql)
        return published

    def _addressed(self, publication: Publication, routing_key: str) -> RoutedMessage:
        check_options(publication)
        headers = {**(publication.headers or {}), TOPIC: self._topic, ROUTING_KEY: routing_key}
        return RoutedMessage(dataclasses.replace(publication, headers=headers), routing_key)

    # -- in our own transaction

    def _publish(
        self, messages: Sequence[RoutedMessage], on_conflict: str
    ) -> list[list[Published]]:
        for _ in range(_RACES):
            seen = self._seen
            prepared = [self._prepare(seen, message) for message in messages]
            try:
                rows, published = self._try(seen, prepared, on_conflict)
            except DatabaseRefused:
                # A queue may have been dropped, or created again with other columns.
                rows, published = self.subscriptions(), None
                if rows == seen:
                    raise
            if published is not None:
                return published
            if rows == seen:
                for each in prepared:
                    each.checked()
            self._learn(rows)
        msg = (
            f"The subscriptions of topic {self._topic!r} changed {_RACES} times during the "
            "publish. Nothing was published; try again."
        )
        raise QueueError(msg)

    def _try(
        self, seen: list[SubscriptionRow], prepared: Sequence[Prepared], on_conflict: str
    ) -> tuple[list[SubscriptionRow], list[list[Published]] | None]:
        def do(
            target: Connection,
        ) -> tuple[list[SubscriptionRow] | None, list[list[Published]] | None]:
            rows = self._rows(target)
            if rows != seen or any(each.refusal is not None for each in prepared):
                return rows, None
            if not any(each.copies for each in prepared):
                self._insist_on_writing(target)
            copies = [each.copies for each in prepared]
            return rows, topic_store.publish_copies(target, copies, on_conflict)

        publishing = Operation(do, atomic=True, durable=True, repeatable=False)
        rows, published = self._parts.connections.run(publishing)
        return self._existing(rows), published

    # -- in the caller's transaction

    def _publish_on(
        self, connection: CallersConnection, messages: Sequence[RoutedMessage], on_conflict: str
    ) -> list[list[Published]]:
        connections, table = self._parts.connections, self._parts.system().topics
        if isinstance(connection, Connection) and connections.is_begun(connection):
            # Inside an operation of ``run``, as ``QueueContext.run``.
            return self._publish_within(connection, messages, on_conflict)
        with callers(connection, connections.callers, table, atomic=True) as target:
            connections.dialect.sessions.lock_database(target, table)
            return self._publish_within(target, messages, on_conflict)

    def _publish_within(
        self, target: Connection, messages: Sequence[RoutedMessage], on_conflict: str
    ) -> list[list[Published]]:
        """Publish except to dropped queues, which the caller's snapshot may still show."""
        gone = set[str]()
        while True:
            rows = self._existing(self._rows(target))
            if rows != self._seen:
                self._learn(rows)
            there = [row for row in rows if row.queue not in gone]
            prepared = [self._prepare(there, message, target) for message in messages]
            try:
                copies = [each.checked() for each in prepared]
                published = topic_store.publish_copies_within(target, copies, on_conflict)
            except QueueNotFound as error:
                gone.add(error.queue)
            except DBAPIError as error:
                lost = self._dropped(error, [copy for each in prepared for copy in each.copies])
                if not lost:
                    raise
                gone |= lost
            else:
                if not any(copies):
                    self._insist_on_writing(target)
                for sql in {copy.queue: copy.sql for each in copies for copy in each}.values():
                    self._parts.wakeups.notify_on(target, sql)
                return published

    def _dropped(self, error: DBAPIError, copies: Sequence[Copy]) -> set[str]:
        connections = self._parts.connections
        kind = connections.dialect.errors.classify(error)
        hopeless = kind in _HOPELESS
        if hopeless or not connections.background:
            return set()
        system, prefix = self._parts.system(), self._parts.settings.table_prefix
        present = connections.run(lambda c: registry.queue_records(c, system, prefix))
        return {copy.queue for copy in copies} - {record.name for record in present}

    def _insist_on_writing(self, target: Connection) -> None:
        """Let a server that only reads say so: it may know nothing of newer subscriptions."""
        self._sql.get(topic_store.change_nothing).run(target)

    # -- the copy of each queue

    def _rows(self, target: Connection) -> list[SubscriptionRow] | None:
        prefix = self._parts.settings.table_prefix
        return topic_store.subscriptions(target, self._sql, prefix, self._topic)

    def _existing(self, rows: list[SubscriptionRow] | None) -> list[SubscriptionRow]:
        if rows is None:
            raise TopicNotFound(self._topic)
        return rows

    def _learn(self, rows: list[SubscriptionRow]) -> None:
        """Store new subscriptions; their queues may have been created again or changed since."""
        new = {row.queue for row in set(rows) - set(self._seen)}
        # A query on the user's own connection would end the user's transaction.
        for name in sorted(new) if self._parts.connections.background else ():
            try:
                self._parts.queue(name).refresh()
            except (QueueNotFound, QueueSchemaMismatch):
                self._parts.catalog.forget(name)
        self._seen = rows

    def _prepare(
        self, rows: Sequence[SubscriptionRow], message: RoutedMessage, on: Connection | None = None
    ) -> Prepared:
        copies = []
        for name, all_of_queue in itertools.groupby(rows, attrgetter("queue")):
            of_queue = list(all_of_queue)
            try:
                fitting = [
                    row
                    for row in of_queue
                    if pattern_fits(pattern_of(row.pattern), message.routing_key)
                ]
                copy = self._copy(name, fitting, message, on) if fitting else None
            except (DatabaseUnavailable, ServiceClosed):
                # The queue refuses nothing.
                raise
            except (QueueError, ValueError, TypeError) as error:
                return Prepared(refusal=_naming(name, error))
            if copy is not None:
                copies.append(copy)
        return Prepared(copies)

    def _copy(
        self,
        name: str,
        fitting: Sequence[SubscriptionRow],
        message: RoutedMessage,
        on: Connection | None,
    ) -> Copy | None:
        filters = [where for row in fitting if (where := filter_of(row.filter)) is not None]
        everything = len(filters) < len(fitting)
        payload = _NO_JSON if everything else message.plain
        if payload is not _NO_JSON and not any(payload_fits(f, payload) for f in filters):
            return None
        core, publication = core_of(self._parts.queue(name, on)), message.publication
        if publication.group is not None and not _is_grouped(core.context, on):
            publication = dataclasses.replace(publication, group=None)
        copy = Copy(name, core.context.sql, core.publisher.encode(publication))
        if everything or payload is not _NO_JSON:
            return copy
        # An object of one of the queue's kinds, whose JSON was unknown until now.
        payload = json.loads(copy.message.content["payload"])
        return copy if any(payload_fits(f, payload) for f in filters) else None


def _is_grouped(context: QueueContext, on: Connection | None) -> bool:
    """Whether the queue has groups."""
    if on is not None and not (context.tables.grouped or context.dialect.features.look_first):
        # The caller's snapshot may be from before they were turned on. Where a transaction that
        # writes sees the present, it is not.
        context.look_again()
    return context.tables.grouped


def _naming(queue: str, error: Exception) -> Exception:
    # Otherwise the error would not say which of the queues refused it.
    if repr(queue) not in str(error):
        error.args = (f"Queue {queue!r} rejected its copy: {error}", *error.args[1:])
    return error
