"""The audit: what was done, by whom and from where."""

from __future__ import annotations

from queue_over_sql.web.access import insist_on_tables
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.endpoints import Call, Endpoints
from queue_over_sql.web.settings import Role

endpoints = Endpoints("access")


@endpoints.add("GET", "/audit", Role.OPERATOR)
def list_audit(call: Call, query: shapes.AuditQuery) -> shapes.Audit:
    """List changes and sign-ins, the newest first."""
    store = insist_on_tables(call.api.access.store)
    rows = store.audit(
        query.limit, query.before, query.queue, who=query.who, what=query.what, day=query.day
    )
    names, mask = set(shapes.AuditRow.__struct_fields__) - {"id", "detail"}, call.api.mask
    shown = [
        shapes.AuditRow(
            id=str(row.id),
            detail=None if row.detail is None else mask.text(row.detail),
            **{name: getattr(row, name) for name in names},
        )
        for row in rows
    ]
    return shapes.Audit(rows=shown, next=shown[-1].id if len(rows) == query.limit else None)
