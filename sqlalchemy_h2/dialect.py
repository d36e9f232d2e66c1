"""The SQLAlchemy dialect of H2: URLs, SQL, DDL and type names as H2 has them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

from sqlalchemy import exc, types
from sqlalchemy.engine import URL, default
from sqlalchemy.exc import ArgumentError
from sqlalchemy.sql import compiler, dml
from sqlalchemy.sql.compiler import InsertmanyvaluesSentinelOpts
from sqlalchemy.sql.elements import ClauseElement

from sqlalchemy_h2.reflection import H2Reflection

DEFAULT_SETTINGS: Final = {"LOCK_TIMEOUT": "10000"}
"""Settings of every connection that the URL does not set itself."""

ADMIN_SETTINGS: Final = {"WRITE_DELAY": "0", "OPTIMIZE_REUSE_RESULTS": "0"}
"""Settings that need admin rights; they are left out for other users."""

MEMORY_SETTINGS: Final = {"DB_CLOSE_DELAY": "-1"}
"""An in-memory database would end with its last connection. (Asks for admin rights.)"""

_OWN_KEYS: Final = frozenset({"jar", "jvm", "jvm_args", "transport"})
_TRANSPORTS: Final = ("tcp", "ssl")


def connect_arguments(url: URL) -> dict[str, Any]:
    """Return the keyword arguments of :func:`.dbapi.connect` for ``url``.

    Raises ArgumentError for a ``;`` in any part, and for a URL that names no database.
    """
    query = {key: _last(value) for key, value in url.query.items()}
    own = {key: query.pop(key) for key in _OWN_KEYS & query.keys()}
    settings = {key.upper(): value for key, value in query.items()}
    target = _target(url, own.get("transport", "tcp"))
    _refuse_semicolons(url, target, settings)
    admin = {**ADMIN_SETTINGS, **(MEMORY_SETTINGS if "mem:" in target else {})}
    return {
        "url": f"jdbc:h2:{target}" + _joined({**_missing(DEFAULT_SETTINGS, settings), **settings}),
        "admin_settings": _joined(_missing(admin, settings)),
        "user": url.username or "sa",
        "password": url.password or "",
        "jar": own.get("jar"),
        "jvm_path": own.get("jvm"),
        "jvm_args": tuple(shlex.split(own.get("jvm_args", ""))),
    }


def database_file(url: URL) -> Path | None:
    """The file of an embedded database; None if it is in memory or on a server.

    None also for H2's other kinds of files, such as ``zip:``.
    """
    path = (url.database or "").removeprefix("file:")
    if url.host or not path or ":" in path:
        return None
    return Path(f"{path}.mv.db").expanduser().absolute()


def _last(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else value[-1]


def _missing(defaults: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in defaults.items() if key not in given}


def _joined(settings: dict[str, str]) -> str:
    return "".join(f";{key}={value}" for key, value in settings.items())


def _target(url: URL, transport: str) -> str:
    database = url.database or ""
    if database in {"", "mem:"}:
        raise ArgumentError(
            "an H2 URL must name its database, such as ///./folder/name or ///mem:name"
        )
    if url.host:
        if transport not in _TRANSPORTS:
            raise ArgumentError(
                f"transport={transport} is not supported: use {' or '.join(_TRANSPORTS)}"
            )
        port = f":{url.port}" if url.port else ""
        return f"{transport}://{url.host}{port}/{database}"
    if database.startswith("mem:"):
        return database
    path = database.removeprefix("file:")
    # Java would resolve it against the folder in which the JVM was started.
    return "file:" + (str(Path.cwd() / path) if path.startswith(("./", "../")) else path)


def _refuse_semicolons(url: URL, target: str, settings: dict[str, str]) -> None:
    parts = [target, url.username or "", str(url.password or ""), *settings, *settings.values()]
    if any(";" in part for part in parts):
        raise ArgumentError("an H2 URL may not contain ';': write settings as ?KEY=VALUE")


# SQLAlchemy defines the names of visitors, and the driver is optional.


# ruff: noqa: N802, N815, PLC0415, RUF012, SLF001

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
        return f"VARCHAR({type_.length})" if type_.length else "CHARACTER LARGE OBJECT"

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return f"VARCHAR({type_.length})" if type_.length else "VARCHAR"

    visit_NVARCHAR = visit_VARCHAR

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:
        return "BINARY LARGE OBJECT"

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP(6)" + (" WITH TIME ZONE" if type_.timezone else "")

    visit_DATETIME = visit_TIMESTAMP

    def visit_TIME(self, type_: Any, **kw: Any) -> str:
        # TIME without a precision has whole seconds.
        return "TIME(6)" + (" WITH TIME ZONE" if type_.timezone else "")

    def visit_DOUBLE(self, type_: Any, **kw: Any) -> str:
        return "DOUBLE PRECISION"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return f"FLOAT({type_.precision})" if type_.precision else "DOUBLE PRECISION"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        # NUMERIC without a precision would have no decimals.
        return "DECFLOAT" if type_.precision is None else super().visit_NUMERIC(type_, **kw)

    visit_DECIMAL = visit_NUMERIC

    def visit_JSON(self, type_: Any, **kw: Any) -> str:
        return "JSON"


class H2Compiler(compiler.SQLCompiler):
    """Statements of H2: LIMIT, locking reads, index hints, limited updates, RETURNING."""

    dialect: H2Dialect
    _returning: str | None = None

    def limit_clause(self, select: Any, **kw: Any) -> str:
        limit, offset = select._limit_clause, select._offset_clause
        text = "" if limit is None else f"\n LIMIT {self.process(limit, **kw)}"
        return text if offset is None else f"{text}\n OFFSET {self.process(offset, **kw)}"

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        wanted = select._for_update_arg
        if not (wanted.nowait or wanted.skip_locked):
            return " FOR UPDATE"
        if not self.dialect.supports_skip_locked:
            raise exc.CompileError("SKIP LOCKED and NOWAIT require H2 2.2.220 or newer")
        return " FOR UPDATE" + (" NOWAIT" if wanted.nowait else " SKIP LOCKED")

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        """``select.with_hint(table, "USE INDEX (name)", "h2")``."""
        return text

    def update_post_criteria_clause(self, update_stmt: Any, **kw: Any) -> str | None:
        """``with_dialect_options(h2_limit=n)``: at most n rows, an int or an expression."""
        before: str | None = super().update_post_criteria_clause(update_stmt, **kw)
        limit = update_stmt.dialect_options["h2"]["limit"]
        if limit is None:
            return before
        count = self.process(limit) if isinstance(limit, ClauseElement) else str(int(limit))
        return f"{before or ''} FETCH FIRST {count} ROWS ONLY".lstrip()

    # The base class has one text for both.
    delete_post_criteria_clause = update_post_criteria_clause  # type: ignore[assignment]

    def returning_clause(
        self, stmt: Any, returning_cols: Any, *, populate_result_map: bool, **kw: Any
    ) -> str:
        """Keep the columns for :meth:`visit_insert`: H2 selects them around the INSERT.

        CompileError for UPDATE and DELETE: see :class:`.dialect.H2Dialect`.
        """
        if not stmt.is_insert:
            raise exc.CompileError("H2 supports RETURNING only for INSERT")
        kw["include_table"] = False
        text: str = super().returning_clause(
            stmt, returning_cols, populate_result_map=populate_result_map, **kw
        )
        self._returning = text.removeprefix("RETURNING ")
        return ""

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """``SELECT ... FROM FINAL TABLE (INSERT ...)`` where columns are returned."""
        text: str = super().visit_insert(insert_stmt, *args, **kw)  # type: ignore[no-untyped-call]
        columns, self._returning = self._returning, None
        return text if columns is None else f"SELECT {columns} FROM FINAL TABLE ({text.rstrip()})"

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        name = self.dialect.type_compiler_instance.process
        columns = [
            f"CAST(NULL AS {name(types.INTEGER() if type_._isnull else type_)})"
            for type_ in element_types or [types.INTEGER()]
        ]
        return f"SELECT {', '.join(columns)} FROM DUAL WHERE 1 != 1"

    def visit_sequence(self, sequence: Any, **kw: Any) -> str:
        return f"NEXT VALUE FOR {self.preparer.format_sequence(sequence)}"

    def visit_mod_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
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


class H2DDLCompiler(compiler.DDLCompiler):
    """Column definitions: identity before NOT NULL, computed columns."""

    def get_column_specification(self, column: Any, **kw: Any) -> str:
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
    optional = column.default is None or (column.default.is_sequence and column.default.optional)
    return bool(
        column is column.table._autoincrement_column and column.server_default is None and optional
    )


SKIP_LOCKED_SINCE = (2, 2, 220)

_ISOLATION_LEVELS = (
    "READ UNCOMMITTED",
    "READ COMMITTED",
    "REPEATABLE READ",
    "SNAPSHOT",
    "SERIALIZABLE",
)


class H2JSON(types.JSON):
    """JSON, sent as bytes: H2 would take a text for the content of a JSON string."""

    def bind_processor(self, dialect: Any) -> Any:
        serialize: Any = super().bind_processor(dialect)  # type: ignore[no-untyped-call]

        def process(value: Any) -> bytes | None:
            text = serialize(value)
            return None if text is None else text.encode()

        return process

    def literal_processor(self, dialect: Any) -> Any:
        quote: Any = super().literal_processor(dialect)
        return lambda value: f"JSON {quote(value)}"


class H2ExecutionContext(default.DefaultExecutionContext):
    """Runs sequences that are column defaults."""

    def fire_sequence(self, seq: Any, type_: Any) -> Any:
        name = self.identifier_preparer.format_sequence(seq)
        return self._execute_scalar(f"SELECT NEXT VALUE FOR {name}", type_)


class H2Dialect(H2Reflection):
    """SQLAlchemy dialect for H2 2.1.214 and newer over jaydebeapi and JPype.

    ``supports_skip_locked`` says after the first connection whether the server knows FOR UPDATE
    SKIP LOCKED and NOWAIT (H2 2.2.220).

    UPDATE and DELETE cannot return rows although H2 has a form for it: an UPDATE inside of
    FINAL TABLE reads stale index entries and gives one row to two transactions.
    """

    name = "h2"
    driver = "jaydebeapi"
    default_paramstyle = "qmark"
    supports_statement_cache = True

    statement_compiler = H2Compiler
    ddl_compiler = H2DDLCompiler
    type_compiler_cls = H2TypeCompiler
    preparer = H2IdentifierPreparer
    execution_ctx_cls = H2ExecutionContext
    colspecs: Any = {types.JSON: H2JSON}
    construct_arguments: Any = [
        (dml.Update, {"limit": None}),
        (dml.Delete, {"limit": None}),
    ]

    supports_skip_locked = True

    max_identifier_length = 256
    requires_name_normalize = True
    default_schema_name = "public"
    supports_comments = True
    supports_sequences = True
    sequences_optional = True
    supports_identity_columns = True

    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    tuple_in_values = True

    supports_default_values = True
    supports_default_metavalue = True
    supports_multivalues_insert = True
    postfetch_lastrowid = False
    insert_returning = True
    insert_executemany_returning = True
    insert_executemany_returning_sort_by_parameter_order = True
    use_insertmanyvalues = True
    insertmanyvalues_implicit_sentinel = InsertmanyvaluesSentinelOpts.ANY_AUTOINCREMENT

    @classmethod
    def import_dbapi(cls) -> Any:
        try:
            from sqlalchemy_h2 import dbapi
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"H2 requires the Python packages jaydebeapi and JPype1 ({missing}): install the "
                "extra h2 of queue-over-sql",
                name=missing.name,
            ) from missing
        return dbapi

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        return [], connect_arguments(url)

    def initialize(self, connection: Any) -> None:
        super().initialize(connection)
        self.supports_skip_locked = (self.server_version_info or ()) >= SKIP_LOCKED_SINCE

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        version = str(connection.exec_driver_sql("SELECT H2VERSION()").scalar())
        return tuple(int(number) for number in version.split("-", maxsplit=1)[0].split("."))

    def _get_default_schema_name(self, connection: Any) -> str:
        return self._name(connection.exec_driver_sql("SELECT CURRENT_SCHEMA").scalar())

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return getattr(e, "code", None) in self.loaded_dbapi.DISCONNECT_CODES

    def get_isolation_level_values(self, dbapi_connection: Any) -> Any:
        return [*_ISOLATION_LEVELS, "AUTOCOMMIT"]

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"
        if level != "AUTOCOMMIT":
            cursor = dbapi_connection.cursor()
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
            cursor.close()

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        if dbapi_connection.autocommit:
            return "AUTOCOMMIT"
        cursor = dbapi_connection.cursor()
        cursor.execute(
            "SELECT ISOLATION_LEVEL FROM INFORMATION_SCHEMA.SESSIONS"
            " WHERE SESSION_ID = SESSION_ID()"
        )
        level = cursor.fetchone()[0]
        cursor.close()
        return level

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)
