"""Which messages a command means: the options that choose them, and the selection that they make.

Every command that finds messages takes one argument ``filters``; `filtered` turns it into options.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, get_type_hints

import typer
from sqlalchemy import ColumnElement, literal_column

from queue_over_sql import ArchiveSelection, DatabaseRefused, LiveSelection, PayloadInvalid, Queue
from queue_over_sql.cli.options import FILTERS_PANEL
from queue_over_sql.cli.values import parse_pairs

LIVE_STATUS: Final = "Only ready, delayed, claimed or held ones."
ARCHIVE_STATUS: Final = "Only done, failed, rejected or expired ones."
ANY_STATUS: Final = (
    "Only ready, delayed, claimed or held ones; with --archive only done, failed, rejected or "
    "expired ones."
)
PAYLOAD_HELP: Final = (
    "Only messages with this field in their JSON payload, e.g. address.city=Zagreb or items.0.id=7 "
    "(positions in a list count from 0). VALUE is JSON where it is, text otherwise, so text of "
    "digits is written zip='\"123\"'. Repeatable: all must match."
)
WHERE_HELP: Final = (
    "Only messages for which this SQL condition holds, on the columns of the queue's table (id, "
    "message_key, kind, payload, priority, attempt_count, last_error, … and your own). It is put "
    "into the statement as it is, in your database's own SQL."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filters:
    """What the command line says of the messages that are meant; nothing: all of them."""

    status: str | None = None
    key: str | None = None
    kind: str | None = None
    payload: Sequence[str] | None = None
    where: str | None = None

    @property
    def given(self) -> bool:
        """Whether anything was said."""
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

    def live(self, queue: Queue) -> LiveSelection:
        """The messages of `queue` that are meant."""
        return queue.messages(**self.arguments())

    def archived(self, queue: Queue) -> ArchiveSelection:
        """The finished messages of `queue` that are meant."""
        return queue.archive.messages(**self.arguments())


def sql_condition(where: str | None) -> ColumnElement[Any] | None:
    """A condition in SQL, as it was typed; None where there is none."""
    # Not text(): a colon in it would begin a parameter. The line's end ends a comment.
    return None if where is None else literal_column(f"({where}\n)")


def parse_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """Fields of a payload; a path that is there twice is refused, since both cannot hold."""
    fields = parse_pairs(pairs, "--payload")
    if len(fields) < len(pairs):
        raise typer.BadParameter("a path is given more than once", param_hint="--payload")
    return fields


def filtered(function: Callable[..., None], *, status: str, few: bool = False) -> Any:
    """`function` with options in place of its argument ``filters``.

    Args:
        function: a command as `command` takes it, with an argument ``filters``.
        status: the help of ``--status``.
        few: only ``--status``, ``--key`` and ``--kind``.
    """
    hints = get_type_hints(function, include_extras=True)
    options = _options(status)
    names = [*options][:3] if few else [*options]

    @functools.wraps(function)
    def run(session: Any, **values: Any) -> None:
        filters = Filters(**{name: values.pop(name) for name in names})
        with _naming_where(filters):
            function(session, filters=filters, **values)

    def parameters() -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "filters":
                yield parameter.replace(annotation=hints[parameter.name])
                continue
            for name in names:
                yield parameter.replace(name=name, annotation=options[name], default=None)

    run.__signature__ = inspect.Signature([*parameters()])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters()}
    return run


@contextmanager
def _naming_where(filters: Filters) -> Iterator[None]:
    try:
        yield
    except (DatabaseRefused, PayloadInvalid) as error:
        if filters.where is None:
            raise
        raise DatabaseRefused(
            f"{error} Look at --where: it is SQL for this database, on the columns of the table."
        ) from error


def _options(status: str) -> dict[str, Any]:
    return {
        "status": Annotated[str | None, _option("--status", "STATUS", status)],
        "key": Annotated[str | None, _option("--key", "KEY", "Only messages with this key.")],
        "kind": Annotated[str | None, _option("--kind", "KIND", "Only messages of this kind.")],
        "payload": Annotated[list[str] | None, _option("--payload", "PATH=VALUE", PAYLOAD_HELP)],
        "where": Annotated[str | None, _option("--where", "SQL", WHERE_HELP)],
    }


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(
        name, metavar=metavar, show_default=False, rich_help_panel=FILTERS_PANEL, help=text
    )
