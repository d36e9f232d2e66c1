"""What MySQL, MariaDB and H2 share: claims that lock rows with SKIP LOCKED, and then stamp them."""

from __future__ import annotations

from sqlalchemy import Connection

from queue_over_sql.claiming import statements
from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.message import MessageRow
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.statements.claims import finds_first
from queue_over_sql.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.statements.requests import ClaimRequest, look_for, stamped_row


class LockedClaims(Claims):
    """Claims in two statements; the rows that the first one read are returned with their stamp."""

    def claim(
        self, connection: Connection, sql: StatementCache, request: ClaimRequest
    ) -> list[MessageRow]:
        # A bounded UPDATE along the index would collect the whole backlog on MySQL.
        pick, wanted = sql.get(statements.pick_rows, request.where), request.wanted()
        picked = pick.run(connection, wanted).all()
        if len(picked) < request.count and finds_first(sql.subject, request.where):
            # Others may have locked all that were found.
            far = {"p_look": look_for(request.count, far=True)}
            picked = pick.run(connection, wanted | far).all()
        if not picked:
            return []
        now = picked[0][-1]
        for batch in batches([row[0] for row in picked]):
            mark = sql.get(statements.mark, bucket_of(len(batch)))
            mark.run(connection, id_values(batch) | request.stamp() | {"p_now": now})
        return [stamped_row(connection, sql, row, request, now) for row in picked]
