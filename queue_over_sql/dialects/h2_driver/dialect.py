"""The dialect: what H2 can do, how to connect, transactions and isolation."""

# ruff: noqa: ARG002, ARG003, PLC0415, RUF012 - the signatures are SQLAlchemy's, and the driver is optional
from __future__ import annotations

from typing import Any

from sqlalchemy import pool, types
from sqlalchemy.engine import URL, default
from sqlalchemy.sql import dml
from sqlalchemy.sql.compiler import InsertmanyvaluesSentinelOpts

from .compiler import H2Compiler, H2DDLCompiler, H2IdentifierPreparer, H2TypeCompiler
from .reflection import H2Reflection
from .urls import connect_arguments

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
        """Encode what the standard type serializes; None stays NULL."""
        serialize: Any = super().bind_processor(dialect)  # type: ignore[no-untyped-call]

        def process(value: Any) -> bytes | None:
            text = serialize(value)
            return None if text is None else text.encode()

        return process

    def literal_processor(self, dialect: Any) -> Any:
        """Write a JSON literal."""
        quote: Any = super().literal_processor(dialect)
        return lambda value: f"JSON {quote(value)}"


class H2ExecutionContext(default.DefaultExecutionContext):
    """Runs sequences that are column defaults."""

    def fire_sequence(self, seq: Any, type_: Any) -> Any:
        """Return the next value of a sequence."""
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
    supports_for_update_of = False

    max_identifier_length = 256
    requires_name_normalize = True
    default_schema_name = "public"
    supports_schemas = True
    supports_alter = True
    supports_comments = True
    supports_sequences = True
    sequences_optional = True
    supports_identity_columns = True
    preexecute_autoincrement_sequences = False

    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    supports_is_distinct_from = True
    tuple_in_values = True
    div_is_floordiv = True

    supports_sane_rowcount = True
    supports_sane_multi_rowcount = True
    supports_default_values = True
    supports_default_metavalue = True
    supports_empty_insert = True
    supports_multivalues_insert = True
    postfetch_lastrowid = False
    insert_returning = True
    update_returning = False
    delete_returning = False
    insert_executemany_returning = True
    insert_executemany_returning_sort_by_parameter_order = True
    use_insertmanyvalues = True
    insertmanyvalues_implicit_sentinel = InsertmanyvaluesSentinelOpts.ANY_AUTOINCREMENT

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the DB-API module; ModuleNotFoundError says how to get what is missing."""
        try:
            from . import dbapi
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"H2 needs the Python packages jaydebeapi and JPype1 ({missing}): "
                "install the extra h2 of queue-over-sql",
                name=missing.name,
            ) from missing
        return dbapi

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        """Pool every kind of database: threads may share H2's connections in turn."""
        return pool.QueuePool

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Translate the URL; ArgumentError when it is not one of the known forms."""
        return [], connect_arguments(url)

    def initialize(self, connection: Any) -> None:
        """Refine the flags by the server's version."""
        super().initialize(connection)
        version = self.server_version_info or ()
        self.supports_skip_locked = version >= SKIP_LOCKED_SINCE

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        version = str(connection.exec_driver_sql("SELECT H2VERSION()").scalar())
        return tuple(int(number) for number in version.split("-", maxsplit=1)[0].split("."))

    def _get_default_schema_name(self, connection: Any) -> str:
        return self._name(connection.exec_driver_sql("SELECT CURRENT_SCHEMA").scalar())

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Say whether an error means that the connection is lost."""
        return getattr(e, "code", None) in self.loaded_dbapi.DISCONNECT_CODES

    def get_isolation_level_values(self, dbapi_connection: Any) -> Any:
        """List the isolation levels, AUTOCOMMIT included."""
        return [*_ISOLATION_LEVELS, "AUTOCOMMIT"]

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Set the level of the coming transactions."""
        dbapi_connection.autocommit = level == "AUTOCOMMIT"
        if level != "AUTOCOMMIT":
            cursor = dbapi_connection.cursor()
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
            cursor.close()

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """Return the level of the session."""
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
        """Say whether a connection commits each statement."""
        return bool(dbapi_conn.autocommit)
