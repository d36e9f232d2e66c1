"""The table of exits: each statement that changes live messages, and what it does for groups.

A group of which messages are parked needs a carrier: one that is not parked and is marked. So what
ends a marked message, or makes it due later, has to wake the next one of its group. A statement
without a row here fails the test, so that nobody forgets that.

The SQL API is not here: it gets no messages of queues with groups, so it ends none of a group.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import queue_over_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = Path(queue_over_sql.__file__).parent
MAKES: Final = {"update", "delete", "update_by_id", "removal", "end", "delete_by_ids"} | {
    "_fenced_update"
}
"""The functions that make a statement that changes or removes live messages."""

WAKES: Final = {
    "archive/statements.py:finish_ids": "_remove_locked, inside of exits.leaving",
    "dialects/postgresql/archive.py:_archived": "archive_messages and finish_rounds",
    "durable/staged_write_store.py:_replace_live": "inside of exits.leaving_some",
    "durable/statements.py:remove_picked": "finish_rounds",
    "durable/statements.py:remove_rounds": "finish_rounds",
    "publishing/statements.py:change_own": "_resolve_conflict, inside of exits.leaving",
    "publishing/statements.py:replace": "_resolve_conflict, inside of exits.leaving",
    "queues/purge.py:delete_by_id": "delete_message, inside of exits.leaving",
    "queues/purge.py:delete_unclaimed": "Queue.purge, which repairs afterwards",
    "queues/purge.py:remove_ids": "_remove_locked, inside of exits.leaving",
    "recovery/unreadable_rows.py:hold_unclaimed": "hold_unreadable, inside of exits.leaving",
    "schedules/store.py:remove_ahead": "inside of exits.leaving_some",
    "selection/operations.py:edit_messages": "_change, inside of exits.leaving",
    "selection/operations.py:remove_messages": "_change, inside of exits.leaving",
    "settling/statements.py:end": "remove",
    "settling/statements.py:hold_locked": "_held_apart, inside of exits.leaving",
    "settling/statements.py:remove": "_waking, or only what carries nothing",
    "settling/statements.py:set_locked_aside": "end_locked, inside of exits.leaving",
    # In an ordered group these hold up those behind them, so that only an earlier one is woken.
    "settling/statements.py:hold_refused": "_later",
    "settling/statements.py:release_later": "_later",
    "settling/statements.py:retry": "_later",
    "settling/statements.py:set_aside": "_later",
}
"""They wake, by the operation that does it."""

STAYS: Final = {
    "claiming/statements.py:unclaim_all": "it is the first of its group again",
    "durable/statements.py:unclaim_picked": "it is the first of its group again",
    "durable/statements.py:unclaim_rounds": "it is the first of its group again",
    "groups/exit_statements.py:unpark": "this is waking",
    "groups/fair.py:give_turns": "this is waking, by the claim that took the one before",
    "groups/statements.py:put_off": "this is parking",
    "groups/statements.py:set_carriers": "this is parking",
    "groups/statements.py:set_parked": "this is parking",
    "recovery/clock_steps.py:make_due": "it is due at once",
    "recovery/dead_claims.py:move_to_level": "it is due as before",
    "recovery/dead_claims.py:unclaim_half_claimed": "it is the first of its group again",
    "recovery/dead_claims.py:unclaim_half_claimed_ids": "it is the first of its group again",
    "durable/group_rounds.py:set_lease": "it is claimed just now",
    "durable/staged_write_store.py:_settle_holders": "it changes only who holds a key",
    "publishing/statements.py:release_key": "it changes only who holds a key",
    "settling/operations.py:keep_traceback": "it says only why it failed",
    "settling/statements.py:extend": "it stays in hand",
    "settling/statements.py:keep_result": "it stays in hand",
    "settling/statements.py:release": "it is the first of its group again",
    "settling/statements.py:restore": "it is the first of its group again",
    "settling/statements.py:restore_with_another": "it is the first of its group again",
}
"""The message stays, with its mark, and nothing is due later."""

CLAIMS: Final = {
    "claiming/statements.py:mark",
    "claiming/statements.py:mark_where_eligible",
    "dialects/at_once.py:claim_at_once",
    "dialects/at_once.py:claim_round_at_once",
    "dialects/h2/claim.py:mark_first",
    "dialects/locked_groups.py:mark_parked",
    "dialects/postgresql/columns.py:take_at_once",
    "dialects/postgresql/groups.py:claim_groups",
    "dialects/postgresql/groups.py:_heads_of_window",
    "dialects/sqlite/groups.py:stamp",
    "dialects/sqlite/groups.py:stamp_heads",
    "durable/statements.py:mark",
    "durable/statements.py:mark_picked",
    "groups/fair.py:stamp",
}
"""They hand a message out. A claim from groups keeps the mark, and gives it to what it takes."""

NOT_OTHERS: Final = {
    "archive/statements.py:begin_anew": "rows of a user's table, which had ended",
    "claiming/refused_rows.py:mark_any": "a trial, which is undone",
    "dialects/postgresql/claim.py:end_held": "in a queue with groups none waits for it",
    "dialects/sqlite/sessions.py:write_nothing": "it changes no row",
    "durable/staged_write_store.py:take_back": "nobody else has seen the messages yet",
    "existing_tables/store.py:enqueue": "rows of a user's table, which were no messages",
    "schema/existing.py:removal": "rows of a user's table",
    "schema/existing.py:end": "rows of a user's table",
    "schema/queue_tables.py:removal": "its users are in this table",
    "schema/queue_tables.py:end": "its users are in this table",
    "settling/statements.py:_fenced_update": "its users are in this table",
    "statements/parameters.py:update_by_id": "its users are in this table",
}
"""No message that others may wait for."""


def statements() -> Iterator[str]:
    """The functions that make such statements, as ``file:function``."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "spark"):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(map(_makes, ast.walk(node))):
                yield f"{path.relative_to(PACKAGE).as_posix()}:{node.name}"


def _makes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in MAKES:
        return False
    if name in {"update", "delete", "delete_by_ids"}:
        return bool(node.args) and re.search(r"\blive\b", ast.unparse(node.args[0])) is not None
    owners = ("tables", "self._tables", "settle")
    return name != "end" or ast.unparse(node).startswith(tuple(f"{each}.end(" for each in owners))


def test_each_statement_says_what_it_does_for_groups() -> None:
    """Nothing is missing, and no row is of a statement that is no longer there."""
    known = {*WAKES, *STAYS, *CLAIMS, *NOT_OTHERS}
    assert sorted(known) == sorted(set(statements()))
