"""H2's types, expressions and statements."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Numeric,
    String,
    Table,
    case,
    cast,
    false,
    literal_column,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.conditions import JsonPath, JsonScalar
from queue_over_sql.sql.expressions import Expressions, microseconds


class H2Expressions(Expressions):
    """H2's SQL."""

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """Twice the length, because a character may count as two."""
        return String(2 * length)

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        """A comparison, because H2 reads the whole table for IS NOT NULL."""
        return table.c.consumer_id > literal_column("''")

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """Compare the field's JSON; numbers by their text, because 1 and 1.0 differ as JSON.

        Raises:
            UnsupportedByEngine: H2 can search in JSON only from 2.2.220 on.
        """
        if not self.features.skip_locked:
            msg = "Searching by fields of the payload requires H2 2.2.220 or newer."
            raise UnsupportedByEngine(msg)
        field: ColumnElement[Any] = JsonField(column, path)
        found = cast(field, String)
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = cast(found, Numeric) == cast(repr(value), Numeric)
            matches: ColumnElement[bool] = case(
                (found.op("REGEXP")("^[-0-9]"), number), else_=false()
            )
        else:
            wanted = cast(json.dumps(value, ensure_ascii=False), String)
            matches = field == JsonField(wanted, ())
        # Invalid JSON would raise an error.
        return case((column.op("IS")(literal_column("JSON")), matches), else_=false())

    def now(self) -> ColumnElement[int]:
        """The server's clock; one value per transaction, as H2 defines it."""
        seconds = "EXTRACT(EPOCH FROM CURRENT_TIMESTAMP(6))"
        return microseconds(f"CAST({seconds} * 1000000 AS BIGINT)")

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Only floats have NaN and infinities."""
        return not exact or math.isfinite(value)

    def claim_index_hint(self, base: str) -> str | None:
        """The index gives the order; an ORDER BY would lock every matching row."""
        return f"USE INDEX ({base}_claim_ix)"

    def order_in_group(self, table: FromClause) -> Sequence[ColumnElement[Any]]:
        """H2 would sort without the columns for which there is only one value."""
        return [table.c.group_key, table.c.consumer_id, table.c.id]

    def group_index_hint(self, base: str) -> str | None:
        """Without it H2 may read the claim index."""
        return f"USE INDEX ({base}_group_ix)"


class JsonField(ColumnElement[Any]):
    """A text field that is parsed as JSON; an empty path means the whole."""

    inherit_cache = False

    def __init__(self, text: ColumnElement[Any], path: JsonPath) -> None:
        self.text = text
        self.path = path


@compiles(JsonField)
def _field_as_sql(field: JsonField, compiler: Any, **options: Any) -> str:
    sql = f"({compiler.process(field.text, **options)} FORMAT JSON)"
    for step in field.path:
        sql = f"({sql}[{step + 1}])" if isinstance(step, int) else f'({sql}."{step}")'
    return sql
