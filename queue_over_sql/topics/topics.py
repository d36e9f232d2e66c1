"""The topics of a service: create, open, list and drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.errors import InvalidQueueName, TopicNotFound
from queue_over_sql.schema.queue_tables import check_queue_name, may_be_name
from queue_over_sql.topics import store
from queue_over_sql.topics.topic import Topic
from queue_over_sql.values.checks import check_name

if TYPE_CHECKING:
    from queue_over_sql.catalog.service_parts import ServiceParts


class Topics:
    """The topics of a service; ``QueueService`` has its verbs, and documents them."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._connections = parts.connections
        self._prefix = parts.settings.table_prefix
        self._opened: dict[str, Topic] = {}

    def create(self, name: str) -> Topic:
        """Create a topic, or open it; see ``QueueService.create_topic``."""
        self._parts.check_open()
        dialect, prefix = self._connections.dialect, self._prefix
        try:
            name = check_queue_name(name, prefix, dialect.features.identifier_limit)
        except InvalidQueueName as error:
            msg = f"A topic name follows the rules for queue names. {error}"
            raise InvalidQueueName(msg) from error
        system = self._parts.system()
        self._connections.run(lambda c: store.add_topic(c, system, dialect, prefix, name))
        return self._open(name)

    def get(self, name: str) -> Topic:
        """Open a topic; see ``QueueService.topic``."""
        self._parts.check_open()
        check_name(name)
        if not may_be_name(name):
            raise TopicNotFound(name)
        if name in self._opened:
            return self._opened[name]
        system = self._parts.system()
        if not self._connections.run(lambda c: store.has_topic(c, system, self._prefix, name)):
            raise TopicNotFound(name)
        return self._open(name)

    def list(self) -> list[Topic]:
        """All topics, by name."""
        self._parts.check_open()
        system = self._parts.system()
        names = self._connections.run(lambda c: store.topic_names(c, system, self._prefix))
        return [self._open(name) for name in names]

    def drop(self, name: str) -> bool:
        """Drop a topic; see ``QueueService.drop_topic``."""
        self._parts.check_open()
        check_name(name)
        if not may_be_name(name):
            return False
        self._opened.pop(name, None)
        system = self._parts.system()
        return self._connections.run(store.remove_topic.of(system, self._prefix, name))

    def _open(self, name: str) -> Topic:
        return self._opened.setdefault(name, Topic(self._parts, name))
