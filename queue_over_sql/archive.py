"""Archive: the finished messages that a queue keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql.selection import ArchiveSelection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement, Table

    from queue_over_sql.context import QueueContext


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
        status: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        payload: Mapping[str, Any] | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> ArchiveSelection:
        """Select archived messages.

        Args:
            status: an outcome: ``done``, ``failed``, ``rejected`` or ``expired``.
            key: the key they were published under.
            kind: the name of their payload's type.
            payload: fields of a JSON payload that must be equal, as in ``Queue.messages``.
            where: any SQLAlchemy condition on ``table``.

        Raises:
            ValueError: there is no such outcome, or no such path.
        """
        return ArchiveSelection(
            self._context, status=status, key=key, kind=kind, payload=payload, where=where
        )
