"""SQL, DDL and type names as H2 writes them."""

# ruff: noqa: ARG002, FBT003, N802, N815, SLF001 - the visitor API: its names, arguments and protected parts
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import exc, types
from sqlalchemy.sql import compiler
from sqlalchemy.sql.elements import ClauseElement

if TYPE_CHECKING:
    from .dialect import H2Dialect

# https://h2database.com/html/advanced.html#keywords
RESERVED_WORDS: Final = frozenset(
    """
    all and any array as asymmetric authorization between both case cast check constraint cross
    current_catalog current_date current_path current_role current_schema current_time
    current_timestamp current_user day default distinct else end except exists false fetch for
    foreign from full group groups having hour if ilike in inner intersect interval is join key
    leading left like limit localtime localtimestamp minus minute month natural not null offset
    on or order over partition primary qualify range regexp right row rownum rows second select
    session_user set some symmetric system_user table to top trailing true uescape union unique
    unknown user using value values when where window with year _rowid_
    """.split()  # noqa: SIM905 - ninety quoted words are no easier to read
)


class H2IdentifierPreparer(compiler.IdentifierPreparer):
    """Quotes H2's reserved words."""

    reserved_words = RESERVED_WORDS  # type: ignore[assignment]


class H2TypeCompiler(compiler.GenericTypeCompiler):
    """Names column types; unbounded text and bytes are large objects, outside of the row."""

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:
        """Text: CLOB, or VARCHAR with a length."""
        return f"VARCHAR({type_.length})" if type_.length else "CHARACTER LARGE OBJECT"

    def visit_unicode_text(self, type_: Any, **kw: Any) -> str:
        """Text: as TEXT."""
        return self.visit_TEXT(type_, **kw)

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        """Text; H2 needs no length."""
        return f"VARCHAR({type_.length})" if type_.length else "VARCHAR"

    visit_NVARCHAR = visit_unicode = visit_VARCHAR

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:
        """Bytes of any number."""
        return "BINARY LARGE OBJECT"

    visit_large_binary = visit_BLOB

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:
        """Date and time to the microsecond."""
        return "TIMESTAMP(6)" + (" WITH TIME ZONE" if type_.timezone else "")

    visit_DATETIME = visit_TIMESTAMP

    def visit_TIME(self, type_: Any, **kw: Any) -> str:
        """Time of day to the microsecond (H2's bare TIME has whole seconds)."""
        return "TIME(6)" + (" WITH TIME ZONE" if type_.timezone else "")

    def visit_DOUBLE(self, type_: Any, **kw: Any) -> str:
        """Float of 64 bits."""
        return "DOUBLE PRECISION"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        """Float of the given precision, or of 64 bits."""
        return f"FLOAT({type_.precision})" if type_.precision else "DOUBLE PRECISION"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        """Exact number; without a precision H2's NUMERIC would have no decimals."""
        return "DECFLOAT" if type_.precision is None else super().visit_NUMERIC(type_, **kw)

    visit_DECIMAL = visit_NUMERIC

    def visit_JSON(self, type_: Any, **kw: Any) -> str:
        """JSON document."""
        return "JSON"


class H2Compiler(compiler.SQLCompiler):
    """Statements of H2: LIMIT, locking reads, index hints, limited updates, RETURNING."""

    dialect: H2Dialect
    _returning: str | None = None

    def limit_clause(self, select: Any, **kw: Any) -> str:
        """LIMIT and OFFSET."""
        limit, offset = select._limit_clause, select._offset_clause
        text = "" if limit is None else f"\n LIMIT {self.process(limit, **kw)}"
        return text if offset is None else f"{text}\n OFFSET {self.process(offset, **kw)}"

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        """FOR UPDATE; CompileError where the server does not know SKIP LOCKED or NOWAIT."""
        wanted = select._for_update_arg
        if not (wanted.nowait or wanted.skip_locked):
            return " FOR UPDATE"
        if not self.dialect.supports_skip_locked:
            raise exc.CompileError("SKIP LOCKED and NOWAIT need H2 2.2.220 or newer")
        return " FOR UPDATE" + (" NOWAIT" if wanted.nowait else " SKIP LOCKED")

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        """``select.with_hint(table, "USE INDEX (name)", "h2")``."""
        return text

    def update_post_criteria_clause(self, update_stmt: Any, **kw: Any) -> str | None:
        """``update.with_dialect_options(h2_limit=n)``: at most n rows, an int or an expression."""
        return self._row_limit(update_stmt, super().update_post_criteria_clause(update_stmt, **kw))

    def delete_post_criteria_clause(self, delete_stmt: Any, **kw: Any) -> str | None:
        """``delete.with_dialect_options(h2_limit=n)``: at most n rows, an int or an expression."""
        return self._row_limit(delete_stmt, super().delete_post_criteria_clause(delete_stmt, **kw))

    def _row_limit(self, statement: Any, before: str | None) -> str | None:
        limit = statement.dialect_options["h2"]["limit"]
        if limit is None:
            return before
        count = self.process(limit) if isinstance(limit, ClauseElement) else str(int(limit))
        return f"{before or ''} FETCH FIRST {count} ROWS ONLY".lstrip()

    def returning_clause(
        self, stmt: Any, returning_cols: Any, *, populate_result_map: bool, **kw: Any
    ) -> str:
        """Keep the columns for :meth:`visit_insert`: H2 selects them around the INSERT.

        CompileError for UPDATE and DELETE: see :class:`.dialect.H2Dialect`.
        """
        if not stmt.is_insert:
            raise exc.CompileError("RETURNING works for INSERT only on H2")
        kw.pop("include_table", None)
        self._returning = ", ".join(
            self._label_returning_column(  # type: ignore[no-untyped-call]
                stmt,
                column,
                populate_result_map,
                {"result_map_targets": ()},
                fallback_label_name=column._non_anon_label,
                column_is_repeated=repeated,
                name=name,
                proxy_name=proxy,
                include_table=False,
                **kw,
            )
            for name, proxy, _, column, repeated in stmt._generate_columns_plus_names(
                True,
                cols=list(_flat(returning_cols)),
            )
        )
        return ""

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """``SELECT ... FROM FINAL TABLE (INSERT ...)`` where columns are returned."""
        text: str = super().visit_insert(insert_stmt, *args, **kw)  # type: ignore[no-untyped-call]
        columns, self._returning = self._returning, None
        return text if columns is None else f"SELECT {columns} FROM FINAL TABLE ({text.rstrip()})"

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        """A query without rows, for ``IN ()``."""
        name = self.dialect.type_compiler_instance.process
        columns = [
            f"CAST(NULL AS {name(types.INTEGER() if type_._isnull else type_)})"
            for type_ in element_types or [types.INTEGER()]
        ]
        return f"SELECT {', '.join(columns)} FROM DUAL WHERE 1 != 1"

    def visit_sequence(self, sequence: Any, **kw: Any) -> str:
        """Next value of a sequence."""
        return f"NEXT VALUE FOR {self.preparer.format_sequence(sequence)}"

    def visit_mod_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """``%`` by its function's name."""
        return f"MOD({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """``column.regexp_match(pattern, flags)``, by Java's regular expressions."""
        return f"REGEXP_LIKE({self._regexp_arguments(binary, binary.modifiers['flags'], kw)})"

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """``~column.regexp_match(pattern, flags)``."""
        return f"NOT {self.visit_regexp_match_op_binary(binary, operator, **kw)}"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """``column.regexp_replace(pattern, replacement, flags)``."""
        return f"REGEXP_REPLACE({self._regexp_arguments(binary, binary.modifiers['flags'], kw)})"

    def _regexp_arguments(self, binary: Any, flags: str | None, kw: dict[str, Any]) -> str:
        arguments = [self.process(binary.left, **kw), self.process(binary.right, **kw)]
        if flags:
            arguments.append(self.render_literal_value(flags, types.STRINGTYPE))
        return ", ".join(arguments)

    def visit_is_distinct_from_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Inequality that counts NULL as a value."""
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        return f"{left} IS DISTINCT FROM {right}"

    def visit_is_not_distinct_from_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Equality that counts NULL as a value."""
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        return f"{left} IS NOT DISTINCT FROM {right}"


def _flat(columns: Iterable[Any]) -> Iterator[Any]:
    for column in columns:
        yield from getattr(column, "_select_iterable", (column,))


class H2DDLCompiler(compiler.DDLCompiler):
    """Column definitions: identity before NOT NULL, computed columns."""

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """Name, type, then what fills the column, then NOT NULL."""
        type_name = self.dialect.type_compiler_instance.process(column.type, type_expression=column)
        parts = [self.preparer.format_column(column), type_name, self._filled_by(column)]
        if not column.nullable and column.computed is None:
            parts.append("NOT NULL")
        return " ".join(filter(None, parts))

    def _filled_by(self, column: Any) -> str:
        if column.computed is not None:
            return self.process(column.computed)
        if column.identity is not None:
            return self.process(column.identity)
        if _numbers_itself(column):
            return "GENERATED BY DEFAULT AS IDENTITY"
        default = self.get_column_default_string(column)
        return "" if default is None else f"DEFAULT {default}"

    def visit_computed_column(self, generated: Any, **kw: Any) -> str:
        """A column that H2 computes; it is always stored."""
        expression = self.sql_compiler.process(
            generated.sqltext, include_table=False, literal_binds=True
        )
        return f"GENERATED ALWAYS AS ({expression})"


def _numbers_itself(column: Any) -> bool:
    """Say whether SQLAlchemy expects the database to count this column up."""
    optional = column.default is None or (column.default.is_sequence and column.default.optional)
    return bool(
        column is column.table._autoincrement_column and column.server_default is None and optional
    )
