"""An operation for Django's migrations: a model's table becomes a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import NotSupportedError
from django.db.migrations.operations.base import Operation
from sqlalchemy import and_, literal_column

from queue_over_sql.contrib.django.services import temporary_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import ColumnElement, Table


class AdoptQueue(Operation):
    """Adopts the table of a model as a queue; backwards it drops the queue, never the table.

    It works outside of the migration's transaction, so give it a migration of its own with
    ``atomic = False``.

    Args:
        model: the model's name.
        queue: the queue's name.
        finished: a field that is not null in rows that are finished. The others become messages.
        where: a condition in SQL that rows must meet to become messages, such as
            ``"status = 'new'"``. Without it and ``finished`` no row does.
        settings: as for ``QueueService.adopt_queue``, such as ``column_prefix``.
    """

    reduces_to_sql: Final = False
    reversible: Final = True

    def __init__(
        self,
        model: str,
        queue: str,
        *,
        finished: str | None = None,
        where: str | None = None,
        **settings: Any,
    ) -> None:
        self.model = model
        self.queue = queue
        self.finished = finished
        self.where = where
        self.settings = settings

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The model stays as it is: the queue's columns are none of its fields."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Add the columns of a queue, and enqueue the rows that are not finished.

        Raises:
            NotSupportedError: the migration is atomic.
        """
        del from_state
        model = to_state.apps.get_model(app_label, self.model)
        alias = self._alias(schema_editor, model)
        if alias is None:
            return
        with temporary_service(alias) as service:
            queue = service.adopt_queue(self.queue, model._meta.db_table, **self.settings)  # noqa: SLF001 - as public as Django has it
            conditions = list(self._conditions(model, queue.table))
            if conditions:
                queue.enqueue(and_(*conditions))

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Drop the queue with its columns.

        Raises:
            NotSupportedError: the migration is atomic.
        """
        del to_state
        model = from_state.apps.get_model(app_label, self.model)
        alias = self._alias(schema_editor, model)
        if alias is not None:
            with temporary_service(alias) as service:
                service.drop_queue(self.queue)

    def describe(self) -> str:
        """What `manage.py migrate --plan` shows."""
        return f"Adopt the table of {self.model} as the queue {self.queue}"

    def _conditions(self, model: Any, table: Table) -> Iterator[ColumnElement[Any]]:
        if self.finished is not None:
            column = model._meta.get_field(self.finished).column  # noqa: SLF001 - as public as Django has it
            # By its name: the key may be that of a column of the queue.
            yield next(each for each in table.columns if each.name == column).is_(None)
        if self.where is not None:
            # The line break ends a comment.
            yield literal_column(f"({self.where}\n)")

    def _alias(self, schema_editor: Any, model: Any) -> str | None:
        """The database, unless the model is not to be there."""
        connection = schema_editor.connection
        if not self.allow_migrate_model(connection.alias, model):
            return None
        if connection.in_atomic_block:
            msg = (
                f"the queue {self.queue!r} cannot be adopted inside of a transaction: put "
                "AdoptQueue in a migration of its own, and write atomic = False there"
            )
            raise NotSupportedError(msg)
        return str(connection.alias)
