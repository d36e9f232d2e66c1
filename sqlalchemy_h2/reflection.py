"""The queries of SQLAlchemy's inspector, on INFORMATION_SCHEMA.

H2 folds unquoted names to upper case; SQLAlchemy uses lower case for them. ``normalize_name`` and
``denormalize_name`` translate between the two.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import exc, text, types
from sqlalchemy.engine import default, reflection

_TABLES: Final = """
    SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES
    WHERE TABLE_SCHEMA = :schema AND TABLE_TYPE = :kind ORDER BY TABLE_NAME"""
_TABLE: Final = """
    SELECT REMARKS FROM INFORMATION_SCHEMA.TABLES
    WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :table"""
_COLUMNS: Final = """
    SELECT COLUMN_NAME, DATA_TYPE, CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE,
           COLUMN_DEFAULT, IS_NULLABLE, IDENTITY_GENERATION, IDENTITY_START,
           IDENTITY_INCREMENT, IS_GENERATED, GENERATION_EXPRESSION, REMARKS
    FROM INFORMATION_SCHEMA.COLUMNS
    WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :table ORDER BY ORDINAL_POSITION"""
_CONSTRAINTS: Final = """
    SELECT c.CONSTRAINT_NAME, k.COLUMN_NAME
    FROM INFORMATION_SCHEMA.TABLE_CONSTRAINTS c
    JOIN INFORMATION_SCHEMA.KEY_COLUMN_USAGE k
      ON k.CONSTRAINT_SCHEMA = c.CONSTRAINT_SCHEMA AND k.CONSTRAINT_NAME = c.CONSTRAINT_NAME
    WHERE c.TABLE_SCHEMA = :schema AND c.TABLE_NAME = :table AND c.CONSTRAINT_TYPE = :kind
    ORDER BY c.CONSTRAINT_NAME, k.ORDINAL_POSITION"""
_FOREIGN_KEYS: Final = """
    SELECT r.CONSTRAINT_NAME, k.COLUMN_NAME, p.TABLE_SCHEMA, p.TABLE_NAME, p.COLUMN_NAME,
           r.UPDATE_RULE, r.DELETE_RULE
    FROM INFORMATION_SCHEMA.REFERENTIAL_CONSTRAINTS r
    JOIN INFORMATION_SCHEMA.KEY_COLUMN_USAGE k
      ON k.CONSTRAINT_SCHEMA = r.CONSTRAINT_SCHEMA AND k.CONSTRAINT_NAME = r.CONSTRAINT_NAME
    JOIN INFORMATION_SCHEMA.KEY_COLUMN_USAGE p
      ON p.CONSTRAINT_SCHEMA = r.UNIQUE_CONSTRAINT_SCHEMA
     AND p.CONSTRAINT_NAME = r.UNIQUE_CONSTRAINT_NAME
     AND p.ORDINAL_POSITION = k.POSITION_IN_UNIQUE_CONSTRAINT
    WHERE k.TABLE_SCHEMA = :schema AND k.TABLE_NAME = :table
    ORDER BY r.CONSTRAINT_NAME, k.ORDINAL_POSITION"""
_CHECKS: Final = """
    SELECT c.CONSTRAINT_NAME, k.CHECK_CLAUSE
    FROM INFORMATION_SCHEMA.TABLE_CONSTRAINTS c
    JOIN INFORMATION_SCHEMA.CHECK_CONSTRAINTS k
      ON k.CONSTRAINT_SCHEMA = c.CONSTRAINT_SCHEMA AND k.CONSTRAINT_NAME = c.CONSTRAINT_NAME
    WHERE c.TABLE_SCHEMA = :schema AND c.TABLE_NAME = :table ORDER BY c.CONSTRAINT_NAME"""
_INDEXES: Final = """
    SELECT i.INDEX_NAME, i.INDEX_TYPE_NAME, c.COLUMN_NAME, c.ORDERING_SPECIFICATION
    FROM INFORMATION_SCHEMA.INDEXES i
    JOIN INFORMATION_SCHEMA.INDEX_COLUMNS c
      ON c.INDEX_SCHEMA = i.INDEX_SCHEMA AND c.INDEX_NAME = i.INDEX_NAME
    WHERE i.TABLE_SCHEMA = :schema AND i.TABLE_NAME = :table AND NOT i.IS_GENERATED
    ORDER BY i.INDEX_NAME, c.ORDINAL_POSITION"""
_SEQUENCE: Final = """
    SELECT 1 FROM INFORMATION_SCHEMA.SEQUENCES
    WHERE SEQUENCE_SCHEMA = :schema AND SEQUENCE_NAME = :table"""
_SEQUENCES: Final = """
    SELECT SEQUENCE_NAME FROM INFORMATION_SCHEMA.SEQUENCES
    WHERE SEQUENCE_SCHEMA = :schema AND SEQUENCE_NAME NOT LIKE 'SYSTEM\\_SEQUENCE\\_%'
    ORDER BY SEQUENCE_NAME"""
_VIEW: Final = """
    SELECT VIEW_DEFINITION FROM INFORMATION_SCHEMA.VIEWS
    WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :table"""

# Types for which SQLAlchemy has other names.
_TYPES: Final[dict[str, Any]] = {
    "BINARY LARGE OBJECT": types.BLOB,
    "BINARY VARYING": types.VARBINARY,
    "CHARACTER": types.CHAR,
    "CHARACTER LARGE OBJECT": types.TEXT,
    "CHARACTER VARYING": types.VARCHAR,
    "DECFLOAT": types.NUMERIC,
    "DOUBLE PRECISION": types.DOUBLE,
    "TINYINT": types.SMALLINT,
    "VARCHAR_IGNORECASE": types.VARCHAR,
}
_SIZED: Final = (types.VARCHAR, types.CHAR, types.VARBINARY, types.BINARY)
_UNSIZED_FROM: Final = 1_000_000  # what H2 reports for a VARCHAR without a length
_KEPT_RULES: Final = ("RESTRICT", "NO ACTION")


def _plain(name: str) -> Any:
    # Those of elements, such as ARRAY, need to know of what.
    return types.NullType if name in {"ARRAY", "ROW"} else getattr(types, name, types.NullType)


def _column_type(row: Any) -> Any:
    name, _, zone = row.data_type.partition(" WITH TIME ZONE")
    kind: Any = _TYPES.get(name) or _plain(name)
    length = row.character_maximum_length
    if kind in _SIZED and length and length < _UNSIZED_FROM:
        return kind(length)
    if name == "NUMERIC":
        return kind(row.numeric_precision, row.numeric_scale)
    if kind in (types.TIMESTAMP, types.TIME):
        return kind(timezone=row.data_type != name or bool(zone))
    return kind()


class H2Reflection(default.DefaultDialect):
    """The reflection half of the dialect."""

    def _rows(
        self, connection: Any, sql: str, schema: str | None, table: str = "", **more: Any
    ) -> Any:
        stored = self._stored(schema or self.default_schema_name or "public")
        values = {"schema": stored, "table": self._stored(table), **more}
        return connection.execute(text(sql), values).all()

    def _name(self, name: str) -> str:
        known: str = self.normalize_name(name)  # type: ignore[no-untyped-call]
        return known  # it may be a quoted_name, which remembers that its case counts

    def _stored(self, name: str) -> str:
        return str(self.denormalize_name(name))  # type: ignore[no-untyped-call]

    def _require(self, connection: Any, table: str, schema: str | None) -> Any:
        rows = self._rows(connection, _TABLE, schema, table)
        if not rows:
            raise exc.NoSuchTableError(f"{schema}.{table}" if schema else table)
        return rows[0]

    def _rows_of(
        self, connection: Any, sql: str, table: str, schema: str | None, **more: Any
    ) -> Any:
        self._require(connection, table, schema)
        return self._rows(connection, sql, schema, table, **more)

    @reflection.cache
    def has_table(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        return bool(self._rows(connection, _TABLE, schema, table_name))

    @reflection.cache
    def has_sequence(
        self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        return bool(self._rows(connection, _SEQUENCE, schema, sequence_name))

    @reflection.cache
    def get_sequence_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return [self._name(row[0]) for row in self._rows(connection, _SEQUENCES, schema)]

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        sql = "SELECT SCHEMA_NAME FROM INFORMATION_SCHEMA.SCHEMATA ORDER BY SCHEMA_NAME"
        return [self._name(row[0]) for row in connection.execute(text(sql))]

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        rows = self._rows(connection, _TABLES, schema, kind="BASE TABLE")
        return [self._name(row[0]) for row in rows]

    @reflection.cache
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return [self._name(row[0]) for row in self._rows(connection, _TABLES, schema, kind="VIEW")]

    @reflection.cache
    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        rows = self._rows(connection, _VIEW, schema, view_name)
        if not rows:
            raise exc.NoSuchTableError(view_name)
        return str(rows[0][0])

    @reflection.cache
    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        rows = self._rows_of(connection, _COLUMNS, table_name, schema)
        return [self._column(row) for row in rows]

    def _column(self, row: Any) -> dict[str, Any]:
        column = {
            "name": self._name(row.column_name),
            "type": _column_type(row),
            "nullable": row.is_nullable == "YES",
            "default": row.column_default,
            "comment": row.remarks,
            "autoincrement": row.identity_generation is not None,
        }
        if row.identity_generation is not None:
            column["default"] = None
            column["identity"] = {
                "always": row.identity_generation == "ALWAYS",
                "start": row.identity_start,
                "increment": row.identity_increment,
            }
        if row.is_generated == "ALWAYS":
            column["default"] = None
            column["computed"] = {"sqltext": row.generation_expression, "persisted": True}
        return column

    def _constraints(
        self, connection: Any, table: str, schema: str | None, kind: str
    ) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, column in self._rows_of(connection, _CONSTRAINTS, table, schema, kind=kind):
            found.setdefault(self._name(name), []).append(self._name(column))
        return found

    @reflection.cache
    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        found = self._constraints(connection, table_name, schema, "PRIMARY KEY")
        for name, columns in found.items():
            return {"name": name, "constrained_columns": columns}
        return reflection.ReflectionDefaults.pk_constraint()

    @reflection.cache
    def get_unique_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        found = self._constraints(connection, table_name, schema, "UNIQUE")
        return [{"name": name, "column_names": columns} for name, columns in found.items()]

    @reflection.cache
    def get_check_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        rows = self._rows_of(connection, _CHECKS, table_name, schema)
        return [{"name": self._name(name), "sqltext": clause} for name, clause in rows]

    @reflection.cache
    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        found: dict[str, dict[str, Any]] = {}
        for row in self._rows_of(connection, _FOREIGN_KEYS, table_name, schema):
            key = found.setdefault(row[0], self._foreign_key(row, schema))
            key["constrained_columns"].append(self._name(row[1]))
            key["referred_columns"].append(self._name(row[4]))
        return list(found.values())

    def _foreign_key(self, row: Any, schema: str | None) -> dict[str, Any]:
        name, _, target_schema, target, _, on_update, on_delete = row
        elsewhere = schema or self._name(target_schema) != self.default_schema_name
        rules = {"onupdate": on_update, "ondelete": on_delete}
        return {
            "name": self._name(name),
            "constrained_columns": [],
            "referred_schema": self._name(target_schema) if elsewhere else None,
            "referred_table": self._name(target),
            "referred_columns": [],
            "options": {key: rule for key, rule in rules.items() if rule not in _KEPT_RULES},
        }

    @reflection.cache
    def get_indexes(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        found: dict[str, dict[str, Any]] = {}
        for name, kind, column, order in self._rows_of(connection, _INDEXES, table_name, schema):
            empty = {"name": self._name(name), "column_names": [], "unique": "UNIQUE" in kind}
            index = found.setdefault(name, empty)
            index["column_names"].append(self._name(column))
            if order == "DESC":
                index.setdefault("column_sorting", {})[self._name(column)] = ("desc",)
        return list(found.values())

    @reflection.cache
    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return {"text": self._require(connection, table_name, schema)[0] or None}
