"""Fields of JSON payloads in H2, which parses text by ``FORMAT JSON`` and has no JSON functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement
from sqlalchemy.ext.compiler import compiles

if TYPE_CHECKING:
    from queue_over_sql.dialects.json_paths import JsonPath


class JsonField(ColumnElement[Any]):
    """A field of text that is parsed as JSON; with an empty path the whole."""

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
