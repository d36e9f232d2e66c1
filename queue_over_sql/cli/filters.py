"""The options that filter messages, and the selection that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql import DatabaseRefused, PayloadInvalid
from queue_over_sql.cli.options import FILTERS_PANEL
from queue_over_sql.cli.session import Session
from queue_over_sql.cli.values import parse_pairs

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql import ArchiveSelection, LiveSelection, Queue

PAYLOAD_HELP: Final = (
    "Only messages with this field in their JSON payload, e.g. address.city=Zagreb or items.0.id=7 "
    "(positions in a list count from 0). VALUE is read as JSON if it is valid JSON, else as text; "
    "write a text of digits as zip='\"123\"'. Repeatable: all must match."
)
WHERE_HELP: Final = (
    "Only messages that match this SQL condition on the columns of the queue's table (id, "
    "message_key, kind, payload, priority, attempt_count, last_error, … and your own). It becomes "
    "part of the statement unchanged, in the SQL dialect of your database."
)


def _filter(metavar: str, text: str) -> Any:
    return typer.Option(
        metavar=metavar, show_default=False, rich_help_panel=FILTERS_PANEL, help=text
    )


LiveStatus = Annotated[
    str | None, _filter("STATUS", "Only messages of this status: ready, delayed, claimed or held.")
]
ArchiveStatus = Annotated[
    str | None,
    _filter("STATUS", "Only messages with this outcome: done, failed, rejected or expired."),
]
AnyStatus = Annotated[
    str | None,
    _filter(
        "STATUS",
        "Only messages of this status: ready, delayed, claimed or held; with --archive: done, "
        "failed, rejected or expired.",
    ),
]
KeyFilter = Annotated[str | None, _filter("KEY", "Only messages with this key.")]
KindFilter = Annotated[str | None, _filter("KIND", "Only messages of this kind.")]
PayloadFilter = Annotated[list[str] | None, _filter("PATH=VALUE", PAYLOAD_HELP)]
WhereFilter = Annotated[str | None, _filter("SQL", WHERE_HELP)]


@dataclasses.dataclass(frozen=True)
class Filters:
    """The filters given on the command line; none selects all messages."""

    status: str | None = None
    key: str | None = None
    kind: str | None = None
    payload: Sequence[str] | None = None
    where: str | None = None

    @property
    def given(self) -> bool:
        """Whether any filter was given."""
        return any(value not in (None, [], ()) for value in dataclasses.astuple(self))

    def arguments(self) -> dict[str, Any]:
        """The arguments of the library's ``messages`` and ``export``."""
        return {
            "status": self.status,
            "key": self.key,
            "kind": self.kind,
            "payload": parse_fields(self.payload) if self.payload else None,
            "where": sql_condition(self.where),
        }

    @contextmanager
    def queue(self, session: Session, name: str) -> Iterator[Queue]:
        """Open the queue `name`; an error that --where may have caused says so."""
        try:
            with session.queue(name) as queue:
                yield queue
        except (DatabaseRefused, PayloadInvalid) as error:
            if self.where is None:
                raise
            raise DatabaseRefused(
                f"{error} Check --where: it must be SQL for this database, on the columns of the "
                "table."
            ) from error

    def live(self, queue: Queue) -> LiveSelection:
        """The matching messages of `queue`."""
        return queue.messages(**self.arguments())

    def archived(self, queue: Queue) -> ArchiveSelection:
        """The matching archived messages of `queue`."""
        return queue.archive.messages(**self.arguments())


def sql_condition(where: str | None) -> ColumnElement[Any] | None:
    """The SQL condition as it was typed, or None."""
    from sqlalchemy import literal_column

    # Not text(), for which a colon begins a parameter. The line break ends a comment.
    return None if where is None else literal_column(f"({where}\n)")


def parse_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse the payload fields to filter by; reject a path that was given twice."""
    fields = parse_pairs(pairs, "--payload")
    if len(fields) < len(pairs):
        raise typer.BadParameter("a path is given more than once", param_hint="--payload")
    return fields
