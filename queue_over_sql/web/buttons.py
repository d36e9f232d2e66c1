"""Buttons: how the forms of the dashboard run operations, and what they say before and after.

The page asks before an operation that cannot be undone, and shows the number of messages. Others
can be undone on the next page.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from queue_over_sql import inside
from queue_over_sql.management.operation import Button, OperatorVerb, Role
from queue_over_sql.management.operations import OPERATIONS
from queue_over_sql.values.checks import check_choice
from queue_over_sql.values.durations import duration_text, parse_seconds, to_timedelta
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_text import json_or_text
from queue_over_sql.web.changes import Choice, Result, check_fingerprint
from queue_over_sql.web.humanize import exact_seconds
from queue_over_sql.web.masking import Mask
from queue_over_sql.web.shown_messages import edited_payload, left_out, message_of, requeued_soon

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.values.states import LiveStatus

NO_SUCH_MESSAGE: Final = "There is no such message. It may have been removed."

_AGES: Final = ("warn_age", "critical_age")
_NAMED: Final = ("queue", "group", "schedule", "consumer", "token", "role")

Run: TypeAlias = Callable[..., Result]
"""Runs the operation of the form for the caller, with its arguments."""


@dataclasses.dataclass(frozen=True)
class Form:
    """The content of a form.

    Attributes:
        fields: its fields, each with one value.
        ids: the chosen messages. Without any, the operation is for all matching messages, but only
            if the field ``all`` is set.
        mask: sealed the fingerprint of an error.
    """

    fields: Mapping[str, str]
    ids: Sequence[int] = ()
    mask: Mask = dataclasses.field(default_factory=lambda: Mask(()))

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")

    def entered(self, *names: str) -> list[str]:
        """Those of the fields that the form has, and that the user changed.

        ``was_NAME`` is what the page showed. Somebody else may have changed the rest since then.
        """
        return [
            name
            for name in names
            if name in self.fields and self[name] != self.fields.get(f"was_{name}")
        ]

    def queue(self, service: QueueService) -> Queue:
        """The queue of the form."""
        return service.queue(self["queue"])

    @property
    def confirmed(self) -> int | None:
        """How many messages the user confirmed; None if there was no question."""
        given = self["confirmed"]
        return int(given) if given.isascii() and given.isdecimal() and len(given) < 20 else None  # noqa: PLR2004 - digits of a BIGINT

    def choice(self) -> Choice:
        """The messages of the operation.

        Raises:
            ValueError: neither messages nor all of them were chosen.
        """
        if self.ids:
            return Choice(self.ids)
        if self["error"]:
            error = self.mask.opened(check_fingerprint(self["error"]))
            return Choice(error=error, at_most=self.confirmed)
        if not self["all"]:
            msg = "Choose at least one message: tick the boxes before them. Nothing was changed."
            raise ValueError(msg)
        return choice_of(self.fields, self.confirmed)


@dataclasses.dataclass(frozen=True)
class Notice:
    """The result of a form, to show to the user.

    Attributes:
        text: a sentence for the page.
        undo: name and fields of the button that undoes it.
        secret: shown only this once; it goes into no cookie.
        message: the queue and the id of a message to link to.
        leads: the words before that link.
    """

    text: str
    undo: tuple[str, dict[str, str]] | None = None
    secret: str | None = None
    message: tuple[str, int] | None = None
    leads: str = "It is now"


def choice_of(fields: Mapping[str, str], at_most: int | None = None) -> Choice:
    """The choice of messages by the filters in the fields of a form or an address.

    Raises:
        ValueError: one is invalid.
    """
    found: dict[str, Any] = {}
    for name in ("status", "key", "kind", "group"):
        if fields.get(name):
            found[name] = fields[name]
    if fields.get("value") and not fields.get("field"):
        msg = "Enter the payload field that has this value."
        raise ValueError(msg)
    if fields.get("field"):
        found["payload"] = {fields["field"]: json_or_text(fields.get("value", ""))}
    if fields.get("is") and not fields.get("column"):
        msg = "Choose the column that has this value."
        raise ValueError(msg)
    columns = {fields["column"]: fields.get("is", "")} if fields.get("column") else {}
    return Choice(filters=found, columns=columns, at_most=at_most)


def hides(mask: Mask, fields: Mapping[str, str]) -> bool:
    """Whether the filters of a form or an address ask for what the mask hides."""
    of_payload = fields.get("field", ""), json_or_text(fields.get("value", ""))
    return mask.hides(*of_payload) or mask.hides(fields.get("column", ""), fields.get("is", ""))


BUTTONS: Final[Mapping[str, tuple[OperatorVerb, Button]]] = {
    button.name: (operation, button)
    for operation in OPERATIONS.values()
    if isinstance(operation.buttons, tuple)
    for button in operation.buttons
}
"""All buttons and what they do, by the names in their addresses."""


def asks(button: Button, form: Form) -> bool:
    """Whether to ask before it."""
    return button.question is not None and not (button.asks_for_all and form.ids)


def is_confirmed(button: Button, form: Form) -> bool:
    """Whether the user confirmed it, with the number and the word that it needs."""
    if button.word is not None and form["typed"] != form[button.word]:
        return False
    return bool(form["confirmed"]) if button.counts is None else form.confirmed is not None


def count(button: Button, service: QueueService, form: Form) -> int | None:
    """How many messages it would change; None if the number does not matter."""
    if button.counts is None:
        return None
    queue = form.queue(service)
    if button.counts == "unclaimed":
        return sum(queue.messages(status=each).count() for each in ("ready", "delayed", "held"))
    choice = form.choice()
    found = choice.live(queue) if button.counts == "live" else choice.archived(queue)
    return sum(each.count() for each in found)


def press(name: str, service: QueueService, form: Form, run: Run) -> Notice:
    """Do what a button does, for a caller who may do it and has confirmed it.

    Raises:
        TooManyFound, QueueError, ValueError: as the operation.
    """
    operation, button = BUTTONS[name]
    undo: tuple[str, dict[str, str]] | None = None
    if name in _OWN:
        return _OWN[name](service, form, run)
    if button.counts == "unclaimed":
        return Notice(_report(button, form, run(at_most=form.confirmed)))
    if button.counts is None:
        done = run(**button.given)
        if button.undo is not None:
            undo = button.undo, {operation.of: form[operation.of]}
        return Notice(_report(button, form, done), undo)
    before = _those_that_are(button.undo_for, service, form) if button.undo_for else []
    choice = form.choice()
    done = run(choice=choice, **button.given)
    if button.undo is not None and before and len(before) == done.count:
        undo = button.undo, {"queue": form["queue"], "ids": ",".join(map(str, before))}
    return Notice(_told_of_messages(button, form, done) + _of_others(service, form, choice), undo)


def _report(button: Button, form: Form, done: Result, **more: object) -> str:
    named = {name: form[name] for name in _NAMED}
    return button.report.format(n=counted(done.count or 0, "message"), **named, **more)


def _told_of_messages(button: Button, form: Form, done: Result, **more: object) -> str:
    text = _report(button, form, done, **more)
    if done.skipped:
        left = counted(done.skipped, "message").capitalize()
        text += f" {left} stayed unchanged, because a consumer holds them."
    elif not done.count:
        msg = "Nothing was changed: the message is gone, or there was nothing to change."
        raise ValueError(msg)
    return text


def _of_others(service: QueueService, form: Form, choice: Choice) -> str:
    # Dead letters that have the error, but are not known to have it.
    others = None if choice.error is None else left_out(form.queue(service))
    return "" if others is None else f" {others}"


def _those_that_are(status: LiveStatus, service: QueueService, form: Form) -> list[int]:
    if not form.ids:
        return []
    queue = form.queue(service)
    key = queue.table.c.id
    found = queue.messages(status=status, where=key.in_(form.ids))
    return [row.id for row in inside.rows(found, [key], limit=len(form.ids))]


def _requeue(service: QueueService, form: Form, run: Run) -> Notice:
    choice = form.choice()
    text = _told_of_messages(BUTTONS["redrive"][1], form, run(choice=choice))
    text += _of_others(service, form, choice)
    if len(form.ids) != 1:
        return Notice(text)
    anew = requeued_soon(service, form.queue(service), form.ids[0])
    return Notice(text, message=None if anew is None else (form["queue"], anew))


def _requeue_edited(service: QueueService, form: Form, run: Run) -> Notice:
    queue = form.queue(service)
    found = message_of(queue, form.ids[0]) if len(form.ids) == 1 else None
    if found is None:
        raise ValueError(NO_SUCH_MESSAGE)
    payload = edited_payload(queue, found.kind, form["payload"])
    done = run(choice=form.choice(), payload=payload)
    anew = requeued_soon(service, queue, form.ids[0])
    text = _told_of_messages(BUTTONS["edit"][1], form, done)
    return Notice(text, message=None if anew is None else (form["queue"], anew))


def _delay(service: QueueService, form: Form, run: Run) -> Notice:
    was_due = bool(form.ids) and len(_those_that_are("ready", service, form)) == len(form.ids)
    try:
        seconds = to_timedelta(parse_seconds(form["delay"].strip()), "delay", zero=True)
    except (ValueError, OverflowError) as error:
        msg = f"Enter a delay such as 90s, 10m or 1h30m, not {form['delay'][:40]!r}."
        raise ValueError(msg) from error
    done = run(choice=form.choice(), delay=seconds.total_seconds())
    told = duration_text(seconds.total_seconds())
    text = _told_of_messages(BUTTONS["delay"][1], form, done, delay=told)
    # What was due later must not be due at once.
    return Notice(text, ("due", _chosen_of(form)) if was_due else None)


def _allow_attempts(service: QueueService, form: Form, run: Run) -> Notice:
    before = message_of(form.queue(service), form.ids[0]) if len(form.ids) == 1 else None
    most = _number("number of attempts", form["max_attempts"].strip())
    if most is None:
        msg = "Enter how many attempts the message may have in all."
        raise ValueError(msg)
    done = run(choice=form.choice(), max_attempts=most)
    text = _told_of_messages(BUTTONS["max-attempts"][1], form, done, max_attempts=most)
    if before is None:
        return Notice(text)
    former = {"max_attempts": str(before.max_attempts)}
    return Notice(text, ("max-attempts", _chosen_of(form) | former))


def _chosen_of(form: Form) -> dict[str, str]:
    return {"queue": form["queue"], "ids": ",".join(map(str, form.ids))}


def _change_group(service: QueueService, form: Form, run: Run, *, name: str) -> Notice:
    del service
    button = BUTTONS[name][1]
    done = run(group=form["group"])
    undo = None if button.undo is None else (button.undo, _group_of(form))
    return Notice(_report(button, form, done), undo)


def _configure_group(service: QueueService, form: Form, run: Run) -> Notice:
    before = form.queue(service).groups[form["group"]].info()
    former = {"limit": before.own_limit, "rate": before.own_rate, "weight": before.own_weight}
    given = {
        name: form["rate"].strip() or None if name == "rate" else _number(name, form[name])
        for name in form.entered(*former)
    }
    changed = {name: value for name, value in given.items() if value != former[name]}
    if not changed:
        return Notice(f"The rules of group {form['group']} have not changed.")
    done = run(group=form["group"], **changed)
    usual = {
        "limit": "the limit of the queue",
        "rate": "the rate of the queue",
        "weight": "the weight 1",
    }
    words = [
        usual[name] if value is None else f"the {name} {value}" for name, value in changed.items()
    ]
    text = _report(BUTTONS["configure-group"][1], form, done, rules=" and ".join(words))
    fields = {name: str(former[name] or "") for name in changed}
    return Notice(text, ("configure-group", _group_of(form) | fields))


def _group_of(form: Form) -> dict[str, str]:
    return {"queue": form["queue"], "group": form["group"]}


def _number(name: str, text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and int(text)):
        msg = f"The {name} must be a number above zero, or nothing, not {text[:40]!r}."
        raise ValueError(msg)
    return int(text) if text else None


def _change_settings(service: QueueService, form: Form, run: Run) -> Notice:
    present = form.queue(service).settings
    given: dict[str, Any] = {}
    for name in form.entered("lease", "max_attempts", "archive", *_AGES):
        text = form[name]
        if name in _AGES:
            given[name] = _seconds(text, name) if text else None
        elif text:
            given[name] = _READ[name](text)
    changed = [name for name, value in given.items() if getattr(present, name) != value]
    if not changed:
        return Notice("The settings have not changed.")
    done = run(**{name: given[name] for name in changed})
    settings = ", ".join(f"{name} {_form_value(given[name])}" for name in changed)
    text = _report(BUTTONS["settings"][1], form, done, settings=settings)
    former = {name: getattr(present, name) for name in changed}
    # An empty field says that there is none.
    before = {name: "" if value is None else _form_value(value) for name, value in former.items()}
    return Notice(text, ("settings", {"queue": form["queue"], **before}))


def _seconds(text: str, name: str) -> timedelta:
    try:
        return to_timedelta(float(text), name)
    except (ValueError, OverflowError) as error:
        what = name.replace("_", " ")
        msg = f"The {what} must be a number of seconds above zero, not {text[:40]!r}."
        raise ValueError(msg) from error


def _form_value(value: Any) -> str:
    if value is None:
        return "none"
    return exact_seconds(value) if isinstance(value, timedelta) else str(value)


def _run_schedule(service: QueueService, form: Form, run: Run) -> Notice:
    queue, done = service.schedules.get(form["schedule"]).queue, run()
    text = _report(BUTTONS["run-schedule"][1], form, done)
    return Notice(text, message=(queue, done.value.id), leads="It published")


def _add_token(service: QueueService, form: Form, run: Run) -> Notice:
    del service
    check_choice("role", form["role"], [role.value for role in Role])
    lasts = _days(form["days"]) if form["days"] else None
    queues = form["queues"].replace(",", " ").split()
    done = run(role=Role(form["role"]), lasts=lasts, queues=queues)
    return Notice(_report(BUTTONS["add-token"][1], form, done), secret=done.value[0])


def _remove_token(service: QueueService, form: Form, run: Run) -> Notice:
    del service
    done = run(last_admin=bool(form["last_admin"]))
    return Notice(_report(BUTTONS["remove-token"][1], form, done))


def _days(text: str) -> timedelta:
    try:
        return to_timedelta(float(text) * 86_400, "days")
    except (ValueError, OverflowError) as error:
        msg = f"Enter a number of days above zero, or none, not {text[:40]!r}."
        raise ValueError(msg) from error


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "lease": functools.partial(_seconds, name="lease"),
    "max_attempts": int,
    "archive": str,
}

_OWN: Final[Mapping[str, Callable[[QueueService, Form, Run], Notice]]] = {
    "settings": _change_settings,
    **{
        name: functools.partial(_change_group, name=name)
        for name in ("pause-group", "resume-group", "unblock-group")
    },
    "configure-group": _configure_group,
    "redrive": _requeue,
    "edit": _requeue_edited,
    "delay": _delay,
    "max-attempts": _allow_attempts,
    "run-schedule": _run_schedule,
    "add-token": _add_token,
    "remove-token": _remove_token,
}
"""Buttons whose forms have fields of their own, or whose reports say more."""
