"""SQLite 3.35 or newer, the embedded default."""

from __future__ import annotations

from sqlalchemy import Connection

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.at_once import RoundsAtOnce
from queue_over_sql.dialects.sqlite.checkup import SQLiteCheckup
from queue_over_sql.dialects.sqlite.claim import SQLiteClaims
from queue_over_sql.dialects.sqlite.ddl import SQLiteDdl
from queue_over_sql.dialects.sqlite.errors import SQLiteErrors
from queue_over_sql.dialects.sqlite.expressions import SQLiteExpressions
from queue_over_sql.dialects.sqlite.features import FEATURES
from queue_over_sql.dialects.sqlite.files import SQLiteFiles
from queue_over_sql.dialects.sqlite.groups import SQLiteGroupClaims
from queue_over_sql.dialects.sqlite.insert import SQLiteInserts
from queue_over_sql.dialects.sqlite.notifications import FileNotifications
from queue_over_sql.dialects.sqlite.sessions import SQLiteCallers, SQLiteSessions
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.groups.strategy import GroupClaims
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.expressions import Expressions


def _columns(expressions: Expressions) -> Columns:
    """As elsewhere, but all integers have 64 bits, whatever their column type."""
    from queue_over_sql.arrow.rows import RowColumns  # noqa: PLC0415 - needs Arrow
    from queue_over_sql.arrow.types import wide_type  # noqa: PLC0415 - likewise

    return RowColumns(expressions, wide_type)


def dialect(connection: Connection | None) -> QueueDialect:
    """SQLite.

    Raises:
        UnsupportedByEngine: the library of the connection is too old.
    """
    if connection is not None:
        FEATURES.refuse_older(connection)
    sessions, errors = SQLiteSessions(FEATURES), SQLiteErrors(FEATURES)
    return QueueDialect(
        FEATURES,
        expressions=SQLiteExpressions(FEATURES),
        sessions=sessions,
        callers=SQLiteCallers(),
        ddl=SQLiteDdl(FEATURES, sessions, errors),
        files=SQLiteFiles(),
        errors=errors,
        notifications=FileNotifications(),
        checkup=SQLiteCheckup(FEATURES),
        columns=_columns,
        strategies={
            Claims: SQLiteClaims,
            GroupClaims: SQLiteGroupClaims,
            Inserts: SQLiteInserts,
            Rounds: RoundsAtOnce,
        },
    )
