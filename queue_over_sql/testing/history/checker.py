"""The checker: decides from a history whether queues kept their promises.

It is told what processes noted, and when. Between the true time of a claim or settle and its note
lies an unknown moment, and what a killed process had begun may have happened or not. So it reports
only what no order of these moments can explain.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from queue_over_sql.testing.history.claims import FINAL, Hold, Messages, Run
from queue_over_sql.testing.history.journal import History, read
from queue_over_sql.testing.history.order import group_rules, order, rates
from queue_over_sql.testing.history.verdict import Name, Rules, Verdict, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


def check(
    history: History | str | Path,
    rules: Mapping[str, Rules] | None = None,
    *,
    left: Mapping[str, Iterable[Name]] | None = None,
    finished: Mapping[str, Iterable[Name]] | None = None,
    effects: Mapping[str, Iterable[Name]] | None = None,
    dead: Mapping[str, float] | None = None,
) -> Verdict:
    """Decide whether the queues kept their promises.

    What operators do is not noted: a message that one deletes looks lost; one that is requeued,
    prioritized or put on hold may look ended twice or out of order.

    Args:
        history: what ``read`` returned, or the folder.
        rules: by queue, what it promised beside the promises of all queues.
        left: by queue, all messages that are there after the run: ids or names. Without it nothing
            is called lost.
        finished: by queue, all messages in its archive, if that keeps all (``archive="all"``).
            Without it a message counts as finished if its last claim was not settled.
        effects: by queue, the message of each effect that your handlers committed, with
            repetitions.
        dead: by writer, when its process was killed, on the clock of the events.

    Raises:
        FileNotFoundError: nobody wrote in the folder, or it is not there.
        ValueError: a file has a line that is no event.
    """
    read_history = history if isinstance(history, History) else read(history)
    run, rules = Run(read_history), rules or {}
    violations, unchecked = list[Violation](), list[str]()
    for queue in run.queues():
        given = rules.get(queue.name, Rules())
        holds = queue.holds(given.lease)
        violations += _endings(queue, holds)
        violations += _holders(queue, holds, given.lease)
        violations += group_rules(queue, holds, given)
        violations += rates(queue, given)
        if given.order is not None or given.restored_within is not None:
            violations += order(queue, holds, given, dead or {})
        if given.order is None:
            unchecked.append(f"queue {queue.name!r}: order, because no Rules(order=…) is given")
        if left is None or queue.name not in left:
            unchecked.append(f"queue {queue.name!r}: losses, because nobody said what is left")
            continue
        kept = None if finished is None else finished.get(queue.name)
        if kept is None:
            said = "losses of claims that nobody settled, because nobody said what is finished"
            unchecked.append(f"queue {queue.name!r}: {said}")
        violations += _losses(queue, holds, list(left[queue.name]), _listed(kept))
    for name, repeated in (effects or {}).items():
        violations += _repeated(run, name, repeated, "it had {0} effects")
    return Verdict(violations, Counter(event.act for event in read_history.events), unchecked)


def _endings(queue: Messages, holds: Mapping[int, list[Hold]]) -> Iterator[Violation]:
    """Messages that ended twice, or were delivered after their end."""
    slack = queue.run.tolerance
    for id_, events in queue.by_message.items():
        if not isinstance(id_, int):
            continue
        settled = [each for each in events if each.act == "settled" and each.verb in FINAL]
        # An observer and the code around it may both have noted one settle.
        verbs = Counter((each.writer, each.verb) for each in settled)
        takers = {h.delivery.writer for h in holds.get(id_, ()) if not h.delivery.consumer}
        times = max([len({each.stamp for each in settled}), len(takers), *verbs.values()])
        if times > 1:
            yield queue.violation("effects twice", id_, f"it was ended {times} times")
        elif settled:
            after = [h for h in holds.get(id_, ()) if h.delivery.since > settled[0].at + slack]
            if after:
                yield queue.violation("effects twice", id_, "it was delivered after its end")


def _holders(
    queue: Messages, holds: Mapping[int, list[Hold]], lease: float | None
) -> Iterator[Violation]:
    slack = queue.run.tolerance
    for id_, of_message in holds.items():
        for earlier, later in pairwise(of_message):
            if earlier.delivery.stamp == later.delivery.stamp and earlier.delivery.consumer:
                yield queue.violation("two holders", id_, "two deliveries have the same claim")
            elif later.delivery.at + slack < earlier.until:
                past = lease is not None and earlier.until - earlier.delivery.since > lease
                if past and earlier.accepted:
                    said = "a settle was accepted although another consumer had claimed it"
                    yield queue.violation("not the holder", id_, said)
                else:
                    said = "it was delivered while another claim of it was valid"
                    yield queue.violation("two holders", id_, said)
    for message, events in queue.by_message.items():
        claimed = {each.stamp for each in events if each.act == "delivered"}
        strange = [
            each
            for each in events
            if each.act == "settled" and each.consumer and each.stamp not in claimed
        ]
        if strange:
            yield queue.violation(
                "not the holder", message, "a settle has a claim that nobody made"
            )


def _listed(given: Iterable[Name] | None) -> list[Name] | None:
    return None if given is None else list(given)


def _losses(
    queue: Messages,
    holds: Mapping[int, list[Hold]],
    left: list[Name],
    finished: list[Name] | None,
) -> Iterator[Violation]:
    there, ended = set(left), None if finished is None else set(finished)
    yield from _repeated(queue.run, queue.name, left, "it is there {0} times")
    if finished is not None:
        yield from _repeated(queue.run, queue.name, finished, "it was finished {0} times")
    for message, events in queue.by_message.items():
        keys: set[Name] = {message}
        # A name may consist of digits, and is no id for that.
        if isinstance(message, str):
            keys |= queue.ids.get(message, set())
        keys |= {each.name for each in events if each.name is not None}
        of_message = [h for key in keys if isinstance(key, int) for h in holds.get(key, ())]
        final = any(hold.final for hold in of_message) or any(
            each.act == "dead" or (each.act == "settled" and each.verb in FINAL)
            for key in keys
            for each in queue.by_message.get(key, ())
        )
        if final and keys & there and isinstance(message, int):
            yield queue.violation("came back", message, "it was ended, and is still there")
        if not any(each.act == "published" for each in events):
            if ended is not None and final and not keys & (there | ended):
                yield queue.violation("lost", message, "it was ended, and is not in the archive")
            continue
        if ended is not None:
            gone = not keys & (there | ended)
        else:
            perhaps = any(hold.perhaps_final for hold in of_message)
            taken = any(not hold.delivery.consumer for hold in of_message)
            gone = not (keys & there or final or perhaps or taken)
        if gone:
            yield queue.violation("lost", message, "it was published, and is not there")


def _repeated(run: Run, queue: str, given: Iterable[Name], said: str) -> Iterator[Violation]:
    of_queue = run.queue(queue) or Messages(queue, run)
    for message, count in Counter(given).items():
        if count > 1:
            yield of_queue.violation("effects twice", message, said.format(count))
