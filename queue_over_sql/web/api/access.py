"""Access: the caller, and the tokens of programs and people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from queue_over_sql.web import tables
from queue_over_sql.web.access import insist_on_tables
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.endpoints import Call, Endpoints
from queue_over_sql.web.settings import Role

endpoints = Endpoints("access")


@endpoints.add("GET", "/me", None, of_some_queues=True)
def show_me(call: Call) -> shapes.Me:
    """Show the caller's name and role."""
    who = call.principal
    return shapes.Me(
        name=who.name,
        role=who.role,
        queues=list(who.queues),
        way=who.way,
        read_only=call.api.access.read_only,
        csrf=who.csrf,
    )


@endpoints.add("GET", "/tokens", Role.ADMIN)
def list_tokens(call: Call) -> shapes.Tokens:
    """List all tokens by name, without the tokens themselves."""
    found = insist_on_tables(call.api.access.store).tokens()
    return shapes.Tokens(tokens=[shapes.Token(**_facts(token)) for token in found])


def _add_token(call: Call, body: shapes.NewToken) -> shapes.MadeToken:
    lasts = None if body.expires is None else timedelta(seconds=body.expires)
    secret, token = call.do(body.name, role=body.role, lasts=lasts, queues=body.queues).value
    call.api.access.forget_tokens()
    return shapes.MadeToken(**_facts(token), token=secret)


def _remove_token(call: Call, name: str, query: shapes.RemovedToken) -> None:
    call.do(name, last_admin=query.last_admin)
    call.api.access.forget_tokens()


def _facts(token: tables.StoredToken) -> dict[str, Any]:
    facts = {name: getattr(token, name) for name in shapes.Token.__struct_fields__}
    return facts | {"queues": list(token.queues)}


endpoints.operation("add-token", _add_token)
endpoints.operation("remove-token", _remove_token)
