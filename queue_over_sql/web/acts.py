"""Acts: all changes over HTTP, with their roles, their limits, and their rows in the audit.

The dashboard and the HTTP API make all changes by ``Acts.do``. An act on messages is one
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
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_

from queue_over_sql.errors import QueueError, QueueNotFound
from queue_over_sql.queue import core_of
from queue_over_sql.queues.selection import ArchiveSelection, LiveSelection, rows_of
from queue_over_sql.store import EditResult
from queue_over_sql.values.checks import check_id
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.web.access import Principal, Refused, insist_on_tables
from queue_over_sql.web.looks import error_groups
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.web.tables import WebStore

    # Changes the messages of a selection in a transaction; it may report its progress.
    Verb = Callable[[Any, Connection, Callable[[int], None]], EditResult]

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_ID: Final = re.compile(r"-?[0-9]{1,19}")
_TOLD: Final = 20
_STEP: Final = 10_000
"""A transaction requeues so many that match: on SQLite nobody else can write meanwhile."""


def message_id(text: str) -> int | None:
    """The id of a message; None if the text is not one. Rows of adopted tables may be negative."""
    with contextlib.suppress(ValueError):
        return check_id("id", int(text)) if _ID.fullmatch(text) else None
    return None


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
class Chosen:
    """A choice of messages of a queue.

    Attributes:
        ids: their ids; without ids, all matching messages.
        filters: the arguments of ``Queue.messages``.
        like: the id of a dead letter, to choose all with the same error; see ``error_groups``.
        at_most: how many may be changed.
    """

    ids: Sequence[int] = ()
    filters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    like: int | None = None
    at_most: int | None = None

    def live(self, queue: Queue) -> list[LiveSelection]:
        """The chosen live messages.

        Raises:
            ValueError: ``like`` is for dead letters.
        """
        if self.like is not None:
            msg = "Only dead letters are chosen by their error."
            raise ValueError(msg)
        if self.ids:
            return [queue.messages(where=queue.table.c.id.in_(self.ids))]
        return [queue.messages(**self.filters)]

    def archived(self, queue: Queue) -> list[ArchiveSelection]:
        """The chosen archived messages."""
        ids, archive = self.ids, queue.archive
        if self.like is not None:
            groups = error_groups(queue)
            ids = next((each.ids for each in groups if self.like in each.ids), [])
        elif not ids:
            return [archive.messages(**self.filters)]
        column = archive.table.c.id
        parts = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
        return [archive.messages(where=column.in_(part)) for part in parts]

    def __str__(self) -> str:
        if self.ids:
            more = f" and {len(self.ids) - _TOLD:,} more" if len(self.ids) > _TOLD else ""
            return f"ids {', '.join(map(str, self.ids[:_TOLD]))}{more}"
        if self.like is not None:
            return f"error as of {self.like}"
        given = {name: value for name, value in self.filters.items() if value not in (None, {})}
        fields = given.pop("payload", {})
        told = [f"{name}={value}" for name, value in given.items()]
        told += [f"{path}={json.dumps(value)}" for path, value in fields.items()]
        return ", ".join(told) or "all"


@dataclasses.dataclass
class Done:
    """The result of an act.

    Attributes:
        count: how many messages were changed; None if it has no number.
        skipped: matching messages that stayed unchanged, because a consumer holds them.
        detail: details for the audit.
        value: a further result.
    """

    count: int | None = None
    skipped: int = 0
    detail: str | None = None
    value: Any = None


class Doing:
    """An act in progress.

    Attributes:
        service: the queues.
        store: the tables of tokens and of the audit.
        who: the caller.
        act: its name.
        name: its queue, if any.
        count: how many messages have been changed so far.
        is_audited: whether its audit row was written together with the change.
    """

    def __init__(
        self, service: QueueService, store: WebStore, who: Principal, act: str, name: str | None
    ) -> None:
        self.service = service
        self.store = store
        self.who = who
        self.act = act
        self.name = name
        self.count = 0
        self.is_audited = False

    @property
    def queue(self) -> Queue:
        """The queue of the act."""
        return self.service.queue(self.name or "")

    def change(
        self,
        selections: Sequence[LiveSelection | ArchiveSelection],
        verb: Verb,
        chosen: Chosen,
        *,
        skips: bool = True,
    ) -> Done:
        """Change messages and write the audit row, or do neither.

        Args:
            selections: the messages.
            verb: changes the messages of one selection.
            chosen: the choice, with its limit.
            skips: whether messages that consumers hold count towards the limit.

        Raises:
            TooManyFound: more messages match.
        """
        most, context = chosen.at_most, core_of(self.queue).context

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
            self.note(changed, str(chosen), connection)
            return EditResult(changed, skipped)

        try:
            done = context.run(together, atomic=True, durable=True, repeat=False)
        except TooManyFound as error:
            # A verb with progress stops at the first message over the limit.
            found = max(error.found, sum(each.count() for each in selections))
            raise TooManyFound(found, most or 0) from None
        self.is_audited = True
        context.announce()
        self.store.prune_sometimes()
        return Done(int(done), done.skipped)

    def note(
        self, count: int | None, detail: str | None, connection: Connection | None = None
    ) -> None:
        """Write the audit row, in the transaction if there is one."""
        if connection is not None and self.store.problem is not None:
            _log.warning(
                "The audit could not record this action: %s. %s",
                self._told(count, detail),
                self.store.problem,
            )
            return
        self.store.write_audit(
            self.who.name,
            self.who.role.value,
            self.act,
            queue=self.name,
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
                "The audit could not record this action: %s. %s", self._told(count, detail), error
            )

    def _told(self, count: int | None, detail: str | None) -> str:
        who, about = self.who, "" if self.name is None else f" to queue {self.name}"
        by = f"{who.name} ({who.role}, {who.address})"
        return f"{by} did {self.act}{about}, count {count}, {detail}"


# -- queues


def _pause(doing: Doing) -> Done:
    doing.queue.pause()
    return Done()


def _resume(doing: Doing) -> Done:
    doing.queue.resume()
    return Done()


def _settings(doing: Doing, **given: Any) -> Done:
    made = doing.service.create_queue(doing.name or "", **given)
    return Done(detail=to_json(given), value=made)


def _purge(doing: Doing, *, claimed: bool = False, at_most: int | None = None) -> Done:
    if at_most is None:
        count = doing.queue.purge(claimed=claimed)
        return Done(count, detail="with claimed ones" if claimed else None)
    chosen = Chosen(at_most=at_most)
    return doing.change(chosen.live(doing.queue), _in_one_step(_remove), chosen, skips=False)


def _drop(doing: Doing) -> Done:
    if not doing.service.drop_queue(doing.name or ""):
        raise QueueNotFound(doing.name or "")
    return Done()


# -- messages


def _in_one_step(act: Callable[..., EditResult], **options: Any) -> Verb:
    return lambda found, connection, _: act(found, connection=connection, **options)


def _remove(found: LiveSelection | ArchiveSelection, *, connection: Connection) -> EditResult:
    return found.remove(connection=connection)


def _live(act: Callable[..., EditResult]) -> Callable[..., Done]:
    def run(doing: Doing, *, chosen: Chosen, **options: Any) -> Done:
        return doing.change(chosen.live(doing.queue), _in_one_step(act, **options), chosen)

    return run


def _remove_archived(doing: Doing, *, chosen: Chosen) -> Done:
    return doing.change(chosen.archived(doing.queue), _in_one_step(_remove), chosen)


def _requeue(doing: Doing, *, chosen: Chosen) -> Done:
    def verb(
        found: ArchiveSelection, connection: Connection, check: Callable[[int], None]
    ) -> EditResult:
        return found.requeue(connection=connection, progress=check)

    selections = chosen.archived(doing.queue)
    if chosen.ids or chosen.like is not None:
        return doing.change(selections, verb, chosen)
    context, archive = core_of(doing.queue).context, doing.queue.archive
    now, c = context.run(context.dialect.read_clock), archive.table.c
    # No message can join those that had finished by now, so this count is an upper limit.
    there = archive.messages(**chosen.filters, where=c.finished_at <= now)
    found = there.count()
    if found <= _STEP:
        return doing.change(selections, verb, chosen)
    if chosen.at_most is not None and found > chosen.at_most:
        raise TooManyFound(found, chosen.at_most)
    done, last, step = 0, None, dataclasses.replace(chosen, at_most=None)
    while ids := [row.id for row in rows_of(there, [c.id], limit=_STEP, after=last)]:
        last = ids[-1]
        where = and_(c.finished_at <= now, c.id.between(ids[0], last))
        try:
            some = archive.messages(**chosen.filters, where=where)
            done += doing.change([some], verb, step).count or 0
        except QueueError as error:
            if done:
                error.add_note(f"Before that, {counted(done, 'message')} had been requeued.")
            raise
    return Done(done)


def _cancel(doing: Doing, *, ids: Sequence[int], reason: str | None = None) -> Done:
    queue = doing.queue
    for each in dict.fromkeys(ids):
        doing.count += queue.cancel(each, reason)
    return Done(doing.count, detail=str(Chosen(ids)))


# -- consumers, schedules, tokens


def _release_consumer(doing: Doing, *, consumer: str) -> Done:
    count = doing.service.release_consumer(consumer)
    return Done(count, detail=f"consumer {consumer}")


def _pause_schedule(doing: Doing, *, schedule: str) -> Done:
    doing.service.schedules.pause(schedule)
    return Done(detail=f"schedule {schedule}")


def _resume_schedule(doing: Doing, *, schedule: str) -> Done:
    doing.service.schedules.resume(schedule)
    return Done(detail=f"schedule {schedule}")


def _run_schedule(doing: Doing, *, schedule: str) -> Done:
    published = doing.service.schedules.run(schedule)
    return Done(1, detail=f"schedule {schedule}, message {published.id}", value=published)


def _add_token(doing: Doing, *, token: str, role: Role, lasts: timedelta | None) -> Done:
    made = insist_on_tables(doing.store).add_token(token, role, lasts)
    return Done(detail=f"token {token}, {role}", value=made)


def _remove_token(doing: Doing, *, token: str) -> Done:
    if not insist_on_tables(doing.store).remove_token(token):
        raise Refused(404, "token-not-found", "There is no token with that name.")
    return Done(detail=f"token {token}")


@dataclasses.dataclass(frozen=True)
class Act:
    """A kind of change.

    Attributes:
        role: the role that it needs.
        run: makes the change, with its arguments.
    """

    role: Role
    run: Callable[..., Done]


ACTS: Final[Mapping[str, Act]] = {
    "pause": Act(Role.OPERATOR, _pause),
    "resume": Act(Role.OPERATOR, _resume),
    "settings": Act(Role.ADMIN, _settings),
    "purge": Act(Role.ADMIN, _purge),
    "drop": Act(Role.ADMIN, _drop),
    "hold": Act(Role.OPERATOR, _live(LiveSelection.hold)),
    "unhold": Act(Role.OPERATOR, _live(LiveSelection.unhold)),
    "reschedule": Act(Role.OPERATOR, _live(LiveSelection.reschedule)),
    "prioritize": Act(Role.OPERATOR, _live(LiveSelection.prioritize)),
    "remove": Act(Role.OPERATOR, _live(LiveSelection.remove)),
    "cancel": Act(Role.OPERATOR, _cancel),
    "requeue": Act(Role.OPERATOR, _requeue),
    "remove-archived": Act(Role.OPERATOR, _remove_archived),
    "release-consumer": Act(Role.OPERATOR, _release_consumer),
    "pause-schedule": Act(Role.OPERATOR, _pause_schedule),
    "resume-schedule": Act(Role.OPERATOR, _resume_schedule),
    "run-schedule": Act(Role.OPERATOR, _run_schedule),
    "add-token": Act(Role.ADMIN, _add_token),
    "remove-token": Act(Role.ADMIN, _remove_token),
}
"""All acts, by their names in the audit."""


class Acts:
    """Makes changes for people and programs, and writes the audit. Any thread may use it.

    Args:
        service: the service with the queues.
        store: the tables of tokens and of the audit.
    """

    def __init__(self, service: QueueService, store: WebStore) -> None:
        self._service = service
        self._store = store

    def do(self, act: str, who: Principal, queue: str | None = None, **arguments: Any) -> Done:
        """Do an act; its caller must be allowed to.

        Args:
            act: a name of ``ACTS``.
            who: the caller.
            queue: its queue, if any.
            arguments: the arguments of the act.

        Raises:
            TooManyFound: it would change more messages than were confirmed.
            QueueError, ValueError: as the verb of the library.
        """
        doing = Doing(self._service, self._store, who, act, queue)
        try:
            done = ACTS[act].run(doing, **arguments)
        except Exception:
            if doing.count:
                # After a failure halfway, the audit says how far it came.
                doing.note_later(doing.count, "It failed before it was finished.")
            raise
        if not doing.is_audited:
            doing.note_later(done.count, done.detail)
        return done

    def note(self, act: str, who: Principal) -> None:
        """Write something to the audit that is not an act, such as a sign-in."""
        Doing(self._service, self._store, who, act, None).note_later(None, None)
