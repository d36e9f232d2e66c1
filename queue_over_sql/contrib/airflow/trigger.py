"""The trigger: an event for each message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from queue_over_sql.contrib.airflow.stream import QueueStream, Received
from queue_over_sql.values.json_lines import ENCODING_FIELD, message_fields, to_json

_FIELDS = ("id", "queue", "kind", "payload", ENCODING_FIELD, "headers", "attempt", "published_at")


class QueueTrigger(BaseEventTrigger):
    """Fires an event for each message of a queue, the oldest first.

    The message is acked when Airflow's database has the event. A triggerer that ends before, or is
    killed, gives the message back, so it is fired again: at least once. The ``id`` in the event
    tells which one came twice. What the queue counts as an attempt is a triggerer that died or an
    event that was not stored in time; after ``max_attempts`` the message is a dead letter. What
    becomes of a stored event is Airflow's: a run that fails is not repeated by the queue.

    The event is a dictionary of JSON: ``id``, ``queue``, ``kind``, ``payload``, ``headers``,
    ``attempt`` and ``published_at`` (as ISO 8601) of the message. A payload of bytes is Base64, and
    ``payload_encoding`` says so.

    Of a task that waits for it, a message goes to one, and the task gets one.

    Args:
        queue_name: the name of the queue.
        conn_id: the connection of Airflow to the database: SQLite, PostgreSQL, MySQL or MariaDB.
        consumer_timeout: after so many seconds without a sign of life a triggerer is dead, and its
            messages are fired by another.
    """

    def __init__(
        self,
        queue_name: str,
        conn_id: str = "queue_over_sql_default",
        consumer_timeout: float = 30.0,
    ) -> None:
        super().__init__()
        self.queue_name = queue_name
        self.conn_id = conn_id
        self.consumer_timeout = consumer_timeout

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments, with which each triggerer makes it again."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        arguments = ("queue_name", "conn_id", "consumer_timeout")
        return path, {name: getattr(self, name) for name in arguments}

    def shared_stream_key(self) -> Hashable:
        """Each trigger has a stream of its own; only streams hear that an event was stored."""
        return (*self.serialize()[1].values(), self.trigger_id)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> QueueStream:
        """The stream of messages that Airflow tells what it has stored."""
        return QueueStream(**kwargs)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Received]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Fire an event for each message of the stream."""
        async for received in shared_stream:
            yield _event(received)
            # The triggerer asks for the next, so it has this one.
            received.fired = True
            if self.task_instance is not None:
                # Airflow drops what a task gets after its first event.
                async for _ in shared_stream:
                    await asyncio.Event().wait()

    def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse: nothing would tell whether an event was stored.

        Raises:
            RuntimeError: always. The triggerer of Airflow 3.3 and later calls the other methods.
        """
        msg = "Only a triggerer of Airflow 3.3 or later runs this trigger: it says what it stored."
        raise RuntimeError(msg)


def _event(received: Received) -> TriggerEvent:
    fields = message_fields(received.message)
    return TriggerEvent(
        json.loads(to_json({name: fields[name] for name in _FIELDS if name in fields}))
    )
