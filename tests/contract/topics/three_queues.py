"""A topic with three queues, and their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.contract.queue_state import payloads

if TYPE_CHECKING:
    from queue_over_sql import Message, QueueService, Topic

NAMES = ("a", "b", "c")


def three_queues(service: QueueService) -> Topic:
    """A topic with three queues that take everything; ``b`` has three levels."""
    topic = service.create_topic("events")
    for name in NAMES:
        topic.subscribe(service.create_queue(name, priorities=3 if name == "b" else 1))
    return topic


def listed(service: QueueService, name: str) -> list[Message]:
    """The messages of a queue."""
    return list(service.queue(name).messages().list())


def contents(service: QueueService) -> list[list[Any]]:
    """The payloads in the three queues."""
    return [payloads(listed(service, name)) for name in NAMES]
