"""PostgreSQL 12 or newer through psycopg 3."""

from __future__ import annotations

from sqlalchemy import Connection

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.postgresql.archive import PostgreSQLArchiving
from queue_over_sql.dialects.postgresql.checkup import PostgreSQLCheckup
from queue_over_sql.dialects.postgresql.claim import PostgreSQLClaims
from queue_over_sql.dialects.postgresql.ddl import PostgreSQLDdl
from queue_over_sql.dialects.postgresql.errors import PostgreSQLErrors
from queue_over_sql.dialects.postgresql.expressions import PostgreSQLExpressions
from queue_over_sql.dialects.postgresql.features import FEATURES, of_server
from queue_over_sql.dialects.postgresql.groups import PostgreSQLGroupClaims
from queue_over_sql.dialects.postgresql.insert import PostgreSQLInserts
from queue_over_sql.dialects.postgresql.notifications import ListenNotify
from queue_over_sql.dialects.postgresql.pooler import Pooler
from queue_over_sql.dialects.postgresql.rounds import PostgreSQLRounds
from queue_over_sql.dialects.postgresql.sessions import PostgreSQLCallers, PostgreSQLSessions
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.groups.strategy import GroupClaims
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.settling.strategy import Archiving
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.expressions import Expressions


def _columns(expressions: Expressions) -> Columns:
    from queue_over_sql.dialects.postgresql.columns import PostgreSQLColumns

    return PostgreSQLColumns(expressions)


def dialect(connection: Connection | None) -> QueueDialect:
    """PostgreSQL as a connected server has it; without a connection, as all have it."""
    features = FEATURES if connection is None else of_server(connection)
    pooler = Pooler()
    sessions, errors = PostgreSQLSessions(features, pooler), PostgreSQLErrors(features, pooler)
    return QueueDialect(
        features,
        expressions=PostgreSQLExpressions(features),
        sessions=sessions,
        callers=PostgreSQLCallers(pooler),
        ddl=PostgreSQLDdl(features, sessions, errors),
        errors=errors,
        notifications=ListenNotify(pooler),
        checkup=PostgreSQLCheckup(features),
        columns=_columns,
        strategies={
            Archiving: PostgreSQLArchiving,
            Claims: PostgreSQLClaims,
            GroupClaims: PostgreSQLGroupClaims,
            Inserts: PostgreSQLInserts,
            Rounds: PostgreSQLRounds,
        },
    )
