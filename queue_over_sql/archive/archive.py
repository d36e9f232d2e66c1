"""Archive: the finished messages of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.archive.operations import archive_span, remove_exported
from queue_over_sql.archive.selection import ArchiveSelection
from queue_over_sql.selection.selection import plain_pages
from queue_over_sql.statements.clock import server_now
from queue_over_sql.values.checks import check_function
from queue_over_sql.values.json_lines import message_fields, replaced_file, to_json

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.archive.operations import Span
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.values.states import ArchivedStatus


_PAGE: Final = 1_000


class Archive:
    """The finished messages that a queue keeps."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    @property
    def table(self) -> Table:
        """The archive's SQLAlchemy ``Table``."""
        return self._context.tables.archive

    def messages(
        self,
        *,
        status: ArchivedStatus | None = None,
        key: str | None = None,
        kind: str | None = None,
        group: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> ArchiveSelection:
        """Select archived messages.

        Args:
            status: an outcome: ``done``, ``failed``, ``rejected`` or ``expired``.
            key: only messages with this key.
            kind: only messages of this kind.
            group: only messages of this group.
            payload: fields of a JSON payload that must be equal, as in ``Queue.messages``.
            where: any SQLAlchemy condition on ``table``.

        Raises:
            ValueError: the outcome or a path is not valid, or the queue has no groups.
        """
        return ArchiveSelection(
            self._context,
            status=status,
            key=key,
            kind=kind,
            group=group,
            payload=payload,
            where=where,
        )

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        status: ArchivedStatus | None = None,
        key: str | None = None,
        kind: str | None = None,
        group: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write archived messages to a JSON Lines file, one message per line, ordered by id.

        Each line has all attributes of a message: ``id``, ``queue``, ``key``, ``kind``, ``group``,
        ``headers``, ``priority``, ``max_attempts``, ``columns``, ``payload``, ``attempt``, the
        times as ISO 8601 (``published_at`` … ``finished_at``), ``consumer_id``, ``consumer_round``,
        ``last_error`` and ``outcome``. Bytes are written in Base64, and marked by
        ``payload_encoding``. Failed attempts are not exported; ``Queue.attempts`` reads them.

        The export contains the messages that were in the archive at its start, except those pruned
        meanwhile. The file is replaced atomically when it is complete.

        Args:
            path: path of the file.
            status: as in ``messages``.
            key: as in ``messages``.
            kind: as in ``messages``.
            group: as in ``messages``.
            payload: as in ``messages``.
            where: as in ``messages``.
            progress: a function to call after each page of 1,000 messages, with the number so far.

        Returns:
            How many messages were written.

        Raises:
            OSError: the file cannot be written; an existing file stays.
            ValueError: as in ``messages``.
        """
        check_function("progress", progress)
        selection = self.messages(
            status=status, key=key, kind=kind, group=group, payload=payload, where=where
        )
        written = 0
        with replaced_file(path) as write:
            for page in plain_pages(selection, _PAGE):
                for message in page:
                    write(to_json(message_fields(message)))
                written += len(page)
                if progress is not None:
                    progress(written)
        return written


class ArchiveHistory:
    """An archive as the source of an export. Times are microseconds by the server's clock."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    @property
    def removable(self) -> bool:
        """Whether exported rows may be removed. Rows of an existing table belong to the user."""
        return not self._context.tables.ends_in_place

    def now(self) -> int:
        """The server's clock."""
        sql = self._context.sql
        return self._context.run(lambda connection: server_now(connection, sql))

    def span(self, after: int | None, up_to: int) -> Span:
        """Count the messages that finished in a period, and find when the first of them did."""
        sql = self._context.sql
        return self._context.run(lambda connection: archive_span(connection, sql, after, up_to))

    def remove(self, ids: Sequence[int], up_to: int) -> int:
        """Permanently remove messages that finished by a given time; returns how many."""
        sql = self._context.sql
        return self._context.run(remove_exported.of(sql, ids, up_to))
