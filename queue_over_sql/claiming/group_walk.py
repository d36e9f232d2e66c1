"""How claims walk along the claim index of a queue with groups."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from queue_over_sql.claiming.low_watermark import SLACK_US
from queue_over_sql.errors import DatabaseRefused, PayloadInvalid, QueueError, visible
from queue_over_sql.groups import operations
from queue_over_sql.groups.exits import wake_these
from queue_over_sql.groups.fair import claims_of, parked_fitting, spread
from queue_over_sql.groups.strategy import GroupClaims, GroupRequest, GroupRules, group_of
from queue_over_sql.sql.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.groups.strategy import GroupClaim, Seen
    from queue_over_sql.message import MessageRow
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.statements.requests import ClaimRequest, Where

_log = logging.getLogger(__name__)

MOST_LOOKS: Final = 200
"""How often a claim that finds nothing looks further, past what it parked."""

# How many messages a claim looks at if what it met before was blocked.
_WIDE: Final = 50
# In fair shares, how many times as many as it wants, and how often it parks before it looks past
# what hides others.
_CHOICE: Final = 4
_PATIENCE: Final = 3
# How often it looks for parked messages that it may have while those of its group before it, which
# it meets, are of a kind that it does not know.
_SECONDS_BETWEEN: Final = 10.0
# How many messages along the claim index it parks in one transaction, at first and at most.
_LEAST_PARKED, _MOST_PARKED = 256, 10_000
# Of how many groups this process remembers that they have rows.
_MOST_KNOWN: Final = 50_000
_SECONDS_BETWEEN_LOGS: Final = 60.0


@dataclasses.dataclass
class _Level:
    """The walk on one priority level.

    Attributes:
        blocked: whether the last look met only messages that their groups block.
        heads: whether it met as many messages as it wanted, each of another group, and took all.
        broad: whether the next look tries all groups that it meets.
        reach: how many messages the next parking looks at.
        parkings: how often a fair claim has parked what hides others.
        everywhere_at: when claims looked for parked messages of any group, on this host.
    """

    blocked: bool = False
    heads: bool = False
    broad: bool = False
    reach: int = _LEAST_PARKED
    parkings: int = 0
    everywhere_at: float = float("-inf")


class GroupWalk:
    """What one service knows of the groups of a queue while its claims walk along the index.

    A look takes what it can of a window. What it met and could not take is blocked. If the next
    window is blocked, too, or that lasts, the walk parks it, so that no claim meets it again.
    """

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._levels: dict[int, _Level] = {}
        self._known: set[str] = set()
        self._own_limits: dict[str, int | None] = {}
        self._own_rates: bool | None = None
        self._said_at = -math.inf

    def request(
        self,
        claim: ClaimRequest,
        rules: GroupRules,
        past: tuple[str, ...] = (),
        most: int | None = None,
        *,
        patient: bool = True,
    ) -> GroupRequest:
        """The request for the next look on the claim's level; it leaves out groups of ``past``."""
        if rules.fair:
            return self._fair_request(claim, rules, past, most, patient=patient)
        level = self._level(claim.priority)
        if past or level.blocked or level.broad:
            wide = max(2 * claim.count, _WIDE)
            return GroupRequest(claim, rules, wide, past, most, broad=level.broad)
        heads = level.heads and rules.ordered and claims_of(self._context.sql, rules).has_heads
        return GroupRequest(claim, rules, claim.count, past, most, heads=heads)

    def _fair_request(
        self,
        claim: ClaimRequest,
        rules: GroupRules,
        past: tuple[str, ...],
        most: int | None,
        *,
        patient: bool,
    ) -> GroupRequest:
        ahead = self._looks_ahead(claim.priority, claim.where)
        everywhere = ahead or claim.where is not None
        wide, patient = max(_CHOICE * claim.count, _WIDE), patient and not past
        request = GroupRequest(claim, rules, wide, past, most, patient=patient)
        return request._replace(everywhere=everywhere, ahead=ahead)

    def _looks_ahead(self, priority: int, where: Where | None) -> bool:
        """Whether it is time to look for parked messages that a consumer of some of them may have.

        Those of their groups that a claim meets may be none for it.
        """
        if where is None and not self._context.tables.known_kinds:
            return False
        level, now = self._level(priority), time.monotonic()
        if now - level.everywhere_at < _SECONDS_BETWEEN:
            return False
        level.everywhere_at = now
        return True

    def wakes_fitting(
        self, priority: int, count: int, where: Where | None, connection: Connection | None = None
    ) -> bool:
        """Wake parked messages that a claim may have, after it found nothing; whether it did.

        Only without order. In fair shares the claim itself looks for them.

        Args:
            priority: the level.
            count: how many the claim wanted.
            where: only messages that match.
            connection: a caller's, which has the only lock for writing.
        """
        rules, context = GroupRules.of(self._context.settings), self._context
        if rules.ordered or rules.fair:
            return False
        if where is None and not self._looks_ahead(priority, where):
            return False

        def look(target: Connection) -> list[int]:
            return parked_fitting(
                target, context.sql, rules, priority=priority, count=count, where=where
            )

        ids = sorted(context.run(look) if connection is None else look(connection))
        wake = wake_these.of(context.sql, ids)
        return bool(ids) and bool(context.run(wake) if connection is None else wake.do(connection))

    def goes_on(self, request: GroupRequest, found: GroupClaim) -> tuple[str, ...] | None:
        """Prepare the next look, after one that met something.

        It creates rows of groups that have none, and parks what is blocked: one large step of it,
        because the claim must not take long. Then it looks past what is still there.

        Returns:
            The groups that the next look leaves out; None if this claim need not look again.
        """
        return (self._after_heads if request.heads else self._after)(request, found)

    def _after(self, request: GroupRequest, found: GroupClaim) -> tuple[str, ...] | None:
        full, level = len(found.seen) >= request.window, self._level(request.claim.priority)
        level.broad = False
        if found.hidden and request.patient:
            return self._past_hidden(request, found, level)
        if request.rules.fair and not (found.hidden or request.past):
            level.parkings, level.reach = 0, _LEAST_PARKED
        left = left_of(found)
        groups = [group for row in found.rows if (group := group_of(row)) is not None]
        mine = set(groups)
        level.heads = full and not left and len(mine) == len(groups)
        blocked = [seen for seen in left if seen.group is not None and seen.group not in mine]
        if len(found.rows) >= request.claim.count:
            if not (request.past or found.hidden):
                level.blocked, level.reach = False, _LEAST_PARKED
            return None
        if found.lacking or self.create_rows(seen.group for seen in blocked):
            self.create_rows(found.lacking, anew=True)
            return request.past
        lasts = level.blocked or place_after(found) < found.now - 2 * SLACK_US
        level.blocked = full or bool(request.past)
        if not blocked:
            return None
        stays = self._park(request, blocked, level) if lasts else False
        # Nothing else makes it look again, or only past all that it met.
        at_end = not found.rows and (stays or not (full or lasts))
        level.broad = at_end and self._left_some_out(request, blocked)
        further = full or level.broad or (lasts and not stays)
        if not (further or lasts or found.rows):
            # The reaper may have removed a row that this process knows.
            further = self.create_rows(names_of(blocked), anew=True)
        # Whoever got something need not wait for more.
        if found.rows or not further:
            return None
        past = tuple({*request.past, *names_of(blocked)}) if stays else ()
        return request.past if level.broad else past

    def _left_some_out(self, request: GroupRequest, blocked: Sequence[Seen]) -> bool:
        """Whether it may have met more groups than it tried, of which nothing may be taken."""
        rules = request.rules
        tries_some = rules.ordered and claims_of(self._context.sql, rules).at_once
        return tries_some and not request.broad and len(names_of(blocked)) > 1

    def _past_hidden(
        self, request: GroupRequest, found: GroupClaim, level: _Level
    ) -> tuple[str, ...]:
        """Park what hides others. If there is much of it, or others are at it, look past it."""
        level.parkings += 1
        moved = self._spread(request, level)
        if moved and level.parkings < _PATIENCE and level.reach < _MOST_PARKED:
            return ()
        level.parkings = 0
        return found.hidden

    def _spread(self, request: GroupRequest, level: _Level) -> int:
        reach = max(level.reach, request.window)
        level.reach = min(4 * reach, _MOST_PARKED)
        window, sql = request._replace(window=reach), self._context.sql
        return self._context.run(Operation(lambda c: spread(c, sql, window), atomic=True))

    def _after_heads(self, request: GroupRequest, found: GroupClaim) -> tuple[str, ...] | None:
        """As ``goes_on``, after a look for first messages: what it left need not be blocked."""
        level = self._level(request.claim.priority)
        if found.took_all:
            level.reach = _LEAST_PARKED
            return None
        level.heads = self.create_rows(seen.group for seen in left_of(found))
        return request.past

    def limits(self, names: Sequence[str], rules: GroupRules) -> dict[str, int]:
        """How many messages of each of these groups may be in hand at once."""
        fresh = [name for name in names if name not in self._own_limits]
        if fresh:
            sql = self._context.sql
            found = self._context.run(lambda c: operations.own_limits(c, sql, fresh))
            if len(self._own_limits) > _MOST_KNOWN:
                self._own_limits = {name: self._own_limits.get(name) for name in names}
            self._own_limits |= dict.fromkeys(fresh) | found
        own = self._own_limits
        return {name: rules.limit if (limit := own.get(name)) is None else limit for name in names}

    @property
    def rules(self) -> GroupRules:
        """The rules of the queue as they are known, since ``forget_limits``."""
        context, known = self._context, self._own_rates
        if known is None:
            sql, claims = context.sql, context.dialect.strategy(GroupClaims)
            known = claims.reads_rates or context.run(lambda c: operations.any_own_rate(c, sql))
            self._own_rates = known
        return GroupRules.of(context.settings, own_rates=known)

    def forget_limits(self) -> None:
        """Read the limits and rates of groups again, because the queue was edited."""
        self._own_limits, self._own_rates = {}, None

    def parking(self, request: GroupRequest, blocked: Sequence[Seen]) -> Operation[object]:
        """The operation that parks as much as one step may, of groups that have rows."""
        window = request._replace(window=_MOST_PARKED)

        def park(connection: Connection) -> object:
            sql = self._context.sql
            claims = claims_of(sql, request.rules)
            return operations.park(connection, sql, claims, window, blocked)

        return Operation(park, atomic=True)

    def _park(self, request: GroupRequest, blocked: Sequence[Seen], level: _Level) -> bool:
        """Park what is blocked; whether a part of it stays where claims meet it."""
        if request.past:
            return True
        reach = max(level.reach, request.window)
        sql, window = self._context.sql, request._replace(window=reach)
        claims = claims_of(sql, request.rules)
        park = partial(operations.park, sql=sql, claims=claims, request=window, blocked=blocked)
        try:
            moved, lacking = self._context.run(Operation(park, atomic=True))
        except (DatabaseRefused, PayloadInvalid) as error:
            self.cannot_park(error)
            return True
        if lacking:
            self.create_rows(lacking, anew=True)
            return False
        level.reach = min(4 * reach, _MOST_PARKED)
        return not moved or reach >= _MOST_PARKED

    def cannot_park(self, error: QueueError) -> None:
        """Log that what a claim met stays where it is, since the database refuses to move one.

        Raises:
            QueueError: the error is no matter of one row.
        """
        if not self._context.refuses_row(error):
            raise error
        now = time.monotonic()
        if now - self._said_at < _SECONDS_BETWEEN_LOGS:
            return
        self._said_at = now
        _log.warning(
            "Queue %s: the database refuses to move a message aside that its group blocks: %s. "
            "Claims look past it, and take longer.",
            self._context.name,
            visible(" ".join(str(error).split()), keep=""),
            extra={"queue": self._context.name},
        )

    def create_rows(self, groups: Iterable[str | None], *, anew: bool = False) -> bool:
        """Create the rows of groups that have none, unless that is known; whether there were any.

        Apart from the claim, so that nobody waits for an uncommitted row. The reaper removes rows
        of groups without messages, so with ``anew`` it also looks for rows that it knows.
        """
        context = self._context
        rules = self.rules
        if (rules.fair and rules.unlimited) or not claims_of(context.sql, rules).needs_rows:
            return False
        named = {group for group in groups if group is not None}
        fresh = named if anew else named - self._known
        if not fresh:
            return False
        count = context.run(lambda c: operations.know(c, context.sql, sorted(fresh)))
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known |= fresh
        return count > 0

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        return level if level is not None else self._levels.setdefault(priority, _Level())


def names_of(met: Iterable[Seen]) -> set[str]:
    """The groups of messages."""
    return {seen.group for seen in met if seen.group is not None}


def left_of(found: GroupClaim) -> list[Seen]:
    """What a claim met and did not take, oldest first."""
    taken = {row.id for row in found.rows}
    return [seen for seen in found.seen if seen.id not in taken]


def place_after(found: GroupClaim) -> int:
    """The due time up to which everything was taken: what is left must be found again."""
    if not found.took_all and (left := left_of(found)):
        return left[0].available_at
    return found.seen[-1].available_at if found.seen else 0


def in_order(found: GroupClaim) -> list[MessageRow]:
    """The claimed messages in the order of the window; those of one group in the order of ids."""
    if found.took_all:
        return found.rows
    places: dict[str | int, int] = {}
    for place, seen in enumerate(found.seen):
        places.setdefault(seen.id if seen.group is None else seen.group, place)

    def key(row: MessageRow) -> tuple[int, int]:
        group = group_of(row)
        return places.get(row.id if group is None else group, 0), row.id

    return sorted(found.rows, key=key)
