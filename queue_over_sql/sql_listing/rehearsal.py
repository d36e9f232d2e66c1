"""A connection that sends nothing: it notes what would be sent, and makes up the answers."""

from __future__ import annotations

import contextlib
import itertools
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Integer, ScalarSelect, String
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType

from queue_over_sql.groups.statements import in_hand
from queue_over_sql.publishing.statements import came_back
from queue_over_sql.schema.queue_tables import MESSAGE_COLUMNS
from queue_over_sql.sql.compiled import DIRECT, DriverResult, StatementCache

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy import ClauseElement

    from queue_over_sql.sql.compiled import CompiledStatement

_KNOWN: Final[Mapping[str, Any]] = {
    "attempt_count": 1,
    "max_attempts": None,
    "headers": None,
    "payload": "null",
    "kind": None,
    "lease_us": None,
    "lost": None,
    "ids": None,
    "outcome": "failed",
    "taken": 0,
    "due": 1,
    "stopped": 0,
    "settings": "{}",
}
"""What the columns hold in made-up rows, where the type does not decide it."""


_FRUITLESS: Final = frozenset({came_back, in_hand})
"""Queries that find something only in rare cases, in which an operation ends early."""


class MadeUpResult(DriverResult):
    """The made-up rows of one statement."""

    __slots__ = ()

    def one(self) -> Sequence[Any]:
        """The first row, because nobody knows which queries find one."""
        return self.rows[0]

    def scalars(self) -> MadeUpResult:
        """The values of the first column."""
        return made_up([row[0] for row in self.rows])


def made_up(rows: Sequence[Any], count: int = 0) -> MadeUpResult:
    """A result with these rows, or without rows that says it changed ``count``."""
    result = MadeUpResult()
    result.rows, result.rowcount, result.lastrowid = rows, len(rows) or count, 1
    return result


class Rehearsal:
    """The connection. Operations get it as a ``Connection``, of which they use these methods.

    Attributes:
        noted: the statements, with parameters as ``:name``.
        rows: how many rows each query finds; ids count from 1.
    """

    def __init__(self, dialect: Dialect, rows: int) -> None:
        self.dialect, self.rows = dialect, rows
        self.noted: list[str] = []
        self.info: dict[Any, Any] = {}
        # The driver's connection, whose settings some operations ask for: it has none.
        self.connection = SimpleNamespace(dbapi_connection=None, driver_connection=None)
        self._caches: list[_Remembering] = []

    def statements(self, subject: Any) -> StatementCache:
        """The compiled statements of some tables, for operations on this connection."""
        self._caches.append(_Remembering(subject, self.dialect))
        return self._caches[-1]

    def get_execution_options(self) -> Mapping[str, Any]:
        """As a connection of ours, whose statements go direct to the driver."""
        return {DIRECT: _Calls(self)}

    def begin_nested(self) -> AbstractContextManager[None]:
        """A savepoint, of which nothing is noted."""
        return contextlib.nullcontext()

    def exec_driver_sql(self, text: str, *_: object) -> MadeUpResult:
        """Note a text, and answer as if it was sent."""
        known = [cache.compiled[text] for cache in self._caches if text in cache.compiled]
        self.noted.append(_with_names(text, known[0].order if known else ()))
        if known and any(text in cache.fruitless for cache in self._caches):
            return made_up(())
        if known:
            return self._answer(known[0]._clause)  # noqa: SLF001 - nobody else needs it
        # A page of messages, which is compiled for the one time.
        tables = self._caches[0].subject
        columns = tables.message_columns(tables.live)
        return self._rows(zip((*MESSAGE_COLUMNS, *tables.own_columns), columns, strict=True))

    def execute(self, clause: Any, values: Any = None) -> MadeUpResult:
        """Compile a statement as SQLAlchemy does before it executes it, and note it."""
        names = list((values[0] if isinstance(values, list) else values) or ())
        compiled = clause.compile(
            dialect=self.dialect,
            column_keys=names or None,
            compile_kwargs={"render_postcompile": True},
        )
        order = compiled.positiontup if compiled.positional else ()
        self.noted.append(_with_names(compiled.string, order))
        return self._answer(clause)

    def _answer(self, clause: Any) -> MadeUpResult:
        columns = list(getattr(clause, "exported_columns", ()))
        if not columns:
            return made_up((), self.rows)
        return self._rows((getattr(column, "key", None), column) for column in columns)

    def _rows(self, columns: Iterable[tuple[str | None, Any]]) -> MadeUpResult:
        kinds = [(name, column.type, _counts(column)) for name, column in columns]
        return made_up(
            [
                [0 if counts else _value(name, kind, number) for name, kind, counts in kinds]
                for number in range(1, self.rows + 1)
            ]
        )


class _Calls:
    """The calls of the driver."""

    numbered = within_transactions = followed = False

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.execute = rehearsal.exec_driver_sql


class _Remembering(StatementCache):
    """Knows the statement of each text, to name its parameters and make up its rows."""

    def __init__(self, subject: Any, dialect: Dialect) -> None:
        super().__init__(subject, dialect)
        self.compiled: dict[str, CompiledStatement] = {}
        self.fruitless: set[str] = set()

    def get(self, builder: Callable[..., ClauseElement], *variant: Hashable) -> CompiledStatement:
        statement = super().get(builder, *variant)
        self.compiled[statement.text] = statement
        if builder in _FRUITLESS:
            self.fruitless.add(statement.text)
        return statement


_PARAMETER: Final = re.compile(r"'(?:[^']|'')*'|%\((.+?)\)s|%s|\?")


def _with_names(text: str, order: Sequence[str]) -> str:
    """Write parameters as ``:name``, whatever the driver's form."""
    names = iter(order)
    numbers = itertools.count(1)

    def name(found: re.Match[str]) -> str:
        if found[0].startswith("'"):
            return found[0]
        given = found[1] or next(names, f"value_{next(numbers)}")
        # SQLAlchemy names some after the expression beside them.
        return ":" + (given if given.isidentifier() else f"value{_NUMBER.search(given)[0]}")  # type: ignore[index]

    named = _PARAMETER.sub(name, text)
    return named.replace("%%", "%") if "%(" in text or "%s" in text or "%%" in text else named


_NUMBER: Final = re.compile(r"(_\d+)?$")


def _counts(column: Any) -> bool:
    """Whether it is how many rows there are: none, so that nothing of a group is in hand."""
    if isinstance(column, ScalarSelect):
        [column] = column.element.exported_columns
    return isinstance(column, FunctionElement) and getattr(column, "name", "") == "count"


def _value(name: str | None, kind: Any, number: int) -> Any:
    if name == "id":
        return number
    if name is not None and name in _KNOWN:
        return _KNOWN[name]
    if name is not None and name.isdigit():
        return int(name)
    if isinstance(kind, Integer | NullType):
        return 1
    return f"x{number}" if isinstance(kind, String) else None


def texts(noted: Iterable[str]) -> list[str]:
    """The statements that read or write rows, each once, in order."""
    return list(dict.fromkeys(text for text in noted if _ON_ROWS.match(text)))


# Some begin with a setting, which holds for them alone.
_ON_ROWS: Final = re.compile(r"(?:SET STATEMENT .+? FOR )?(?:SELECT|INSERT|UPDATE|DELETE|WITH)\b")
