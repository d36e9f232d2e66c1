"""Decides whether a run is one that the promises allow.

It looks for an order of the calls, one after the other, in which all that the clients were told is
true, and all that the tables had. A call that ended before another one began comes before
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.claiming.low_watermark import SLACK_US
from tests.interleavings.acts import (
    FAILED,
    Claim,
    Context,
    Cut,
    Edit,
    Exchange,
    Item,
    Restore,
    Take,
    Transaction,
    of_group,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.interleavings.acts import World
    from tests.interleavings.stepping import Call


class Checker:
    """Looks for an order of calls that explains a run.

    Args:
        calls: all calls, in the order in which they began.
        world: what the run was about.
        start: the messages before it.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        world: World,
        start: Iterable[str],
    ) -> None:
        self._calls = calls
        groups = {of_group(name): Item("open") for name in world.groups.values()}
        self._start = {label: Item() for label in start} | groups
        self._contexts = {call.number: self._context(call, world) for call in calls}
        self._failed: set[tuple[frozenset[int], frozenset[tuple[str, Item]]]] = set()

    def explained(self) -> bool:
        """Whether such an order exists."""
        return self._search(frozenset(call.number for call in self._calls), self._start)

    def _search(self, left: frozenset[int], state: Mapping[str, Item]) -> bool:
        if not left:
            return True
        key = left, frozenset(state.items())
        if key in self._failed:
            return False
        for number in sorted(left):
            call = self._calls[number]
            if self._is_next(call, left):
                context = self._contexts[number]
                for after in _follow(call, state, context):
                    if self._search(left - {number}, after):
                        return True
        self._failed.add(key)
        return False

    def _is_next(self, call: Call, left: frozenset[int]) -> bool:
        others = (self._calls[number] for number in left if number != call.number)
        return not any(
            other.ended < call.began or (other.client == call.client and other.number < call.number)
            for other in others
        )

    def _context(self, call: Call, world: World) -> Context:
        others = [each for each in self._calls if each is not call and each.overlaps(call)]
        touched = frozenset().union(*(self._locked_by(each, call, world) for each in others))
        below = self._below_the_mark(call, world)
        return Context(world, touched, below, bool(others), self._is_cut(call))

    def _is_cut(self, call: Call) -> bool:
        """Whether a cut is not yet told: the first call that fails has a new connection made."""
        failed = [
            each
            for each in self._calls[: call.number]
            if each.client == call.client and _has_failed(each)
        ]
        return any(
            isinstance(each.act, Cut)
            and each.result
            and each.act.client == call.client
            and each.began <= call.ended
            and not any(each.began <= earlier.ended for earlier in failed)
            for each in self._calls
        )

    def _locked_by(self, other: Call, call: Call, world: World) -> frozenset[str]:
        """What an overlapping call may have locked."""
        if other.result == FAILED:
            return frozenset(world.ids)
        touched: frozenset[str] = other.act.touches(other.result, world)
        acts = other.act.acts if isinstance(other.act, Transaction) else (other.act,)
        if isinstance(other.act, Restore):
            # All that was ever claimed.
            further = [each for each in self._calls if each is not call]
        elif any(isinstance(each, Claim | Exchange | Take) for each in acts) and (
            world.grouped or world.limit
        ):
            # Such a claim may lock whatever it looks at, to see what else of a group is there.
            return frozenset(world.ids)
        elif isinstance(other.act, Claim | Exchange | Transaction):
            # InnoDB keeps the lock on the index entry of a row that it skipped.
            further = [each for each in self._calls if each is not call and each.overlaps(other)]
        else:
            further = []
        told = (each for each in further if each.result != FAILED)
        return touched.union(*(each.act.touches(each.result, world) for each in told))

    def _below_the_mark(self, call: Call, world: World) -> frozenset[str]:
        """What may wait for the next full look of its client; edits are seen at once."""
        earlier = (each for each in self._calls[: call.number] if each.client == call.client)
        claimed = [label for each in earlier for label in _claimed(each)]
        mark = max((world.places[label][0] for label in claimed), default=0) - SLACK_US
        edited = {each.act.label for each in self._calls if isinstance(each.act, Edit)}
        return frozenset(
            label for label, (due, _) in world.places.items() if due < mark and label not in edited
        )


def _follow(
    call: Call, state: Mapping[str, Item], context: Context
) -> Iterator[Mapping[str, Item]]:
    if call.result != FAILED:
        yield from call.act.follow(state, call.result, call, context)
    elif context.cut:
        yield state


def _has_failed(call: Call) -> bool:
    return call.result == FAILED or (isinstance(call.act, Transaction) and call.result[0] == FAILED)


def _claimed(call: Call) -> list[str]:
    if call.result == FAILED:
        return []
    told = call.result[1] if isinstance(call.act, Exchange) else call.result
    return [label for label, _ in told] if isinstance(call.act, Claim | Exchange) else []
