"""Access: the caller, and the tokens of programs and people."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from queue_over_sql.web import tables
from queue_over_sql.web.access import insist_on_tables
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.operations import Call, Operations
from queue_over_sql.web.settings import Role

operations = Operations("access")


@operations.add("GET", "/me", Role.VIEWER)
def show_me(call: Call) -> shapes.Me:
    """Show the caller's name and role."""
    who = call.principal
    return shapes.Me(
        name=who.name,
        role=who.role,
        way=who.way,
        read_only=call.api.access.read_only,
        csrf=who.csrf,
    )


@operations.add("GET", "/tokens", Role.ADMIN)
def list_tokens(call: Call) -> shapes.Tokens:
    """List all tokens by name, without the tokens themselves."""
    found = insist_on_tables(call.api.access.store).tokens()
    return shapes.Tokens(tokens=[shapes.Token(**_facts(token)) for token in found])


@operations.act("POST", "/tokens", "add-token", status=201, problems=(409,))
def add_token(call: Call, body: shapes.NewToken) -> shapes.MadeToken:
    """Create a token; only this answer contains it."""
    lasts = None if body.expires is None else timedelta(seconds=body.expires)
    secret, token = call.do(token=body.name, role=body.role, lasts=lasts).value
    call.api.access.forget_tokens()
    return shapes.MadeToken(**_facts(token), token=secret)


@operations.act("DELETE", "/tokens/{name}", "remove-token", status=204, problems=(404,))
def remove_token(call: Call, name: str) -> None:
    """Remove a token and end all sessions that were made from it."""
    call.do(token=name)
    call.api.access.forget_tokens()


def _facts(token: tables.Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in shapes.Token.__struct_fields__}
