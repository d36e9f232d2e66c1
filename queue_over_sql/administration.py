"""What an operator does with a queue: look, count, pause, purge, delete."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from queue_over_sql import store
from queue_over_sql.archive import Archive
from queue_over_sql.durations import stored_number
from queue_over_sql.errors import QueueNotFound
from queue_over_sql.selection import LiveSelection
from queue_over_sql.settings import check_flag, check_whole
from queue_over_sql.stats import QueueStats
from queue_over_sql.store import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.context import QueueContext
    from queue_over_sql.settings import EffectiveSettings


class QueueAdministration:
    """The part of ``Queue`` that claims nothing."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._context.name

    @property
    def table(self) -> Table:
        """The SQLAlchemy ``Table`` of the live messages, for conditions and queries."""
        return self._context.tables.live

    @property
    def temporary(self) -> bool:
        """Whether it is a queue of replies, which is dropped with the consumer that it serves."""
        return self._context.tables.temporary

    @property
    def settings(self) -> EffectiveSettings:
        """The settings in force; durations are ``timedelta``.

        Raises:
            QueueNotFound: the queue was dropped.
        """
        return self._context.settings

    @property
    def known_settings(self) -> EffectiveSettings:
        """The settings as they were read last; asks nobody."""
        return self._context.known_settings

    @property
    def archive(self) -> Archive:
        """The finished messages that are kept."""
        return Archive(self._context)

    def delete(self, message_id: int) -> bool:
        """Remove a message, whoever holds it; the holder loses it. False where there is none."""
        message_id = check_whole("message_id", message_id, 0)
        sql = self._context.sql
        return self._context.run(lambda c: store.delete_message(c, sql, message_id), durable=True)

    def messages(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> LiveSelection:
        """Select live messages without claiming them.

        Args:
            status: ``ready``, ``delayed``, ``claimed`` or ``held``.
            key: the key of one message.
            kind: the name of their payload's type.
            payload: fields of a JSON payload that must be equal: paths such as ``address.city`` or
                ``items.0.sku`` to text, numbers, True, False or None.
            where: any SQLAlchemy condition on ``table``.

        Raises:
            ValueError: there is no such status, or no such path.
            UnsupportedByEngine: this database cannot look into JSON.
        """
        return LiveSelection(
            self._context, status=status, key=key, kind=kind, payload=payload, where=where
        )

    def stats(self) -> QueueStats:
        """Count what is there now, by status and outcome; all of it at one moment."""
        context = self._context
        (ready, delayed, claimed, held, age), archived = context.run(
            lambda connection: store.counts(connection, context.sql)
        )
        record = self._record()
        return QueueStats(
            ready=ready,
            delayed=delayed,
            claimed=claimed,
            held=held,
            archived=sum(archived.values()),
            done=archived.get("done", 0),
            failed=archived.get("failed", 0),
            rejected=archived.get("rejected", 0),
            expired=archived.get("expired", 0),
            discarded=stored_number("discarded_count", record.discarded),
            oldest_ready_age=timedelta(microseconds=age) if ready else None,
            paused=record.paused,
            wal_bytes=context.run(context.tables.dialect.wal_bytes),
        )

    def pause(self) -> None:
        """Stop handing out messages, everywhere and at once; what is claimed may be settled."""
        tables = self._context.tables
        self._change(paused_at=tables.dialect.now())

    def resume(self) -> None:
        """Hand out messages again."""
        self._change(paused_at=None)
        self._context.announce()

    def purge(self, *, claimed: bool = False) -> int:
        """Remove ready, delayed and held messages; the archive stays.

        Args:
            claimed: remove claimed ones too; their holders lose them.

        Returns:
            How many were removed.
        """
        check_flag("claimed", claimed)
        sql = self._context.sql
        return self._context.run(
            lambda connection: store.purge(connection, sql, with_claimed=claimed), durable=True
        )

    def refresh(self) -> None:
        """Read the settings again now."""
        self._context.refresh()

    def highest_priority(self) -> int:
        """The largest level number in use."""
        sql = self._context.sql
        return self._context.run(lambda connection: store.highest_priority(connection, sql))

    def _record(self) -> registry.QueueRecord:
        tables = self._context.tables
        record = self._context.run(
            lambda c: registry.queue_record(c, tables.system, tables.prefix, tables.queue)
        )
        if record is None:
            raise QueueNotFound(self.name)
        return record

    def _change(self, **values: Any) -> None:
        tables = self._context.tables
        changed = self._context.run(
            lambda c: registry.change_queue(c, tables.system, tables.prefix, self.name, **values)
        )
        if not changed:
            raise QueueNotFound(self.name)
