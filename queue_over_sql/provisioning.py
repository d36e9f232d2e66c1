"""Provisioning: the methods of a service that create, adopt, open, list and drop queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queue_over_sql.adoption import AdoptedQueue
from queue_over_sql.durations import Duration
from queue_over_sql.errors import QueueNotFound
from queue_over_sql.settings import (
    UNSET,
    ArchivePolicy,
    PayloadType,
    QueueSettings,
    Unset,
    check_flag,
)

if TYPE_CHECKING:
    from sqlalchemy import Column

    from queue_over_sql.parts import ServiceParts
    from queue_over_sql.queue import Queue
    from queue_over_sql.retry import RetryPolicy


class Provisioning:
    """What a ``QueueService`` does about which queues there are."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    def create_queue(
        self,
        name: str,
        *,
        lease: Duration | Unset = UNSET,
        max_attempts: int | Unset = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        payload: PayloadType | Unset = UNSET,
        priorities: int | Unset = UNSET,
        archive: ArchivePolicy | Unset = UNSET,
        archive_ttl: Duration | Mapping[str, Duration | None] | Unset | None = UNSET,
        archive_limit: int | Mapping[str, int | None] | Unset | None = UNSET,
        dedup_window: Duration | Unset | None = UNSET,
        max_payload_bytes: int | Unset = UNSET,
        columns: Sequence[Column[Any]] | Unset = UNSET,
        kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET,
        kind_timeout: Duration | Unset = UNSET,
    ) -> Queue:
        """Create a queue, or open it where it exists; safe from many servers at once.

        What is given is applied to an existing queue too; what is not stays as it is.

        Args:
            name: 1 to 40 lower-case letters, digits and underscores, beginning with a letter.
            lease: how long a claim holds without being extended (300 s).
            max_attempts: deliveries before a message is a dead letter (5).
            retry: policy after a failure (``ExponentialBackoff()``).
            payload: ``"json"``, ``"text"`` or ``"bytes"``; fixed from then on.
            priorities: number of levels, 1 to 100 (1).
            archive: which finished messages are kept: ``"none"``, ``"failed"`` or ``"all"``.
            archive_ttl: how long they are kept, for all outcomes or by outcome; None for ever.
            archive_limit: how many of each outcome are kept, the newest; None for any number.
            dedup_window: how long a key stays taken after its message finished (not at all).
            max_payload_bytes: largest encoded payload (1 MiB).
            columns: SQLAlchemy columns of the queue's own; fixed from then on.
            kinds: types of payloads that this server's code knows: a list of Pydantic models,
                dataclasses, TypedDicts or types of plain JSON, or a mapping of kinds to types.
            kind_timeout: how long a message of an unknown kind, or that does not fit its kind,
                waits for a server that knows better (1 day).

        Raises:
            InvalidQueueName: it is no queue name.
            QueueSchemaMismatch: the queue exists with another payload type or other columns.
            DatabaseUnavailable: nothing was created.
            ImportError: there are kinds, and Pydantic is not installed.
            TypeError, ValueError: a setting has no sensible value.
        """
        asked = QueueSettings(
            lease=lease,
            max_attempts=max_attempts,
            retry=retry,
            payload=payload,
            priorities=priorities,
            archive=archive,
            archive_ttl=archive_ttl,
            archive_limit=archive_limit,
            dedup_window=dedup_window,
            max_payload_bytes=max_payload_bytes,
            columns=columns,
            kinds=kinds,
            kind_timeout=kind_timeout,
        )
        self._parts.check_open()
        # A name that is none may not even be a key.
        name = self._parts.catalog.checked_name(name)
        return self.create_queues({name: asked})[name]

    def create_queues(self, queues: Mapping[str, QueueSettings]) -> dict[str, Queue]:
        """Create several queues, as a server does when it boots.

        Args:
            queues: the settings of each, by name.

        Returns:
            The queues, by name.

        Raises:
            As ``create_queue``; all names are checked before the first queue is created.
        """
        self._parts.check_open()
        if not isinstance(queues, Mapping) or not all(
            isinstance(asked, QueueSettings) for asked in queues.values()
        ):
            msg = "queues must be a mapping of names to QueueSettings"
            raise TypeError(msg)
        return self._parts.catalog.create(queues)

    def adopt_queue(
        self,
        name: str,
        table: Any,
        *,
        column_prefix: str = "",
        lease: Duration | Unset = UNSET,
        max_attempts: int | Unset = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        priorities: int | Unset = UNSET,
    ) -> AdoptedQueue:
        """Make a queue of a table of your own: each row may be a message; safe to repeat.

        The columns and indexes of a queue are added to the table, which needs one whole-number
        primary key. No row is a message before ``enqueue`` or ``publish`` makes it one, and none
        is ever deleted: what is finished keeps what became of it in its row.

        Args:
            name: of the queue, as in ``create_queue``.
            table: an SQLAlchemy ``Table`` or a mapped class, whose types and defaults are used;
                or the table's name, with its schema before a dot.
            column_prefix: what the names of the added columns begin with.
            lease: how long a claim holds without being extended (300 s).
            max_attempts: deliveries before a message is a dead letter (5).
            retry: policy after a failure (``ExponentialBackoff()``).
            priorities: number of levels, 1 to 100 (1).

        Raises:
            InvalidQueueName: it is no queue name.
            QueueSchemaMismatch: the table is not there, has no such key or has columns of our
                names, or the queue exists otherwise; nothing was changed.
            DatabaseUnavailable: as its name says; calling again completes what was begun.
            TypeError, ValueError: an argument has no sensible value.
        """
        self._parts.check_open()
        asked = QueueSettings(
            lease=lease, max_attempts=max_attempts, retry=retry, priorities=priorities
        )
        queue = self._parts.catalog.adopt(name, table, column_prefix, asked)
        if not isinstance(queue, AdoptedQueue):
            raise QueueNotFound(name)
        return queue

    def queue(self, name: str) -> Queue:
        """Open a queue that exists.

        Raises:
            QueueNotFound: it does not.
        """
        self._parts.check_open()
        return self._parts.catalog.get(name)

    def queues(self, *, temporary: bool = False) -> list[Queue]:
        """All queues under this service's table prefix, by name.

        Args:
            temporary: the queues of replies to ``request``, too, which belong to consumers.
        """
        self._parts.check_open()
        check_flag("temporary", temporary)
        return self._parts.catalog.all(temporary=temporary)

    def drop_queue(self, name: str) -> bool:
        """Drop a queue with all its messages and its archive; False where there is none.

        Its schedules, its subscriptions to topics and its durable consumers go with it.

        Of a queue over a table of your own only the added columns and indexes are dropped.

        Others who have it open notice within 5 seconds. If you create it anew with another payload
        type, let nobody publish in between: they would store the former type in it.

        Raises:
            DatabaseUnavailable: transactions kept using the queue for about half a minute.
        """
        self._parts.check_open()
        return self._parts.catalog.drop(name)
