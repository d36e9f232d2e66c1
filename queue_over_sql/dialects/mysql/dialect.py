"""MySQL 8 or newer, and MariaDB 10.6 or newer: rows are locked with SKIP LOCKED, then stamped."""

from __future__ import annotations

from sqlalchemy import Connection

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.locked_groups import LockedGroupClaims
from queue_over_sql.dialects.mysql.checkup import MariaDBCheckup, MySQLCheckup
from queue_over_sql.dialects.mysql.ddl import MySQLDdl
from queue_over_sql.dialects.mysql.errors import MySQLErrors
from queue_over_sql.dialects.mysql.expressions import MariaDBExpressions, MySQLExpressions
from queue_over_sql.dialects.mysql.features import MARIADB, MYSQL, of_server
from queue_over_sql.dialects.mysql.insert import MariaDBInserts, MySQLInserts
from queue_over_sql.dialects.mysql.rounds import JoinedRounds
from queue_over_sql.dialects.mysql.sessions import MySQLCallers, MySQLSessions
from queue_over_sql.dialects.skip_locked import LockedClaims
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.groups.strategy import GroupClaims
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.expressions import Expressions
from queue_over_sql.sql.features import Features


def _columns(expressions: Expressions) -> Columns:
    """Reads and writes columns through the drivers of MySQL and MariaDB; needs PyArrow."""
    from queue_over_sql.arrow.types import mysql_type
    from queue_over_sql.dialects.mysql.columns import MySQLColumns

    return MySQLColumns(expressions, mysql_type)


def dialect(connection: Connection | None) -> QueueDialect:
    """MySQL as a connected server has it; without a connection, as all have it."""
    features = MYSQL if connection is None else of_server(MYSQL, connection)
    return _assembled(
        features, MySQLExpressions(features), MySQLCheckup(features), inserts=MySQLInserts
    )


def mariadb(connection: Connection | None) -> QueueDialect:
    """MariaDB: MySQL with RETURNING on INSERT and DELETE."""
    features = MARIADB if connection is None else of_server(MARIADB, connection)
    return _assembled(
        features, MariaDBExpressions(features), MariaDBCheckup(features), inserts=MariaDBInserts
    )


def _assembled(
    features: Features, expressions: Expressions, checkup: MySQLCheckup, *, inserts: type[Inserts]
) -> QueueDialect:
    sessions, errors = MySQLSessions(features), MySQLErrors(features)
    return QueueDialect(
        features,
        expressions=expressions,
        sessions=sessions,
        callers=MySQLCallers(),
        ddl=MySQLDdl(features, sessions, errors),
        errors=errors,
        checkup=checkup,
        columns=_columns,
        strategies={
            Claims: LockedClaims,
            GroupClaims: LockedGroupClaims,
            Inserts: inserts,
            Rounds: JoinedRounds,
        },
    )
