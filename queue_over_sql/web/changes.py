"""Changes over HTTP: each runs an operation, keeps its limit, and writes the audit.

The dashboard and the HTTP API make all changes by ``Changes.make``. A change of messages is one
transaction with its check and its audit row. If more messages match than were confirmed, nothing is
changed. No change is missing in the audit. A requeue of very many messages is several transactions,
each with its audit row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_

from queue_over_sql import UNSET, ArchiveSelection, EditResult, LiveSelection, inside
from queue_over_sql.errors import QueueError, QueueNotFound
from queue_over_sql.management.operation import OperatorVerb, Role
from queue_over_sql.values.checks import check_id
from queue_over_sql.values.durations import duration_text
from queue_over_sql.values.fingerprints import FINGERPRINT_LENGTH, alike
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.web.access import Principal, Refused, insist_on_tables
from queue_over_sql.web.shown_messages import column_is, page_alike

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.web.tables import WebStore

    # Changes the messages of a selection in a transaction; it may report its progress.
    Verb = Callable[[Any, Connection, Callable[[int], None]], EditResult]

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_MARKED: Final = 5_000
"""For so many dead letters a request writes fingerprints, which the reaper has not written yet."""
_ID: Final = re.compile(r"-?[0-9]{1,19}")
_FINGERPRINT: Final = re.compile(rf"[0-9a-f]{{{FINGERPRINT_LENGTH}}}")
_SHOWN: Final = 20
_NOTED_SECONDS: Final = 3600.0
_MOST_NOTED: Final = 10_000
_STEP: Final = 10_000
"""A transaction requeues so many that match: on SQLite nobody else can write meanwhile."""


def message_id(text: str) -> int | None:
    """The id of a message; None if the text is not one. Rows of adopted tables may be negative."""
    with contextlib.suppress(ValueError):
        return check_id("id", int(text)) if _ID.fullmatch(text) else None
    return None


def check_fingerprint(text: str) -> str:
    """Check what should be the fingerprint of an error.

    Raises:
        ValueError: it is none.
    """
    if not _FINGERPRINT.fullmatch(text):
        msg = f"{text[:40]!r} is not an error's fingerprint. Follow a link of the dead letters."
        raise ValueError(msg)
    return text


class TooManyFound(QueueError):
    """More messages match than were confirmed, so none was changed.

    Attributes:
        found: how many match.
    """

    def __init__(self, found: int, at_most: int) -> None:
        super().__init__(
            f"{counted(found, 'message')} match now, more than the {at_most:,} that were "
            "confirmed. Nothing was changed."
        )
        self.found = found


@dataclasses.dataclass(frozen=True)
class Choice:
    """A choice of messages of a queue.

    Attributes:
        ids: their ids; without ids, all matching messages.
        filters: the arguments of ``Queue.messages``.
        error: the fingerprint of an error, to choose all dead letters that have it.
        columns: the values of the queue's own columns, as texts; see ``column_is``.
        at_most: how many may be changed.
        about: the error for people, without the values that it quotes; see ``described``.
    """

    ids: Sequence[int] = ()
    filters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    at_most: int | None = None
    about: str = ""

    def live(self, queue: Queue) -> list[LiveSelection]:
        """The chosen live messages.

        Raises:
            ValueError: ``error`` is for dead letters.
        """
        if self.error is not None:
            msg = "Only dead letters are chosen by their error."
            raise ValueError(msg)
        if self.ids:
            return [queue.messages(where=queue.table.c.id.in_(self.ids))]
        return [self.matching(queue)]

    def archived(self, queue: Queue) -> list[ArchiveSelection]:
        """The chosen archived messages."""
        ids, archive = self.ids, queue.archive
        if not ids:
            return [self.matching_archived(queue, mark=_MARKED)]
        column = archive.table.c.id
        parts = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
        return [archive.messages(where=column.in_(part)) for part in parts]

    def described(self, queue: Queue) -> Choice:
        """The same choice with the text of its error, which is gone after the change.

        While errors are still being read, more messages have it with each moment, so they have no
        limit.
        """
        if self.error is None or self.about:
            return self
        error = page_alike(queue, self.error, limit=1, after=None)[1]
        most = None if inside.errors_left_out(queue) else self.at_most
        # The fingerprint itself would let an operator guess the masked words of its error.
        about = alike(error) or "that no dead letter has"
        return dataclasses.replace(self, about=about, at_most=most)

    def matching(self, queue: Queue) -> LiveSelection:
        """The live messages that the filters find."""
        return queue.messages(**self.filters, where=self._where(queue, queue.table))

    def matching_archived(
        self, queue: Queue, also: ColumnElement[bool] | None = None, *, mark: int = 0
    ) -> ArchiveSelection:
        """The archived messages that the filters find, and that meet one more condition.

        It first writes up to ``mark`` of the fingerprints of errors that are missing.
        """
        archive, more = queue.archive, [] if also is None else [also]
        if self.error is not None:
            fingerprint = check_fingerprint(self.error)
            more.append(inside.having_error(queue, fingerprint, mark=mark))
        return archive.messages(**self.filters, where=self._where(queue, archive.table, *more))

    def _where(
        self, queue: Queue, table: Table, *more: ColumnElement[bool]
    ) -> ColumnElement[bool] | None:
        if not inside.tables(queue).has_payloads and any(
            self.filters.get(name) for name in ("key", "kind", "payload")
        ):
            msg = (
                f"The messages of {queue.name} are rows of your table, without key, kind and "
                "payload: filter by its columns instead."
            )
            raise ValueError(msg)
        named = [column_is(queue, table, name, text) for name, text in self.columns.items()]
        return and_(*named, *more) if named or more else None

    def __str__(self) -> str:
        if self.ids:
            more = f" and {len(self.ids) - _SHOWN:,} more" if len(self.ids) > _SHOWN else ""
            return f"ids {', '.join(map(str, self.ids[:_SHOWN]))}{more}"
        given = {name: value for name, value in self.filters.items() if value not in (None, {})}
        fields = given.pop("payload", {})
        parts = [] if self.error is None else [f"error {self.about}".rstrip()]
        parts += [f"{name}={value}" for name, value in given.items()]
        parts += [f"{path}={json.dumps(value)}" for path, value in fields.items()]
        parts += [f"column {name}={text or 'null'}" for name, text in self.columns.items()]
        return ", ".join(parts) or "all"


@dataclasses.dataclass
class Result:
    """The result of a change.

    Attributes:
        count: how many messages were changed; None if it has no number.
        skipped: matching messages that stayed unchanged, because a consumer holds them.
        detail: details for the audit.
        value: what the verb of the library returned.
    """

    count: int | None = None
    skipped: int = 0
    detail: str | None = None
    value: Any = None


class Change:
    """A change in progress.

    Attributes:
        service: the queues.
        store: the tables of tokens and of the audit.
        who: the caller.
        what: its name in the audit.
        name: of the queue or other thing that it changes.
        on_queue: whether this is a queue.
        count: how many messages have been changed so far.
        is_audited: whether its audit row was written together with the change.
    """

    def __init__(
        self,
        service: QueueService,
        store: WebStore,
        who: Principal,
        what: str,
        name: str = "",
        *,
        on_queue: bool = False,
    ) -> None:
        self.service = service
        self.store = store
        self.who = who
        self.what = what
        self.name = name
        self.on_queue = on_queue
        self.count = 0
        self.is_audited = False

    @property
    def queue(self) -> Queue:
        """Its queue."""
        return self.service.queue(self.name)

    def edit(
        self,
        selections: Sequence[LiveSelection | ArchiveSelection],
        verb: Verb,
        choice: Choice,
        *,
        skips: bool = True,
        detail: str = "",
    ) -> Result:
        """Change messages and write the audit row, or do neither.

        Args:
            selections: the messages.
            verb: changes the messages of one selection.
            choice: the choice, with its limit.
            skips: whether messages that consumers hold count towards the limit.
            detail: what the audit has besides the choice.

        Raises:
            TooManyFound: more messages match.
        """
        choice = choice.described(self.queue)
        most, about = choice.at_most, f"{choice}{detail}"

        def check(found: int) -> None:
            if most is not None and found > most:
                raise TooManyFound(found, most)

        def together(connection: Connection) -> EditResult:
            changed = skipped = 0
            for selection in selections:
                before = changed + skipped * skips
                done = verb(selection, connection, lambda more: check(before + more))  # noqa: B023 - at once
                changed, skipped = changed + done, skipped + done.skipped
                check(changed + skipped * skips)
            self.note(changed, about, connection)
            return EditResult(changed, skipped)

        try:
            done = inside.run(self.queue, together, atomic=True, durable=True, repeat=False)
        except TooManyFound as error:
            # A verb with progress stops at the first message over the limit.
            found = max(error.found, sum(each.count() for each in selections))
            raise TooManyFound(found, most or 0) from None
        self.is_audited = True
        inside.wake_consumers(self.queue)
        self.store.prune_sometimes()
        return Result(int(done), done.skipped)

    def note(
        self, count: int | None, detail: str | None, connection: Connection | None = None
    ) -> None:
        """Write the audit row, in the transaction if there is one."""
        if connection is not None and self.store.problem is not None:
            _log.warning(
                "The audit could not record this action: %s. %s",
                self._summary(count, detail),
                self.store.problem,
            )
            return
        self.store.write_audit(
            self.who.name,
            self.who.role.value,
            self.what,
            queue=self.name if self.on_queue else None,
            count=count,
            address=self.who.address,
            detail=detail,
            connection=connection,
        )

    def note_later(self, count: int | None, detail: str | None) -> None:
        """Write the audit row of a change that is already made; if this fails, log it."""
        try:
            self.note(count, detail)
        except QueueError as error:
            _log.warning(
                "The audit could not record this action: %s. %s",
                self._summary(count, detail),
                error,
            )

    def _summary(self, count: int | None, detail: str | None) -> str:
        who, about = self.who, f" to queue {self.name}" if self.on_queue else ""
        by = f"{who.name} ({who.role}, {who.address})"
        return f"{by} did {self.what}{about}, count {count}, {detail}"


def _edit(operation: OperatorVerb, change: Change, *, choice: Choice, **arguments: Any) -> Result:
    def verb(
        found: LiveSelection | ArchiveSelection, connection: Connection, _: object
    ) -> EditResult:
        return operation.edit(found, connection=connection, **arguments)

    live = operation.owner == LiveSelection.__name__
    found = choice.live(change.queue) if live else choice.archived(change.queue)
    # Of a flag only that it is set; zero is a priority.
    unset = (None, False)
    given = {
        name: value for name, value in arguments.items() if not any(value is each for each in unset)
    }
    if isinstance(given.get("delay"), int | float):
        given["delay"] = timedelta(seconds=given["delay"])
    detail = "".join(f"; {name} {_text(value)}" for name, value in given.items())
    return change.edit(found, verb, choice, detail=detail)


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return duration_text(value.total_seconds())
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return "none" if value is None else str(value)


def _from_to(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changed = [name for name in after if before[name] != after[name]]
    parts = (f"{name} {_text(before[name])} → {_text(after[name])}" for name in changed)
    return "; ".join(parts) or "nothing new"


def _run(operation: OperatorVerb, change: Change, **arguments: Any) -> Result:
    done = operation.run(change.service, change.name, **arguments)
    count = done if type(done) is int else None
    detail = None if change.on_queue else f"{operation.of} {change.name}"
    return Result(count, detail=detail, value=done)


def _settings(operation: OperatorVerb, change: Change, **given: Any) -> Result:
    def present() -> dict[str, Any]:
        settings = change.queue.settings
        return {name: getattr(settings, name) for name in given if hasattr(settings, name)}

    try:
        before = present()
    except QueueNotFound:
        made = operation.run(change.service, change.name, **given)
        return Result(detail=f"new, {to_json(given)}", value=made)
    made = operation.run(change.service, change.name, **given)
    return Result(detail=_from_to(before, present()), value=made)


def _purge(
    operation: OperatorVerb, change: Change, *, claimed: bool = False, at_most: int | None = None
) -> Result:
    if at_most is None:
        count = operation.run(change.service, change.name, claimed=claimed)
        return Result(count, detail="with claimed ones" if claimed else None)
    choice = Choice(at_most=at_most)

    def verb(found: LiveSelection, connection: Connection, _: object) -> EditResult:
        return found.remove(connection=connection)

    return change.edit(choice.live(change.queue), verb, choice, skips=False)


def _cancel(
    operation: OperatorVerb, change: Change, *, choice: Choice, reason: str | None = None
) -> Result:
    for each in dict.fromkeys(choice.ids):
        try:
            done = operation.run(change.service, change.name, message_id=each, reason=reason)
        except QueueError as error:
            if change.count:
                error.add_note(
                    f"Before that, {counted(change.count, 'message')} had been cancelled."
                )
            raise
        change.count += done
    because = "" if reason is None else f"; reason: {reason}"
    return Result(change.count, detail=f"{choice}{because}")


def _requeue(
    operation: OperatorVerb, change: Change, *, choice: Choice, payload: Any = UNSET
) -> Result:
    def verb(
        found: ArchiveSelection, connection: Connection, check: Callable[[int], None]
    ) -> EditResult:
        return operation.edit(found, connection=connection, progress=check, payload=payload)

    if choice.ids:
        detail = "" if payload is UNSET else "; with another payload"
        return change.edit(choice.archived(change.queue), verb, choice, detail=detail)
    choice = choice.described(change.queue)
    now, c = inside.read_clock(change.queue), change.queue.archive.table.c
    # No message can join those that had finished by now, so this count is an upper limit.
    there = choice.matching_archived(change.queue, c.finished_at <= now, mark=_MARKED)
    found = there.count()
    if found <= _STEP:
        return change.edit(choice.archived(change.queue), verb, choice)
    if choice.at_most is not None and found > choice.at_most:
        raise TooManyFound(found, choice.at_most)
    done, last, step = 0, None, dataclasses.replace(choice, at_most=None)
    while ids := [row.id for row in inside.rows(there, [c.id], limit=_STEP, after=last)]:
        last = ids[-1]
        where = and_(c.finished_at <= now, c.id.between(ids[0], last))
        try:
            some = choice.matching_archived(change.queue, where, mark=_MARKED)
            done += change.edit([some], verb, step).count or 0
        except QueueError as error:
            if done:
                error.add_note(f"Before that, {counted(done, 'message')} had been requeued.")
            raise
    return Result(done)


def _group(operation: OperatorVerb, change: Change, *, group: str, **given: Any) -> Result:
    def present() -> dict[str, Any]:
        info = change.queue.groups[group].info()
        return {name: getattr(info, f"own_{name}") for name in given}

    before = present() if given else {}
    operation.run(change.service, change.name, group=group, **given)
    rules = f": {_from_to(before, present())}" if given else ""
    return Result(detail=f"group {group}{rules}")


def _run_schedule(operation: OperatorVerb, change: Change) -> Result:
    published = operation.run(change.service, change.name)
    return Result(1, detail=f"schedule {change.name}, message {published.id}", value=published)


def _add_token(
    operation: OperatorVerb,
    change: Change,
    *,
    role: Role,
    lasts: timedelta | None,
    queues: Sequence[str] = (),
) -> Result:
    del operation
    made = insist_on_tables(change.store).add_token(change.name, role, lasts, queues)
    only = f", only {', '.join(queues)}" if queues else ""
    return Result(detail=f"token {change.name}, {role}{only}", value=made)


def _remove_token(operation: OperatorVerb, change: Change, *, last_admin: bool = False) -> Result:
    del operation
    if not insist_on_tables(change.store).remove_token(change.name, last_admin=last_admin):
        raise Refused(404, "token-not-found", "There is no token with that name.")
    return Result(detail=f"token {change.name}")


_OWN: Final[Mapping[str, Callable[..., Result]]] = {
    "settings": _settings,
    "purge": _purge,
    "cancel": _cancel,
    "requeue": _requeue,
    "pause-group": _group,
    "resume-group": _group,
    "unblock-group": _group,
    "configure-group": _group,
    "run-schedule": _run_schedule,
    "add-token": _add_token,
    "remove-token": _remove_token,
}
"""What is made otherwise than ``_edit`` and ``_run`` do it."""


class Changes:
    """Makes changes for people and programs, and writes the audit. Any thread may use it.

    Args:
        service: the service with the queues.
        store: the tables of tokens and of the audit.
    """

    def __init__(self, service: QueueService, store: WebStore) -> None:
        self._service = service
        self._store = store
        self._claims_noted: dict[tuple[str, str], float] = {}

    def make(self, operation: OperatorVerb, who: Principal, name: str, **arguments: Any) -> Result:
        """Run an operation; its caller must be allowed to.

        Args:
            operation: one of ``OPERATIONS``.
            who: the caller.
            name: the name of its queue, or of the other thing that it changes.
            arguments: the arguments of the operation; for messages, ``choice`` says which.

        Raises:
            TooManyFound: it would change more messages than were confirmed.
            QueueError, ValueError: as the verb of the library.
        """
        on_queue = operation.of == "queue"
        change = Change(self._service, self._store, who, operation.name, name, on_queue=on_queue)
        make = _OWN.get(operation.name) or (_edit if "choice" in arguments else _run)
        try:
            done = make(operation, change, **arguments)
        except Exception:
            if change.count:
                # After a failure halfway, the audit says how far it came.
                change.note_later(change.count, "It failed before it was finished.")
            raise
        if not change.is_audited:
            change.note_later(done.count, done.detail)
        return done

    def note(self, what: str, who: Principal, queue: str = "") -> None:
        """Write something to the audit that changes nothing, such as a sign-in."""
        on_queue = bool(queue)
        change = Change(self._service, self._store, who, what, queue, on_queue=on_queue)
        change.note_later(None, None)

    def note_claims(self, who: Principal, queue: str) -> None:
        """Write to the audit, once an hour, that somebody claims messages of a queue."""
        now, key = time.monotonic(), (who.name, queue)
        if now - self._claims_noted.get(key, float("-inf")) < _NOTED_SECONDS:
            return
        if len(self._claims_noted) >= _MOST_NOTED:
            self._claims_noted.clear()
        self._claims_noted[key] = now
        self.note("claim", who, queue)
