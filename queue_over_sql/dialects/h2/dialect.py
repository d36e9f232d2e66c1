"""H2 with two ways to claim: SKIP LOCKED from 2.2.220 on, a bounded UPDATE before."""

from __future__ import annotations

from sqlalchemy import Connection

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.h2.checkup import H2Checkup
from queue_over_sql.dialects.h2.claim import H2Claims
from queue_over_sql.dialects.h2.ddl import H2Ddl
from queue_over_sql.dialects.h2.errors import H2Errors
from queue_over_sql.dialects.h2.expressions import H2Expressions
from queue_over_sql.dialects.h2.features import FEATURES, of_database
from queue_over_sql.dialects.h2.sessions import H2Callers, H2Sessions
from queue_over_sql.dialects.locked_groups import LockedGroupClaims
from queue_over_sql.dialects.portable import row_columns
from queue_over_sql.groups.strategy import GroupClaims
from queue_over_sql.sql.dialect import QueueDialect


def dialect(connection: Connection | None) -> QueueDialect:
    """H2 as a connected database has it; without a connection, as all have it."""
    features = FEATURES if connection is None else of_database(connection)
    sessions, errors = H2Sessions(features), H2Errors(features)
    return QueueDialect(
        features,
        expressions=H2Expressions(features),
        sessions=sessions,
        callers=H2Callers(),
        ddl=H2Ddl(features, sessions, errors),
        errors=errors,
        checkup=H2Checkup(features),
        columns=row_columns,
        strategies={Claims: H2Claims, GroupClaims: LockedGroupClaims},
    )
