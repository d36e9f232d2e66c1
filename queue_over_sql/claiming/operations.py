"""Operations that claim and take messages, and give back claims of a consumer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from queue_over_sql.claiming import statements as claim
from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.groups.exits import note_capacity
from queue_over_sql.groups.fair import claims_of
from queue_over_sql.groups.strategy import GroupClaim, group_of
from queue_over_sql.limits.bounds import reserve, use
from queue_over_sql.message import AGE, Claim
from queue_over_sql.settling.operations import end_apart, end_locked
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.parameters import MAX_IDS
from queue_over_sql.statements.requests import (
    Disposition,
    Settlement,
    count_ids,
    read_taken_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.groups.strategy import GroupRequest
    from queue_over_sql.message import Message, MessageRow
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.statements.requests import ClaimRequest, Where

# The largest number of messages that one statement acks while it claims first messages of groups.
_MOST_EXCHANGED: Final = 4 * MAX_IDS


def claim_messages(
    connection: Connection, sql: StatementCache, request: ClaimRequest
) -> list[MessageRow]:
    """Claim up to ``request.count`` messages of one priority level, oldest first."""
    return oldest_first(sql.subject.dialect.strategy(Claims).claim(connection, sql, request))


def claim_within(
    connection: Connection, sql: StatementCache, request: ClaimRequest
) -> tuple[ClaimRequest, list[MessageRow]]:
    """As ``claim_messages``, within the bounds of the queue, inside a transaction.

    Returns:
        The request as the bounds allow it, perhaps for no message, and the messages.
    """
    if not sql.subject.bounded:
        return request, claim_messages(connection, sql, request)
    reserved = reserve(connection, sql, request.count)
    request = request.of(reserved.most)
    rows = claim_messages(connection, sql, request) if reserved.most else []
    use(connection, sql, reserved, [row.id for row in rows], request.claim)
    return request, rows


def claiming(sql: StatementCache, request: ClaimRequest) -> Operation[list[MessageRow]]:
    """The operation that claims by itself, in no particular order; it is never repeated."""
    claims: Claims = sql.subject.dialect.strategy(Claims)
    do = partial(claims.claim, sql=sql, request=request)
    return Operation(do, atomic=not claims.at_once, repeatable=False)


def claim_of_groups(
    connection: Connection, sql: StatementCache, request: GroupRequest
) -> GroupClaim:
    """Claim up to ``request.claim.count`` messages of one priority level, from groups."""
    claims = claims_of(sql, request.rules)
    heads = claims.claim_heads(connection, sql, request) if request.heads else None
    return claims.claim(connection, sql, request) if heads is None else heads


def claim_of_groups_within(
    connection: Connection, sql: StatementCache, request: GroupRequest
) -> tuple[GroupRequest, GroupClaim]:
    """As ``claim_within``, from groups."""
    if not sql.subject.bounded:
        return request, claim_of_groups(connection, sql, request)
    reserved = reserve(connection, sql, request.claim.count)
    request, found = request.of(reserved.most), GroupClaim([], [], 0)
    if reserved.most:
        found = claim_of_groups(connection, sql, request)
    use(connection, sql, reserved, [row.id for row in found.rows], request.claim.claim)
    return request, found


def claiming_heads(sql: StatementCache, request: GroupRequest) -> Operation[GroupClaim | None]:
    """The operation of ``GroupClaims.claim_heads`` by itself; it is never repeated."""
    do = partial(claims_of(sql, request.rules).claim_heads, sql=sql, request=request)
    return Operation(do, atomic=False, repeatable=False)


def claiming_of_groups(
    sql: StatementCache, request: GroupRequest
) -> Operation[tuple[GroupRequest, GroupClaim]]:
    """The operation that claims from groups by itself; it is never repeated."""
    at_once = claims_of(sql, request.rules).at_once and not sql.subject.bounded
    do = partial(claim_of_groups_within, sql=sql, request=request)
    return Operation(do, atomic=not at_once, repeatable=False)


def anything_to_claim(connection: Connection, sql: StatementCache, request: ClaimRequest) -> bool:
    """Whether a claim would find something, without writing."""
    look = sql.get(claim.anything_eligible, request.where)
    return look.run(connection, request.wanted()).first() is not None


def count_due(
    connection: Connection, sql: StatementCache, values: Mapping[str, Any], where: Where | None
) -> int:
    """Count the messages of a level that a claim may find, up to its limit, without a lock."""
    return len(sql.get(claim.pick_ids, where).run(connection, values).all())


def exchanges_at_once(sql: StatementCache, settlements: Sequence[Settlement]) -> bool:
    """Whether ack and claim are one statement, so that they need no transaction around them."""
    if sql.subject.has_rules or not sql.subject.dialect.strategy(Claims).exchanges_at_once:
        return False
    return _is_single(settlements)


def exchanges_heads(
    sql: StatementCache, settlements: Sequence[Settlement], requests: Sequence[GroupRequest]
) -> bool:
    """As ``exchanges_at_once``, if the claim looks for first messages of groups."""
    if len(requests) != 1 or not requests[0].heads or sql.subject.bounded:
        return False
    if not claims_of(sql, requests[0].rules).exchanges_heads:
        return False
    # The claims of one consumer, as its messages in hand may be of several.
    holders = {each.claim.consumer_id for each in settlements}
    if len(holders) != 1 or settlements[0].dedup_us is not None or settlements[0].in_key_order:
        return False
    return count_ids(settlements) <= _MOST_EXCHANGED


def exchanging_heads(
    sql: StatementCache, settlements: Sequence[Settlement], request: GroupRequest, *, keep: bool
) -> Operation[tuple[set[int], GroupClaim | None]]:
    """The operation of ``GroupClaims.exchange_heads``. Use it only if ``exchanges_heads``."""
    do = partial(
        claims_of(sql, request.rules).exchange_heads,
        sql=sql,
        settlements=settlements,
        request=request,
        keep=keep,
    )
    return Operation(do, atomic=False, repeatable=False)


def _is_single(settlements: Sequence[Settlement]) -> bool:
    single = len(settlements) == 1 and len(settlements[0].ids) <= MAX_IDS
    return single and settlements[0].dedup_us is None and not settlements[0].in_key_order


def exchange(
    connection: Connection,
    sql: StatementCache,
    settlement: Settlement,
    request: ClaimRequest,
    *,
    keep: bool,
) -> tuple[set[int], list[MessageRow]]:
    """Ack and claim in one statement. Use it only if ``exchanges_at_once``.

    It claims nothing unless all finished messages were held.

    Returns:
        The finished ids that were still held, and the claimed messages, oldest first.
    """
    claims: Claims = sql.subject.dialect.strategy(Claims)
    settled, rows = claims.exchange(connection, sql, settlement, request, keep=keep)
    return settled, oldest_first(rows)


DecodeTaken: TypeAlias = (
    "Callable[[Sequence[MessageRow]], tuple[list[Message], dict[Disposition, list[MessageRow]]]]"
)
"""Turns taken rows into messages, and returns dispositions for rows that cannot be decoded."""


def take(
    connection: Connection,
    sql: StatementCache,
    values: Mapping[str, Any],
    *,
    decode: DecodeTaken,
    done: Disposition,
    where: Where | None,
    refused: dict[int, str],
    ended: dict[int, Disposition],
    careful: bool,
    picking: Callable[[], Sequence[Sequence[Any]]] | None = None,
) -> tuple[int, list[Message]]:
    """Remove the oldest messages of a level in the caller's transaction, which locks them.

    Args:
        connection: the caller's.
        sql: the queue's statements.
        values: the bind parameters: the level, and how many.
        decode: decodes the rows that were found.
        done: the disposition of the decoded messages.
        where: only messages that match.
        refused: messages that the database refuses to end are held, not returned, and noted here
            with the reason.
        ended: those that cannot be decoded or have expired are noted here, with what became of
            them.
        careful: whether to hold decoded messages, too, which costs a savepoint; else it raises.
        picking: finds and locks the messages of groups, in the order in which they are taken.

    Returns:
        How many rows were found, and the decoded messages, oldest first.
    """
    sql.subject.dialect.sessions.lock_for_writing(connection, sql)
    if picking is None:
        found = sql.get(claim.pick_rows, where).run(connection, values).all()
        rows = sorted(read_taken_rows(connection, sql, found), key=AGE)
        messages, unreadable = decode(rows)
    else:
        rows = read_taken_rows(connection, sql, picking())
        rows, messages, unreadable = _undisturbed(rows, *decode(rows))
    if unreadable:
        aside = {row.id for same in unreadable.values() for row in same}
        handed_out = [row for row in rows if row.id not in aside]
    else:
        handed_out = rows
    apart = list(unreadable.items())
    if careful and handed_out:
        apart.append((done, handed_out))
    elif handed_out:
        end_locked(connection, sql, [(done, handed_out)])
    for end, same in apart:
        refused |= end_apart(connection, sql, end, {row.id: row for row in same})
        if end is not done:
            ended |= {row.id: end for row in same if row.id not in refused}
    if refused:
        messages = [message for message in messages if message.id not in refused]
    return len(rows), messages


def _undisturbed(
    rows: Sequence[MessageRow],
    messages: list[Message],
    unreadable: dict[Disposition, list[MessageRow]],
) -> tuple[list[MessageRow], list[Message], dict[Disposition, list[MessageRow]]]:
    """Without what is behind messages of its group that stay in the queue."""
    stay = {row.id for end, same in unreadable.items() if end.aside is not None for row in same}
    broken: set[str | None] = set()
    behind: set[int] = set()
    for row in rows if stay else ():
        group = group_of(row)
        if group in broken:
            behind.add(row.id)
        elif group is not None and row.id in stay:
            broken.add(group)
    left = {end: [row for row in same if row.id not in behind] for end, same in unreadable.items()}
    return (
        [row for row in rows if row.id not in behind],
        [message for message in messages if message.id not in behind],
        {end: same for end, same in left.items() if same},
    )


def insist_on_writing(connection: Connection, sql: StatementCache) -> None:
    """Let a server that only reads say so after a ``take`` that found nothing and locked nothing.

    After a switchover it may be an old one, which knows nothing of newer messages.
    """
    if sql.subject.has_rules:
        sql.get(claim.change_nothing).run(connection)


def unclaim_round(connection: Connection, sql: StatementCache, stamp: Claim) -> int:
    """Give back the messages of one claim; returns how many."""
    values = {"p_consumer": stamp.consumer_id, "p_round": stamp.consumer_round}
    return _noted(sql, sql.get(claim.unclaim_round).run(connection, values).rowcount)


def unclaim_all(connection: Connection, sql: StatementCache, consumer_id: str) -> int:
    """Give back all messages that a consumer holds; returns how many."""
    values = {"p_consumer": consumer_id}
    return _noted(sql, sql.get(claim.unclaim_all).run(connection, values).rowcount)


def _noted(sql: StatementCache, unclaimed: int) -> int:
    if unclaimed:
        note_capacity(sql)
    return unclaimed


def oldest_first(rows: list[MessageRow]) -> list[MessageRow]:
    """Sort claimed rows, because an UPDATE returns them in no particular order."""
    return sorted(rows, key=lambda row: (row.priority, row.available_at or 0, row.id))
