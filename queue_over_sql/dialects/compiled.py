"""Statements compiled once for an engine and run as plain text afterwards.

Building an SQLAlchemy statement for each call costs several times what the call itself does, so
each statement of a queue is built and compiled once and kept by its builder and its variant.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queue_over_sql.dialects.direct import DriverResult, direct_calls, run_text

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Dialect
    from sqlalchemy.sql import ClauseElement
    from sqlalchemy.types import TypeEngine

_MOST_KEPT = 512
_PYFORMAT = re.compile(r"%%|%\(([^)]+)\)s")


def same_driver(one: Dialect, other: Dialect) -> bool:
    """Whether what was compiled for one of them is what the other's driver takes."""
    return one is other or (type(one) is type(other) and one.paramstyle == other.paramstyle)


class CompiledStatement:
    """The text of a statement for one driver, with what its parameters need.

    On a caller's connection that has another driver it is compiled for that one.
    """

    def __init__(self, clause: ClauseElement, dialect: Dialect) -> None:
        self._clause, self._dialect = clause, dialect
        # For the drivers of callers' connections: the last one is the likely one.
        self._elsewhere: tuple[Dialect, CompiledStatement] | None = None
        compiled: Any = clause.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.text: str = compiled.string
        self._defaults: dict[str, Any] = dict(compiled.params)
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        self._converters = _converters(compiled, dialect)

    def run(
        self, connection: Connection, values: Mapping[str, Any] | None = None
    ) -> DriverResult | CursorResult[Any]:
        """Execute on a connection; ``values`` are the bind parameters by name."""
        calls = direct_calls(connection)
        if calls is None:
            return connection.exec_driver_sql(*self.on(connection.dialect).bound(values))
        return calls.run(self, values)

    def on(self, dialect: Dialect) -> CompiledStatement:
        """The same statement for the driver of this dialect."""
        if same_driver(dialect, self._dialect):
            return self
        elsewhere = self._elsewhere
        if elsewhere is None or not same_driver(dialect, elsewhere[0]):
            elsewhere = self._elsewhere = dialect, CompiledStatement(self._clause, dialect)
        return elsewhere[1]

    @property
    def order(self) -> Sequence[str]:
        """The names of the parameters in the order of the text, where they go by position."""
        return self._order or ()

    def run_ordered(self, connection: Connection, values: Sequence[Any]) -> None:
        """Execute with values in the order of the text's parameters.

        Only for drivers that take parameters by position.
        """
        run_text(connection, self.text, self._converted(values)).close()

    def _converted(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if not self._converters:
            return tuple(values)
        found = dict(self._converters)
        return tuple(
            [
                found[name](value) if name in found else value
                for name, value in zip(self.order, values, strict=True)
            ]
        )

    def bound(self, values: Mapping[str, Any] | None = None) -> tuple[str, Any]:
        """The text and its parameters, as a cursor of the driver takes them."""
        merged = self._merged(values)
        if self._order is None:
            return self.text, merged
        return self.text, tuple([merged[n] for n in self._order])

    def numbered(self, values: Mapping[str, Any] | None = None) -> tuple[str, Sequence[Any]]:
        """The same with parameters ``$1``, ``$2`` …, for cursors that take the server's own form.

        Only for drivers whose parameters are written ``%(name)s``.
        """
        text, order = self._numbers
        merged = self._merged(values)
        return text, [merged[name] for name in order]

    @functools.cached_property
    def _numbers(self) -> tuple[str, Sequence[str]]:
        order: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            if found[0] == "%%":
                return "%"
            return f"${order.setdefault(found[1], len(order) + 1)}"

        return _PYFORMAT.sub(number, self.text), tuple(order)

    def _merged(self, values: Mapping[str, Any] | None) -> dict[str, Any]:
        merged = {**self._defaults, **values} if values else dict(self._defaults)
        for name, convert in self._converters:
            merged[name] = convert(merged[name])
        return merged


Builder = Callable[..., "ClauseElement"]


class StatementCache:
    """The compiled statements of one set of tables, by builder and variant.

    Attributes:
        subject: the tables that builders get.
    """

    def __init__(self, subject: Any, dialect: Dialect) -> None:
        self.subject = subject
        self._dialect = dialect
        self._compiled: OrderedDict[Hashable, CompiledStatement] = OrderedDict()

    def get(self, builder: Builder, *variant: Hashable) -> CompiledStatement:
        """The statement that ``builder(subject, *variant)`` makes, compiled at its first use."""
        key = (builder, variant)
        statement = self._compiled.get(key)
        if statement is None:
            # Two threads may both compile; either result is the same.
            statement = CompiledStatement(builder(self.subject, *variant), self._dialect)
            self._compiled[key] = statement
            if len(self._compiled) > _MOST_KEPT:
                # Only conditions of users can be so many: the ones not used for longest go.
                with contextlib.suppress(KeyError):
                    self._compiled.popitem(last=False)
        elif len(self._compiled) > _MOST_KEPT // 2:
            with contextlib.suppress(KeyError):
                self._compiled.move_to_end(key)
        return statement

    def bind_converter(self, kind: TypeEngine[Any]) -> Callable[[Any], Any] | None:
        """What turns a Python value of this type into the driver's; None where nothing must."""
        return kind.dialect_impl(self._dialect).bind_processor(self._dialect)

    def own_converters(self, dialect: Dialect) -> Sequence[Callable[[Any], Any] | None]:
        """What turns a driver's values of the queue's own columns into Python's, by column."""
        if same_driver(dialect, self._dialect):
            return self._own_converters
        return self._converters_of(dialect)

    @functools.cached_property
    def _own_converters(self) -> Sequence[Callable[[Any], Any] | None]:
        return self._converters_of(self._dialect)

    def _converters_of(self, dialect: Dialect) -> Sequence[Callable[[Any], Any] | None]:
        kinds = [self.subject.live.c[name].type for name in self.subject.own_columns]
        code = self.subject.dialect.result_code
        return [kind.dialect_impl(dialect).result_processor(dialect, code(kind)) for kind in kinds]


def _converters(compiled: Any, dialect: Dialect) -> list[tuple[str, Callable[[Any], Any]]]:
    """Bind processors that the types of the parameters ask for on this driver."""
    found: list[tuple[str, Callable[[Any], Any]]] = []
    # A property that makes a new dictionary each time.
    names = list(compiled.params)
    known = set(names)
    for bind, name in compiled.bind_names.items():
        convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
        if convert is None:
            continue
        if name in known:
            found.append((name, convert))
        else:
            # The parameter of an IN was expanded into one for each value.
            expanded = re.compile(rf"{re.escape(name)}_\d+")
            found += [(each, convert) for each in names if expanded.fullmatch(each)]
    return found
