"""What can be done on the pages: the verbs of the command line, with the same guards.

What cannot be undone is asked about first, with the number of messages it is about. What can be
undone offers that. All of it is written to the audit table.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.durations import to_timedelta
from queue_over_sql.errors import QueueError
from queue_over_sql.message import Status
from queue_over_sql.queue import core_of
from queue_over_sql.queues.selection import rows_of
from queue_over_sql.web.looks import error_groups
from queue_over_sql.web.problems import problem_of
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from queue_over_sql import ArchiveSelection, LiveSelection, Queue, QueueService
    from queue_over_sql.store import Edited

_BATCH: Final = 500
_TOLD: Final = 20


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a form says.

    Attributes:
        fields: its fields, each with one value.
        ids: the messages that were chosen. Where there are none, all that match are only meant if
            the field ``all`` says so.
    """

    fields: Mapping[str, str]
    ids: Sequence[int] = ()

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")

    def insist_on_choice(self) -> None:
        """Refuse a form that names neither messages nor all of them.

        Raises:
            ValueError: it is one.
        """
        if not (self.ids or self["all"]):
            msg = "No message was chosen."
            raise ValueError(msg)

    def queue(self, service: QueueService) -> Queue:
        """The queue it is about."""
        return service.queue(self["queue"])


@dataclasses.dataclass(frozen=True)
class Done:
    """What was done.

    Attributes:
        text: a sentence for the page.
        count: of messages, or None.
        undo: the name and the fields of the action that takes it back.
    """

    text: str
    count: int | None = None
    undo: tuple[str, dict[str, str]] | None = None


@dataclasses.dataclass(frozen=True)
class Action:
    """Something that a page offers.

    Attributes:
        title: what its button says.
        role: who may do it.
        run: does it.
        question: what to ask first, with ``{n}`` for how many; None where it can be undone.
        asks_for_all: whether the question is only asked where no messages were chosen.
        count: how many messages it is about; None where that is no question.
        word: the field of ``Asked`` that has to be typed for it.
    """

    title: str
    role: Role
    run: Callable[[QueueService, Asked], Done]
    question: str | None = None
    count: Callable[[QueueService, Asked], int] | None = None
    word: str | None = None
    asks_for_all: bool = False

    def asks(self, asked: Asked) -> bool:
        """Whether there is a question before this."""
        return self.question is not None and not (self.asks_for_all and asked.ids)


def live_of(service: QueueService, asked: Asked) -> LiveSelection:
    """The live messages that a form means: those chosen, or all that match its filters."""
    asked.insist_on_choice()
    queue = asked.queue(service)
    if asked.ids:
        return queue.messages(where=queue.table.c.id.in_(asked.ids))
    return queue.messages(**filters_of(asked.fields))


def archive_of(service: QueueService, asked: Asked) -> ArchiveSelection:
    """The archived messages that a form means, likewise."""
    asked.insist_on_choice()
    archive = asked.queue(service).archive
    if asked.ids:
        return archive.messages(where=archive.table.c.id.in_(asked.ids))
    return archive.messages(**filters_of(asked.fields))


def at_most(
    service: QueueService, asked: Asked, act: Callable[[Mapping[str, Any]], Edited]
) -> Edited:
    """Change messages, but none where more match by now than were confirmed.

    Args:
        service: of the queue.
        asked: what the form says.
        act: changes them; it gets the arguments of an edit, such as its transaction.

    Raises:
        ValueError: more match.
    """
    confirmed = asked["confirmed"]
    if asked.ids or not confirmed.isdecimal():
        return act({})
    core = core_of(asked.queue(service))
    with core.context.connections.transaction() as connection:
        done = act({"connection": connection})
        found = int(done) + done.skipped
        if found > int(confirmed):
            msg = f"There are {messages(found)} by now, and not {confirmed}: nothing was changed."
            raise ValueError(msg)
    core.announce()
    return done


def filters_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The filters of ``messages`` that a form or an address names.

    Raises:
        ValueError: one has no sensible value.
    """
    found: dict[str, Any] = {}
    for name in ("status", "key", "kind"):
        if fields.get(name):
            found[name] = fields[name]
    if fields.get("value") and not fields.get("field"):
        msg = "Say which field of the payload has this value."
        raise ValueError(msg)
    if fields.get("field"):
        found["payload"] = {fields["field"]: _value(fields.get("value", ""))}
    return found


def _value(text: str) -> Any:
    # As the command line reads PATH=VALUE: JSON where it is, text otherwise.
    try:
        return json.loads(text)
    except ValueError:
        return text


def _edited(done: Edited, verb: str) -> str:
    text = f"{verb} {messages(int(done))}."
    if done.skipped:
        text += f" {messages(done.skipped).capitalize()} stayed as they were: a consumer has them."
    return text


def described(asked: Asked) -> str:
    """Which messages a form means, for the audit."""
    if asked.ids:
        more = f" and {len(asked.ids) - _TOLD:,} more" if len(asked.ids) > _TOLD else ""
        return f"ids {', '.join(map(str, asked.ids[:_TOLD]))}{more}"
    names = ("status", "key", "kind", "field", "value")
    told = [f"{name}={asked[name]}" for name in names if asked[name]]
    if asked["like"]:
        told.append(f"error as of {asked['like']}")
    return ", ".join(told) or ("all" if asked["all"] else "")


def messages(count: int) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{count:,} message{'' if count == 1 else 's'}"


# -- queues


def _pause(service: QueueService, asked: Asked) -> Done:
    asked.queue(service).pause()
    return Done(f"Paused {asked['queue']}.", undo=("resume", {"queue": asked["queue"]}))


def _resume(service: QueueService, asked: Asked) -> Done:
    asked.queue(service).resume()
    return Done(f"Resumed {asked['queue']}.", undo=("pause", {"queue": asked["queue"]}))


def _purge(service: QueueService, asked: Asked) -> Done:
    count = asked.queue(service).purge()
    return Done(f"Removed {messages(count)} of {asked['queue']}.", count)


def _drop(service: QueueService, asked: Asked) -> Done:
    dropped = service.drop_queue(asked["queue"])
    text = f"Dropped {asked['queue']}." if dropped else f"There was no queue {asked['queue']}."
    return Done(text)


def _change_settings(service: QueueService, asked: Asked) -> Done:
    present = asked.queue(service).settings
    given: dict[str, Any] = {}
    if asked["lease"] and (lease := _seconds(asked["lease"])) != present.lease:
        given["lease"] = lease
    if asked["max_attempts"]:
        given["max_attempts"] = int(asked["max_attempts"])
    if asked["archive"]:
        given["archive"] = asked["archive"]
    changed = [name for name, value in given.items() if getattr(present, name) != value]
    if not changed:
        return Done("The settings are as they were.")
    service.create_queue(asked["queue"], **{name: given[name] for name in changed})
    before = {name: _form_value(getattr(present, name)) for name in changed}
    said = ", ".join(f"{name} {_form_value(given[name])}" for name in changed)
    undo = {"queue": asked["queue"], **before}
    return Done(f"Changed {asked['queue']}: {said}.", undo=("settings", undo))


def _seconds(text: str) -> timedelta:
    try:
        return to_timedelta(float(text), "lease")
    except ValueError as error:
        msg = f"The lease must be a number of seconds above zero, not {text[:40]!r}."
        raise ValueError(msg) from error


def _form_value(value: Any) -> str:
    return f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value)


# -- live messages


def _hold(service: QueueService, asked: Asked) -> Done:
    ready = _chosen_that_are(service, asked, Status.READY)
    found = live_of(service, asked)
    done = at_most(service, asked, lambda how: found.hold(**how))
    # What waits for a retry would be due at once where that is undone.
    undo = _undo("unhold", asked, ready) if len(ready) == int(done) else None
    return Done(_edited(done, "Held"), int(done), undo)


def _unhold(service: QueueService, asked: Asked) -> Done:
    held = _chosen_that_are(service, asked, Status.HELD)
    found = live_of(service, asked)
    done = at_most(service, asked, lambda how: found.unhold(**how))
    undo = _undo("hold", asked, held) if len(held) == int(done) else None
    return Done(_edited(done, "Released from hold"), int(done), undo)


def _chosen_that_are(service: QueueService, asked: Asked, status: Status) -> list[int]:
    if not asked.ids:
        return []
    queue = asked.queue(service)
    key = queue.table.c.id
    found = queue.messages(status=status.value, where=key.in_(asked.ids))
    return [row.id for row in rows_of(found, [key], limit=len(asked.ids))]


def _undo(action: str, asked: Asked, ids: Sequence[int]) -> tuple[str, dict[str, str]] | None:
    return (action, {"queue": asked["queue"], "ids": ",".join(map(str, ids))}) if ids else None


def _to_front(service: QueueService, asked: Asked) -> Done:
    found = live_of(service, asked)
    done = at_most(service, asked, lambda how: found.prioritize(front=True, **how))
    return Done(_edited(done, "Moved to the front"), int(done))


def _due_now(service: QueueService, asked: Asked) -> Done:
    found = live_of(service, asked)
    done = at_most(service, asked, lambda how: found.reschedule(delay=0, **how))
    return Done(_edited(done, "Made due"), int(done))


def _remove(service: QueueService, asked: Asked) -> Done:
    found = live_of(service, asked)
    done = at_most(service, asked, lambda how: found.remove(**how))
    return Done(_edited(done, "Removed"), int(done))


def _cancel(service: QueueService, asked: Asked) -> Done:
    queue = asked.queue(service)
    ended = sum(map(queue.cancel, asked.ids))
    return Done(f"Cancelled {messages(ended)}.", ended)


# -- archived messages


def _redrive(service: QueueService, asked: Asked) -> Done:
    sent = 0

    def note(count: int) -> None:
        nonlocal sent
        sent = before + count

    try:
        for selection in _archived(service, asked):
            before = sent
            selection.requeue(progress=note)
    except QueueError as error:
        if not sent:
            raise
        # The audit is to have those that were sent.
        return Done(f"Sent {messages(sent)} again, but not all: {problem_of(error).text}", sent)
    return Done(f"Sent {messages(sent)} again.", sent)


def _remove_archived(service: QueueService, asked: Asked) -> Done:
    removed = 0
    for found in _archived(service, asked):
        removed += at_most(service, asked, lambda how: found.remove(**how))  # noqa: B023 - at once
    return Done(f"Removed {messages(removed)} from the archive.", removed)


def _archived(service: QueueService, asked: Asked) -> Iterator[ArchiveSelection]:
    if not asked["like"]:
        yield archive_of(service, asked)
        return
    archive = asked.queue(service).archive
    ids = _ids_alike(service, asked)
    for start in range(0, len(ids), _BATCH):
        yield archive.messages(where=archive.table.c.id.in_(ids[start : start + _BATCH]))


def _ids_alike(service: QueueService, asked: Asked) -> list[int]:
    like = asked["like"]
    groups = error_groups(asked.queue(service))
    return next((each.ids for each in groups if like in map(str, each.ids)), [])


def _count_archived(service: QueueService, asked: Asked) -> int:
    if asked["like"]:
        return len(_ids_alike(service, asked))
    return archive_of(service, asked).count()


def _count_live(service: QueueService, asked: Asked) -> int:
    return live_of(service, asked).count()


def _count_unclaimed(service: QueueService, asked: Asked) -> int:
    queue = asked.queue(service)
    return sum(queue.messages(status=each).count() for each in ("ready", "delayed", "held"))


# -- consumers and schedules


def _release_consumer(service: QueueService, asked: Asked) -> Done:
    count = service.release_consumer(asked["consumer"])
    return Done(f"Gave back {messages(count)} of {asked['consumer']}.", count)


def _pause_schedule(service: QueueService, asked: Asked) -> Done:
    service.schedules.pause(asked["schedule"])
    undo = ("resume-schedule", {"schedule": asked["schedule"]})
    return Done(f"Paused the schedule {asked['schedule']}.", undo=undo)


def _resume_schedule(service: QueueService, asked: Asked) -> Done:
    service.schedules.resume(asked["schedule"])
    undo = ("pause-schedule", {"schedule": asked["schedule"]})
    return Done(f"Resumed the schedule {asked['schedule']}.", undo=undo)


ACTIONS: Final[Mapping[str, Action]] = {
    "pause": Action("Pause", Role.OPERATOR, _pause),
    "resume": Action("Resume", Role.OPERATOR, _resume),
    "settings": Action("Change", Role.ADMIN, _change_settings),
    "purge": Action(
        "Purge",
        Role.ADMIN,
        _purge,
        "Remove {n} from {queue} for ever? Claimed messages stay.",
        _count_unclaimed,
    ),
    "drop": Action(
        "Drop", Role.ADMIN, _drop, "Drop {queue} with all its messages and its archive?",
        word="queue",
    ),
    "hold": Action(
        "Hold", Role.OPERATOR, _hold, "Hold {n}? Nobody gets them until they are released.",
        _count_live, asks_for_all=True,
    ),
    "unhold": Action(
        "Release from hold", Role.OPERATOR, _unhold, "Release {n} from hold?",
        _count_live, asks_for_all=True,
    ),
    "front": Action(
        "Move to the front", Role.OPERATOR, _to_front,
        "Move {n} before all others of their priority?", _count_live,
    ),
    "due": Action("Make due now", Role.OPERATOR, _due_now, "Make {n} due now?", _count_live),
    "remove": Action("Remove", Role.OPERATOR, _remove, "Remove {n} for ever?", _count_live),
    "cancel": Action(
        "Cancel", Role.OPERATOR, _cancel,
        "Cancel {n}? They become dead letters, also where a consumer works on them.", _count_live,
    ),
    "redrive": Action(
        "Send again", Role.OPERATOR, _redrive,
        "Send {n} again? They get new ids, and their attempts begin anew.", _count_archived,
    ),
    "remove-archived": Action(
        "Remove", Role.OPERATOR, _remove_archived, "Remove {n} from the archive for ever?",
        _count_archived,
    ),
    "release-consumer": Action(
        "Give back", Role.OPERATOR, _release_consumer,
        "Give back all messages that this consumer holds? It can no longer settle them.",
    ),
    "pause-schedule": Action("Pause", Role.OPERATOR, _pause_schedule),
    "resume-schedule": Action("Resume", Role.OPERATOR, _resume_schedule),
}  # fmt: skip
"""All that a page can do, by the names in their addresses."""
