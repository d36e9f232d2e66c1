"""Actions: the buttons of the pages, with their acts, their questions, and how to undo them.

The page asks before an action that cannot be undone, and shows the number of messages. Other
actions can be undone on the next page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from queue_over_sql.queues.selection import rows_of
from queue_over_sql.values.checks import check_choice
from queue_over_sql.values.durations import to_timedelta
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_text import json_or_text
from queue_over_sql.values.states import Status
from queue_over_sql.web.acts import ACTS, Chosen, Done
from queue_over_sql.web.looks import requeued_soon
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService

NO_SUCH_MESSAGE: Final = "There is no such message. It may have been removed."

Do: TypeAlias = Callable[..., Done]
"""Does an act, by its name in ``ACTS`` and its arguments, for the caller, on the form's queue."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """The content of a form.

    Attributes:
        fields: its fields, each with one value.
        ids: the chosen messages. Without any, the action is for all matching messages, but only if
            the field ``all`` is set.
    """

    fields: Mapping[str, str]
    ids: Sequence[int] = ()

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")

    def queue(self, service: QueueService) -> Queue:
        """The queue of the form."""
        return service.queue(self["queue"])

    @property
    def confirmed(self) -> int | None:
        """How many messages the user confirmed; None if there was no question."""
        given = self["confirmed"]
        return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else None  # noqa: PLR2004 - digits of a BIGINT

    def chosen(self) -> Chosen:
        """The messages of the action.

        Raises:
            ValueError: neither messages nor all of them were chosen.
        """
        if self.ids:
            return Chosen(self.ids)
        if self["like"]:
            return Chosen(like=int(self["like"]), at_most=self.confirmed)
        if not self["all"]:
            msg = "Choose at least one message: tick the boxes before them. Nothing was changed."
            raise ValueError(msg)
        return Chosen(filters=filters_of(self.fields), at_most=self.confirmed)


@dataclasses.dataclass(frozen=True)
class Told:
    """The result of an action, to show to the user.

    Attributes:
        text: a sentence for the page.
        undo: name and fields of the action that undoes it.
        secret: shown only this once; it goes into no cookie.
        message: the queue and the id of a message to link to.
    """

    text: str
    undo: tuple[str, dict[str, str]] | None = None
    secret: str | None = None
    message: tuple[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class Action:
    """An action of a page.

    Attributes:
        title: the text of its button.
        act: the name of its act in ``ACTS``.
        run: does the act.
        question: the question before it, with ``{n}`` for the number and the names of form fields;
            None if it can be undone.
        count: counts the messages; None if the number does not matter.
        word: the field of ``Asked`` whose value the user must type.
        asks_for_all: whether to ask only if no messages were chosen.
        danger: whether it removes something permanently.
    """

    title: str
    act: str
    run: Callable[[QueueService, Asked, Do], Told]
    question: str | None = None
    count: Callable[[QueueService, Asked], int] | None = None
    word: str | None = None
    asks_for_all: bool = False
    danger: bool = False

    @property
    def role(self) -> Role:
        """The role that it needs."""
        return ACTS[self.act].role

    def asks(self, asked: Asked) -> bool:
        """Whether to ask before it."""
        return self.question is not None and not (self.asks_for_all and asked.ids)

    def is_confirmed(self, asked: Asked) -> bool:
        """Whether the user confirmed it, with the number and the word that it needs."""
        if self.word is not None and asked["typed"] != asked[self.word]:
            return False
        return bool(asked["confirmed"]) if self.count is None else asked.confirmed is not None


def filters_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The filters of ``messages`` in the fields of a form or an address.

    Raises:
        ValueError: one is invalid.
    """
    found: dict[str, Any] = {}
    for name in ("status", "key", "kind"):
        if fields.get(name):
            found[name] = fields[name]
    if fields.get("value") and not fields.get("field"):
        msg = "Enter the payload field that has this value."
        raise ValueError(msg)
    if fields.get("field"):
        found["payload"] = {fields["field"]: json_or_text(fields.get("value", ""))}
    return found


def _edited(done: Done, verb: str, end: str = "") -> str:
    text = f"{verb} {_messages(done.count)}{end}."
    if done.skipped:
        left = _messages(done.skipped).capitalize()
        text += f" {left} stayed unchanged, because a consumer holds them."
    elif not done.count:
        msg = "Nothing was changed: the message is gone, or there was nothing to change."
        raise ValueError(msg)
    return text


def _messages(count: int | None) -> str:
    return counted(count or 0, "message")


# -- queues


def _pause(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    do("pause")
    return Told(f"Paused {asked['queue']}.", ("resume", {"queue": asked["queue"]}))


def _resume(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    do("resume")
    return Told(f"Resumed {asked['queue']}.", ("pause", {"queue": asked["queue"]}))


def _purge(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    done = do("purge", at_most=asked.confirmed)
    return Told(f"Removed {_messages(done.count)} of {asked['queue']}.")


def _drop(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    do("drop")
    return Told(f"Dropped {asked['queue']}.")


def _change_settings(service: QueueService, asked: Asked, do: Do) -> Told:
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
        return Told("The settings have not changed.")
    do("settings", **{name: given[name] for name in changed})
    before = {name: _form_value(getattr(present, name)) for name in changed}
    said = ", ".join(f"{name} {_form_value(given[name])}" for name in changed)
    undo = {"queue": asked["queue"], **before}
    return Told(f"Changed {asked['queue']}: {said}.", ("settings", undo))


def _seconds(text: str) -> timedelta:
    try:
        return to_timedelta(float(text), "lease")
    except ValueError as error:
        msg = f"The lease must be a number of seconds above zero, not {text[:40]!r}."
        raise ValueError(msg) from error


def _form_value(value: Any) -> str:
    return f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value)


# -- messages


def _hold(service: QueueService, asked: Asked, do: Do) -> Told:
    ready = _chosen_that_are(service, asked, Status.READY)
    done = do("hold", chosen=asked.chosen())
    # Undoing this for a message that waits for a retry would make it due at once.
    undo = _undo("unhold", asked, ready) if len(ready) == done.count else None
    return Told(_edited(done, "Held"), undo)


def _unhold(service: QueueService, asked: Asked, do: Do) -> Told:
    held = _chosen_that_are(service, asked, Status.HELD)
    done = do("unhold", chosen=asked.chosen())
    undo = _undo("hold", asked, held) if len(held) == done.count else None
    return Told(_edited(done, "Released from hold"), undo)


def _chosen_that_are(service: QueueService, asked: Asked, status: Status) -> list[int]:
    if not asked.ids:
        return []
    queue = asked.queue(service)
    key = queue.table.c.id
    found = queue.messages(status=status.value, where=key.in_(asked.ids))
    return [row.id for row in rows_of(found, [key], limit=len(asked.ids))]


def _undo(action: str, asked: Asked, ids: Sequence[int]) -> tuple[str, dict[str, str]] | None:
    return (action, {"queue": asked["queue"], "ids": ",".join(map(str, ids))}) if ids else None


def _edit(
    act: str, verb: str, end: str = "", **options: Any
) -> Callable[[QueueService, Asked, Do], Told]:
    def run(service: QueueService, asked: Asked, do: Do) -> Told:
        del service
        return Told(_edited(do(act, chosen=asked.chosen(), **options), verb, end))

    return run


def _cancel(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    return Told(_edited(do("cancel", ids=asked.ids), "Cancelled"))


def _redrive(service: QueueService, asked: Asked, do: Do) -> Told:
    text = _edited(do("requeue", chosen=asked.chosen()), "Requeued")
    if len(asked.ids) != 1:
        return Told(text)
    anew = requeued_soon(service, asked.queue(service), asked.ids[0])
    return Told(text, message=None if anew is None else (asked["queue"], anew))


def _count_live(service: QueueService, asked: Asked) -> int:
    return sum(each.count() for each in asked.chosen().live(asked.queue(service)))


def _count_archived(service: QueueService, asked: Asked) -> int:
    return sum(each.count() for each in asked.chosen().archived(asked.queue(service)))


def _count_unclaimed(service: QueueService, asked: Asked) -> int:
    queue = asked.queue(service)
    return sum(queue.messages(status=each).count() for each in ("ready", "delayed", "held"))


# -- consumers, schedules and tokens


def _release_consumer(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    done = do("release-consumer", consumer=asked["consumer"])
    return Told(f"Released {_messages(done.count)} of {asked['consumer']}.")


def _pause_schedule(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    do("pause-schedule", schedule=asked["schedule"])
    undo = ("resume-schedule", {"schedule": asked["schedule"]})
    return Told(f"Paused the schedule {asked['schedule']}.", undo)


def _resume_schedule(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    do("resume-schedule", schedule=asked["schedule"])
    undo = ("pause-schedule", {"schedule": asked["schedule"]})
    return Told(f"Resumed the schedule {asked['schedule']}.", undo)


def _run_schedule(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    published = do("run-schedule", schedule=asked["schedule"]).value
    return Told(f"The schedule {asked['schedule']} published message {published.id}.")


def _add_token(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    check_choice("role", asked["role"], [role.value for role in Role])
    role, lasts = Role(asked["role"]), _days(asked["days"]) if asked["days"] else None
    secret, token = do("add-token", token=asked["token"], role=role, lasts=lasts).value
    return Told(f"The token of {token.name}, {token.role}.", secret=secret)


def _days(text: str) -> timedelta:
    try:
        return to_timedelta(float(text) * 86_400, "days")
    except (ValueError, OverflowError) as error:
        msg = f"Enter a number of days above zero, or none, not {text[:40]!r}."
        raise ValueError(msg) from error


def _remove_token(service: QueueService, asked: Asked, do: Do) -> Told:
    del service
    do("remove-token", token=asked["token"])
    return Told(f"Removed the token of {asked['token']}.")


ACTIONS: Final[Mapping[str, Action]] = {
    "pause": Action("Pause", "pause", _pause),
    "resume": Action("Resume", "resume", _resume),
    "settings": Action("Change", "settings", _change_settings),
    "purge": Action(
        "Purge", "purge", _purge, "Permanently remove {n} from {queue}? Claimed messages stay.",
        _count_unclaimed,
        danger=True,
    ),
    "drop": Action(
        "Drop", "drop", _drop, "Drop {queue} with all its messages and its archive?",
        word="queue", danger=True,
    ),
    "hold": Action(
        "Hold", "hold", _hold,
        "Hold {n}? A held message is not delivered until you release it from hold.",
        _count_live, asks_for_all=True,
    ),
    "unhold": Action(
        "Release from hold", "unhold", _unhold, "Release {n} from hold?",
        _count_live, asks_for_all=True,
    ),
    "front": Action(
        "Move to the front", "prioritize", _edit("prioritize", "Moved to the front", front=True),
        "Move {n} before all others of their priority?", _count_live,
    ),
    "due": Action(
        "Make due now", "reschedule", _edit("reschedule", "Made due", delay=0),
        "Make {n} due now?", _count_live,
    ),
    "remove": Action(
        "Remove", "remove", _edit("remove", "Removed"), "Permanently remove {n}?", _count_live,
        danger=True,
    ),
    "cancel": Action(
        "Cancel", "cancel", _cancel,
        "Cancel {n}? A cancelled message becomes a dead letter, even if a consumer works on it.",
        _count_live,
        danger=True,
    ),
    "redrive": Action(
        "Requeue", "requeue", _redrive,
        "Requeue {n}? A requeued message gets a new id, and its attempts start again.",
        _count_archived,
    ),
    "remove-archived": Action(
        "Remove", "remove-archived", _edit("remove-archived", "Removed", " from the archive"),
        "Permanently remove {n} from the archive?", _count_archived,
        danger=True,
    ),
    "release-consumer": Action(
        "Release", "release-consumer", _release_consumer,
        "Release all messages that this consumer holds? It can then no longer settle them.",
        danger=True,
    ),
    "pause-schedule": Action("Pause", "pause-schedule", _pause_schedule),
    "resume-schedule": Action("Resume", "resume-schedule", _resume_schedule),
    "run-schedule": Action(
        "Run now", "run-schedule", _run_schedule,
        "Publish one message of {schedule} now? Its next times stay as they are.",
    ),
    "add-token": Action("Add", "add-token", _add_token),
    "remove-token": Action(
        "Remove", "remove-token", _remove_token,
        "Remove the token of {token}? It and the sessions that it opened end within a second.",
        danger=True,
    ),
}  # fmt: skip
"""All actions of pages, by the names in their addresses."""
