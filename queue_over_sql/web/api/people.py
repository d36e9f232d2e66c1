"""People: who asks, who may come in by a token, and what was done by whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from queue_over_sql.web import tables
from queue_over_sql.web.access import Refused
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.operations import Call, Operations
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.settings import Role

operations = Operations("access")


@operations.add("GET", "/me", Role.VIEWER)
def show_me(call: Call) -> shapes.Me:
    """Say who asks, as the server sees it."""
    who = call.principal
    return shapes.Me(
        name=who.name,
        role=who.role,
        way=who.way,
        read_only=call.api.access.read_only,
        csrf=who.csrf,
    )


@operations.add("GET", "/audit", Role.OPERATOR)
def list_audit(call: Call, query: shapes.AuditQuery) -> shapes.Audit:
    """List what was done, the newest first."""
    store = _store(call)
    rows = store.audit(query.limit, query.before, query.queue)
    names = set(shapes.AuditRow.__struct_fields__) - {"id"}
    shown = [
        shapes.AuditRow(id=str(row.id), **{name: getattr(row, name) for name in names})
        for row in rows
    ]
    return shapes.Audit(rows=shown, next=shown[-1].id if len(rows) == query.limit else None)


@operations.add("GET", "/tokens", Role.ADMIN)
def list_tokens(call: Call) -> shapes.Tokens:
    """List all tokens, by name, but not the tokens themselves."""
    found = _store(call).tokens()
    return shapes.Tokens(tokens=[shapes.Token(**_facts(token)) for token in found])


@operations.add("POST", "/tokens", Role.ADMIN, audited=True, status=201, problems=(409,))
def add_token(call: Call, body: shapes.NewToken) -> shapes.MadeToken:
    """Make a token; it is shown this once, and stored nowhere."""
    lasts = None if body.expires is None else timedelta(seconds=body.expires)
    secret, token = _store(call).add_token(body.name, body.role, lasts)
    call.api.access.forget_tokens()
    call.audit |= {"detail": f"token {token.name}, {token.role}"}
    return shapes.MadeToken(**_facts(token), token=secret)


@operations.add("DELETE", "/tokens/{name}", Role.ADMIN, audited=True, status=204, problems=(404,))
def remove_token(call: Call, name: str) -> None:
    """Remove a token, and with it all sessions that were made from it."""
    gone = _store(call).remove_token(name)
    call.api.access.forget_tokens()
    if not gone:
        raise Problem(404, "token-not-found", "There is no token of that name.")
    call.audit |= {"detail": f"token {name}"}


def _store(call: Call) -> tables.WebStore:
    store = call.api.access.store
    if store.problem is not None:
        raise Refused(503, "no-token-table", store.problem)
    return store


def _facts(token: tables.Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in shapes.Token.__struct_fields__}
