"""Order and limits: oldest first, groups, limits and rates, and what comes back from the dead."""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from queue_over_sql.testing.history.claims import BACK_AT_ONCE, Hold, Messages, age
from queue_over_sql.testing.history.verdict import Kind, Rules, Violation
from queue_over_sql.values.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from queue_over_sql.testing.history.journal import Event


class _Span(NamedTuple):
    """A time in which something surely lasted."""

    begin: float
    end: float
    event: Event


def _most_at_once(spans: Sequence[_Span]) -> tuple[int, Event | None]:
    """How many of these lasted at one instant at most, and the one that made it so many."""
    steps = sorted(
        step
        for number, span in enumerate(spans)
        for step in ((span.begin, 1, number), (span.end, -1, number))
        if span.begin < span.end
    )
    most, now, culprit = 0, 0, None
    for _, change, number in steps:
        now += change
        if now > most:
            most, culprit = now, spans[number].event
    return most, culprit


def group_rules(
    queue: Messages, holds: Mapping[int, list[Hold]], rules: Rules
) -> Iterator[Violation]:
    """More in hand than allowed, and groups out of order."""
    spans = [
        _Span(hold.delivery.at + queue.run.tolerance, hold.until, hold.delivery)
        for of_message in holds.values()
        for hold in of_message
    ]
    if rules.queue_limit is not None:
        most, culprit = _most_at_once(spans)
        if most > rules.queue_limit and culprit is not None:
            said = f"with it {most} messages were in hand, and {rules.queue_limit} are allowed"
            yield queue.violation("queue limit", culprit.id, said)
    if rules.group_limit is None:
        return
    groups: dict[str, list[_Span]] = defaultdict(list)
    for span in spans:
        if span.event.group is not None:
            groups[span.event.group].append(span)
    ordered = rules.group_order == "fifo"
    for group, of_group in groups.items():
        # An ordered group may have several in one hand, of which one runs.
        counted = _calls(queue, of_group) if ordered else of_group
        most, culprit = _most_at_once(counted)
        if most > rules.group_limit and culprit is not None:
            said = f"with it {most} of group {group!r} were at work, not {rules.group_limit}"
            yield queue.violation("group limit", culprit.id, said)
        elif ordered and rules.group_limit == 1:
            yield from _overtakings(queue, holds, of_group, counted)


def _calls(queue: Messages, claims: Sequence[_Span]) -> list[_Span]:
    """The handlers' calls, for as long as their claims were surely valid; each with its claim."""
    calls: list[_Span] = []
    for claim in claims:
        begun = None
        for event in queue.of_claim(claim.event):
            if event.act == "started":
                begun = event.at + queue.run.tolerance
            elif event.act in {"finished", "failed"} and begun is not None:
                calls.append(_Span(begun, min(event.at, claim.end), claim.event))
                begun = None
        if begun is not None:
            calls.append(_Span(begun, claim.end, claim.event))
    return calls


def _overtakings(
    queue: Messages,
    holds: Mapping[int, list[Hold]],
    claims: Sequence[_Span],
    calls: Sequence[_Span],
) -> Iterator[Violation]:
    """Messages that ran before an earlier one of their group was finished."""
    of_message: dict[int, list[_Span]] = defaultdict(list)
    for call in calls or claims:
        of_message[call.event.id].append(call)
    ages = {claim.event.id: age(claim.event) for claim in claims}
    # Until when each earlier message was surely there and unfinished, and from when.
    earlier: list[tuple[float, float, int]] = []
    latest = float("-inf")
    for id_ in sorted(ages, key=ages.__getitem__):
        for call in of_message[id_]:
            if call.begin >= latest:
                continue
            blocker = next(
                (
                    other
                    for until, published, other in earlier
                    if call.begin < until
                    and published < call.event.since
                    and not _ended_in_its_hand(queue, holds[other], call)
                ),
                None,
            )
            if blocker is not None:
                said = f"it ran before message {blocker} of its group was finished"
                yield queue.violation("group order", id_, said)
                break
        until = max(max(hold.until, hold.delivery.since) for hold in holds[id_])
        earlier.append((until, queue.surely_published(id_) + queue.run.tolerance, id_))
        latest = max(latest, until)


def _ended_in_its_hand(queue: Messages, holds: Sequence[Hold], call: _Span) -> bool:
    """Whether its consumer's handler had done it, and died with the consumer before the ack.

    Handlers go on with the next message of a group before the ack of the last one. What was done
    and not acked is done again, in order.
    """
    return any(
        event.act == "finished" and event.at <= call.begin
        for hold in holds
        if hold.delivery.consumer == call.event.consumer and not hold.accepted
        for event in queue.of_claim(hold.delivery)
    )


def rates(queue: Messages, rules: Rules) -> Iterator[Violation]:
    """More claims than the rates allow."""
    if rules.queue_rate is not None:
        yield from _rate(queue, rules.queue_rate, queue.deliveries)
    if rules.group_rate is not None:
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in queue.deliveries:
            if event.group is not None:
                groups[event.group].append(event)
        for of_group in groups.values():
            yield from _rate(queue, rules.group_rate, of_group)


def _rate(queue: Messages, text: str, claims: Sequence[Event]) -> Iterator[Violation]:
    """Whether these claims, made as far apart as their notes allow, were too many."""
    rate = Rate.of(text)
    interval = rate.interval / 1_000_000
    full_at, doubt = float("-inf"), 0.0
    for claim in claims:
        late = claim.at - claim.since + queue.run.tolerance
        doubt = late if full_at <= claim.at else max(doubt, late)
        full_at = max(full_at, claim.at) + interval
        if full_at - claim.at > interval * rate.burst + doubt + interval / 1000:
            yield queue.violation("rate", claim.id, f"with it more were claimed than {text}")
            return


class _Ready(NamedTuple):
    """From when to when a message was surely ready and not claimed."""

    age: tuple[int, float, int]
    begin: float
    end: float
    kind: Kind


def order(
    queue: Messages,
    holds: Mapping[int, list[Hold]],
    rules: Rules,
    dead: Mapping[str, float],
) -> Iterator[Violation]:
    """Older messages that were ready all the while a younger one was claimed."""
    waiting = sorted(_waiting(queue, holds, rules, dead), key=lambda each: each.begin)
    claims = sorted(
        (each for each in queue.deliveries if each.group is None), key=lambda each: each.since
    )
    ready: list[_Ready] = []
    told: set[int] = set()
    begun = 0
    for claim, now in zip(claims, _clock(queue, claims), strict=True):
        while begun < len(waiting) and waiting[begun].begin <= claim.since:
            heapq.heappush(ready, waiting[begun])
            begun += 1
        apart: list[_Ready] = []
        while ready and ready[0].age < age(claim):
            oldest = heapq.heappop(ready)
            if oldest.end <= claim.since:
                continue
            apart.append(oldest)
            id_ = oldest.age[2]
            if oldest.end > claim.at and oldest.age[1] <= now and id_ not in told:
                told.add(id_)
                said = f"message {claim.id} was claimed before it, though it was ready"
                yield queue.violation(oldest.kind, id_, said)
        for each in apart:
            heapq.heappush(ready, each)
    if rules.order is None:
        return
    for earlier, later in pairwise(queue.deliveries):
        same = earlier.batch and (earlier.writer, earlier.batch) == (later.writer, later.batch)
        first = earlier.attempt == later.attempt == 1
        if same and first and age(later) < age(earlier):
            said = f"message {earlier.id} came before it in the same claim"
            yield queue.violation("order", later.id, said)


def _clock(queue: Messages, claims: Sequence[Event]) -> Iterator[float]:
    """What the database's clock had surely reached at these claims: what is claimed was due."""
    noted, reached = 0, 0.0
    for claim in claims:
        while (
            noted < len(queue.deliveries)
            and queue.deliveries[noted].at + queue.run.tolerance <= claim.since
        ):
            reached = max(reached, queue.deliveries[noted].due or 0.0)
            noted += 1
        yield max(reached, claim.due or 0.0)


def _waiting(
    queue: Messages,
    holds: Mapping[int, list[Hold]],
    rules: Rules,
    dead: Mapping[str, float],
) -> Iterator[_Ready]:
    slack = queue.run.tolerance
    for id_, of_message in holds.items():
        first = of_message[0].delivery
        if first.group is not None:
            continue
        old = age(first)
        if rules.order is not None and first.attempt == 1:
            begin = queue.surely_published(id_) + rules.order + slack
            yield _Ready(old, begin, first.since - slack, "order")
        for hold, following in zip(of_message, [*of_message[1:], None], strict=True):
            end = float("inf") if following is None else following.delivery.since - slack
            died = dead.get(hold.delivery.writer)
            if hold.end is not None:
                if rules.order is not None and hold.verb in BACK_AT_ONCE and following is not None:
                    yield _Ready(old, hold.end.at + rules.order + slack, end, "order")
            # If it may have been finished, only its return shows that it was not.
            elif (
                died is not None
                and rules.restored_within is not None
                and not hold.lost
                and (following is not None or not hold.perhaps_final)
            ):
                yield _Ready(old, died + rules.restored_within + slack, end, "restored late")
