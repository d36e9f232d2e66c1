"""The claims of a history: when each was surely valid, and what became of it."""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from queue_over_sql.testing.history.verdict import Kind, Name, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queue_over_sql.testing.history.journal import Event, History, Stamp

FINAL: Final = frozenset({"ack", "done", "reject", "rejected", "failed", "expired"})
# At its last attempt it is the end.
_PERHAPS_FINAL: Final = frozenset({"nack"})
# It keeps its claim.
GOES_ON: Final = frozenset({"extend"})
BACK_AT_ONCE: Final = frozenset({"release", "released"})


def age(event: Event) -> tuple[int, float, int]:
    """What messages are sorted by: the most urgent first, then the oldest."""
    return event.priority, event.due or 0.0, event.id


@dataclasses.dataclass
class Hold:
    """One claim.

    Attributes:
        delivery: when it was told.
        until: it was surely valid from the delivery until then.
        verb: how it was settled.
        end: that it was settled; None if that is not known.
        settling: that a settle began.
        lost: whether a settle was refused.
        noted_settling: whether its writer notes each settle before it begins.
        retried: whether a settle began after one whose outcome is unknown.
    """

    delivery: Event
    until: float
    verb: str = ""
    end: Event | None = None
    settling: Event | None = None
    lost: bool = False
    noted_settling: bool = False
    retried: bool = False

    @property
    def accepted(self) -> bool:
        """Whether it was settled, so that it was surely valid when that began."""
        return self.end is not None

    @property
    def final(self) -> bool:
        """Whether it ended the message."""
        return self.accepted and self.verb in FINAL

    @property
    def perhaps_final(self) -> bool:
        """Whether it may have ended the message, for all that is known."""
        if self.accepted:
            return self.verb in _PERHAPS_FINAL
        if self.retried:
            return True
        # Who notes that it begins to settle has not begun without a note.
        return not self.lost and (self.settling is not None or not self.noted_settling)


class Run:
    """The events of a history, sorted by what they are about."""

    def __init__(self, history: History) -> None:
        self.tolerance = history.tolerance
        self.signs: dict[str, list[float]] = defaultdict(list)
        self.closings: dict[str, list[float]] = defaultdict(list)
        self._queues: dict[str, Messages] = {}
        # Who publishes by name does not always say where.
        names: dict[str, set[str]] = defaultdict(set)
        for event in history.events:
            if event.name is not None and event.id:
                names[event.name].add(event.queue)
        sole = {event.queue for event in history.events if event.id}
        for event in history.events:
            self.signs[event.writer].append(event.at)
            if event.act in {"closing", "opened"}:
                self.closings[event.writer].append(event.at)
                continue
            wanted = {event.queue}
            if not event.id and not event.queue:
                wanted = names.get(str(event.name), sole if len(sole) == 1 else {""})
            for name in wanted:
                queue = self._queues.setdefault(name, Messages(name, self))
                queue.add(event)

    def queues(self) -> Iterator[Messages]:
        """Each queue's messages."""
        yield from self._queues.values()

    def queue(self, name: str) -> Messages | None:
        """One queue's messages; None if nothing was noted about it."""
        return self._queues.get(name)


class Messages:
    """What was noted about the messages of one queue."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.run = name, run
        self.by_message: dict[Name, list[Event]] = defaultdict(list)
        self.deliveries: list[Event] = []
        self.ids: dict[str, set[int]] = defaultdict(set)
        self._by_stamp: dict[Stamp, list[Event]] = defaultdict(list)

    def add(self, event: Event) -> None:
        """Add the next event."""
        if not event.id and event.name is None:
            return
        self.by_message[event.id or str(event.name)].append(event)
        if event.id and event.name is not None:
            self.ids[event.name].add(event.id)
        if event.consumer:
            self._by_stamp[event.stamp].append(event)
        if event.act == "delivered":
            self.deliveries.append(event)

    def about(self, message: Name) -> tuple[Event, ...]:
        """All that was noted about a message, by its id and by its name."""
        events = list(self.by_message.get(message, ()))
        if isinstance(message, str):
            others: Iterable[Name] = self.ids.get(message, ())
        else:
            others = {each.name for each in events if each.name is not None}
        for other in others:
            events += self.by_message.get(other, ())
        return tuple(sorted(events, key=lambda each: each.at))

    def surely_published(self, id_: int) -> float:
        """When a message was surely there; infinite if nobody noted its publish."""
        times = [each.at for each in self.about(id_) if each.act == "published"]
        return times[0] if times else float("inf")

    def of_claim(self, delivery: Event) -> list[Event]:
        """What was noted about this claim, in order."""
        return self._by_stamp.get(delivery.stamp, [])

    def violation(self, kind: Kind, message: Name, what: str) -> Violation:
        """A violation about a message, with all that was noted about it."""
        return Violation(kind, self.name, message, what, self.about(message))

    def holds(self, lease: float | None) -> dict[int, list[Hold]]:
        """By message its claims in order of time."""
        begun, ended = self._writers("settling"), self._writers("settled")
        noting = {writer for writer, stamps in begun.items() if ended[writer] <= stamps}
        found: dict[int, list[Hold]] = defaultdict(list)
        for delivery in self.deliveries:
            hold = self._hold(delivery, lease)
            hold.noted_settling = delivery.writer in noting
            found[delivery.id].append(hold)
        return found

    def _writers(self, act: str) -> dict[str, set[Stamp]]:
        """By writer, the claims about which it noted this act."""
        found: dict[str, set[Stamp]] = defaultdict(set)
        for stamp, events in self._by_stamp.items():
            for event in events:
                if event.act == act:
                    found[event.writer].add(stamp)
        return found

    def _hold(self, delivery: Event, lease: float | None) -> Hold:
        hold = Hold(delivery, delivery.at)
        if not delivery.consumer:
            # It was taken: claimed and finished at once.
            return hold
        last = delivery.at
        for event in self.of_claim(delivery):
            if event.act == "settling":
                hold.retried |= hold.settling is not None and hold.settling.verb not in GOES_ON
                hold.settling = event
            elif event.act == "settled" and event.verb in GOES_ON:
                hold.until = last = event.at if hold.settling is None else hold.settling.at
                hold.settling = None
            elif event.act == "settled":
                hold.end, hold.verb = event, event.verb
                # It was accepted, so the claim was valid when the settle began.
                last = hold.settling.at if hold.settling is not None else last
                hold.until = max(hold.until, last)
            elif event.act == "lost":
                hold.lost = True
            elif event.act in {"finished", "failed"}:
                last = event.at
        unsettled = not hold.accepted and not hold.lost
        if unsettled and lease is not None and not self._perhaps_settled(delivery):
            hold.until = self._alive_until(delivery, lease)
            if hold.settling is not None:
                hold.until = min(hold.until, hold.settling.at)
        return hold

    def _perhaps_settled(self, delivery: Event) -> bool:
        """Whether the message was settled since, and nobody knows by which claim."""
        return any(
            each.act in {"settled", "lost", "dead"}
            and not each.consumer
            and each.at >= delivery.since
            for each in self.by_message[delivery.id]
        )

    def _alive_until(self, delivery: Event, lease: float) -> float:
        """Until when the process went on to give signs; after a pause it may have been dead."""
        signs, closings = self.run.signs[delivery.writer], self.run.closings[delivery.writer]
        until, end = delivery.at, delivery.since + lease
        # A service that stops gives back what it holds.
        for closing in closings[bisect.bisect_left(closings, delivery.since) :][:1]:
            end = min(end, closing)
        for at in signs[bisect.bisect_right(signs, until) :]:
            if at - until > lease / 2 or at > end:
                break
            until = at
        return until
