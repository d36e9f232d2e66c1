"""The declaration of an operation: its verb, who may use it, and how each interface offers it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from queue_over_sql.errors import QueueNotFound, ScheduleNotFound, TopicNotFound

if TYPE_CHECKING:
    from queue_over_sql import ArchiveSelection, EditResult, LiveSelection, QueueService
    from queue_over_sql.values.states import LiveStatus

Thing: TypeAlias = Literal["queue", "topic", "schedule", "consumer", "token"]

_MISSING = {"queue": QueueNotFound, "topic": TopicNotFound, "schedule": ScheduleNotFound}


class Role(enum.StrEnum):
    """What a user may do; each role includes those before it, but a viewer cannot publish."""

    PUBLISHER = "publisher"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, wanted: Role) -> bool:
        """Whether this role includes ``wanted``."""
        order = list(Role)
        if self is Role.VIEWER:
            return wanted is Role.VIEWER
        return order.index(self) >= order.index(wanted)


@dataclasses.dataclass(frozen=True)
class Without:
    """Why an interface does not offer an operation."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that only needs a name, and perhaps a confirmation.

    Attributes:
        name: its words, such as ``schedule pause``.
        help: the text of ``--help``.
        done: the report. ``{name}`` is the name, ``{n}`` the number of messages.
        record: the further fields of ``--json``.
        count: the field of ``--json`` for the number of messages.
        question: asked before it, without ``--yes``.
    """

    name: str
    help: str
    done: str
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    count: str | None = None
    question: str | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """A command with options of its own, which declares them itself.

    Attributes:
        name: its words, such as ``archive remove``.
    """

    name: str


@dataclasses.dataclass(frozen=True)
class EditOption:
    """An option of the command ``edit``, which takes exactly one of them.

    Attributes:
        name: its name without the dashes before it, and ``_`` for those inside.
        help: its text in ``--help``.
        verb: how the question begins, such as ``Move``.
        past: how the report begins, such as ``Moved``.
        how: what follows the messages in both; ``{value}`` is the value of the option.
        given: the arguments of the verb if it is a flag. Otherwise its value is the argument of
            that name.
        status: the only status that it can change.
    """

    name: str
    help: str
    verb: str
    past: str
    how: str = ""
    given: Mapping[str, Any] | None = None
    status: str | None = None


@dataclasses.dataclass(frozen=True)
class Http:
    """An operation of the HTTP API.

    Attributes:
        id: its name in the document.
        method: of the request.
        path: with its parameters in braces.
        text: its description; the first paragraph is the summary.
        status: of a successful answer.
        problems: the statuses of its own errors, besides the common ones.
    """

    id: str
    method: str
    path: str
    text: str
    status: int = 204
    problems: tuple[int, ...] = (404,)


@dataclasses.dataclass(frozen=True)
class Button:
    """A button of the dashboard.

    Attributes:
        name: in its address.
        title: its text.
        report: with ``{n}`` for the messages and the names of form fields.
        question: asked before it, with the same names; None if it can be undone.
        counts: which messages are counted for the question.
        word: the form field whose value the user must type to confirm.
        asks_for_all: whether to ask only if no messages were chosen.
        danger: whether it removes something permanently.
        undo: the button that undoes it.
        undo_for: it can be undone if all the changed messages had this status.
        given: the arguments of the verb.
    """

    name: str
    title: str
    report: str
    question: str | None = None
    counts: Literal["live", "archived", "unclaimed"] | None = None
    word: str | None = None
    asks_for_all: bool = False
    danger: bool = False
    undo: str | None = None
    undo_for: LiveStatus | None = None
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class OperatorVerb:
    """One thing that operators do.

    Its arguments are those of its verb in the library, except ``connection`` and ``progress``.

    Attributes:
        name: in the audit.
        role: who may do it over HTTP. On the command line the database login decides.
        verb: the method that does it, such as ``Queue.pause``.
        commands: how the command line offers it.
        http: how the HTTP API offers it.
        buttons: how the dashboard offers it.
        of: what its name or its queue is the name of.
    """

    name: str
    role: Role
    verb: str
    commands: tuple[Command | Options | EditOption, ...] | Without
    http: Http | Without
    buttons: tuple[Button, ...] | Without
    of: Thing = "queue"

    @property
    def owner(self) -> str:
        """The class of its verb."""
        return self.verb.partition(".")[0]

    def run(self, service: QueueService, name: str, /, **arguments: Any) -> Any:
        """Do it with the queue, topic, schedule or consumer of this name.

        If it is one on a group, ``group`` says which of the queue.

        Returns:
            What its verb returns.

        Raises:
            QueueNotFound, TopicNotFound, ScheduleNotFound: there is none of that name.
            QueueError, ValueError: as its verb.
        """
        method = self.verb.partition(".")[2]
        if self.owner == "Queue":
            done = getattr(service.queue(name), method)(**arguments)
        elif self.owner == "Group":
            group = service.queue(name).groups[arguments.pop("group")]
            done = getattr(group, method)(**arguments)
        elif self.owner == "Topic":
            done = getattr(service.topic(name), method)(**arguments)
        else:
            owner = service.schedules if self.owner == "Schedules" else service
            done = getattr(owner, method)(name, **arguments)
        if done is False and self.of in _MISSING:
            raise _MISSING[self.of](name)
        return done

    def edit(self, selection: LiveSelection | ArchiveSelection, /, **arguments: Any) -> EditResult:
        """Do it with the messages of a selection."""
        done: EditResult = getattr(selection, self.verb.partition(".")[2])(**arguments)
        return done
