"""Acts: all that can be changed over HTTP, who may, the guard before it, and its row in the audit.

The dashboard and the HTTP API do everything by ``Acts.do``. An act on messages is one transaction
with its guard and its row: where more match than were confirmed nothing is changed, and nothing is
changed that is not in the audit.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import QueueError, QueueNotFound
from queue_over_sql.plots.words import counted
from queue_over_sql.queue import core_of
from queue_over_sql.queues.json_lines import to_json
from queue_over_sql.queues.selection import ArchiveSelection, LiveSelection
from queue_over_sql.store import EditResult
from queue_over_sql.web.access import Principal, Refused, insist_on_tables
from queue_over_sql.web.looks import error_groups
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.web.tables import WebStore

    # Changes the messages of a selection in a transaction; it may say how many so far.
    Verb = Callable[[Any, Connection, Callable[[int], None]], EditResult]

_log = logging.getLogger(__name__)
_BATCH: Final = 500
_TOLD: Final = 20


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
    """The messages of a queue that somebody means.

    Attributes:
        ids: their ids; where there are none, all that match are meant.
        filters: the arguments of ``Queue.messages`` that they match.
        like: the id of a dead letter, to mean all that failed alike; see ``error_groups``.
        at_most: how many may be changed.
    """

    ids: Sequence[int] = ()
    filters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    like: int | None = None
    at_most: int | None = None

    def live(self, queue: Queue) -> list[LiveSelection]:
        """The live messages that are meant.

        Raises:
            ValueError: ``like`` means dead letters.
        """
        if self.like is not None:
            msg = "Only dead letters are chosen by their error."
            raise ValueError(msg)
        if self.ids:
            return [queue.messages(where=queue.table.c.id.in_(self.ids))]
        return [queue.messages(**self.filters)]

    def archived(self, queue: Queue) -> list[ArchiveSelection]:
        """The archived ones."""
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
    """What came of an act.

    Attributes:
        count: how many messages were changed; None where that is no question.
        skipped: matching ones that were left alone, because a consumer holds them.
        detail: more about it, for the audit.
        value: what else it made.
    """

    count: int | None = None
    skipped: int = 0
    detail: str | None = None
    value: Any = None


class Doing:
    """An act that is being done.

    Attributes:
        service: the queues.
        store: of tokens and of the audit.
        who: does it.
        act: its name.
        name: of the queue that it is about, if any.
        count: how many messages have been changed so far.
        is_audited: whether its row was written with what it changed.
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
        """The queue that it is about."""
        return self.service.queue(self.name or "")

    def change(
        self,
        selections: Sequence[LiveSelection | ArchiveSelection],
        verb: Verb,
        chosen: Chosen,
        *,
        skips: bool = True,
    ) -> Done:
        """Change messages and write that down, or do neither.

        Args:
            selections: the messages.
            verb: changes those of one selection.
            chosen: which they are, and how many they may be.
            skips: whether those that consumers hold count among the confirmed ones.

        Raises:
            TooManyFound: they are more.
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
            # One that works in steps stopped at the first that was too many.
            found = max(error.found, sum(each.count() for each in selections))
            raise TooManyFound(found, most or 0) from None
        self.is_audited = True
        context.announce()
        self.store.prune_sometimes()
        return Done(int(done), done.skipped)

    def note(
        self, count: int | None, detail: str | None, connection: Connection | None = None
    ) -> None:
        """Write to the audit what was done, in a transaction where there is one."""
        if connection is not None and self.store.problem is not None:
            _log.warning(
                "Not written to the audit: %s. %s", self._told(count, detail), self.store.problem
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
        """Write to the audit what cannot be undone any more; where that fails the log has it."""
        try:
            self.note(count, detail)
        except QueueError as error:
            _log.warning("Not written to the audit: %s: %s", self._told(count, detail), error)

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

    return doing.change(chosen.archived(doing.queue), verb, chosen)


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


def _add_token(doing: Doing, *, token: str, role: Role, lasts: timedelta | None) -> Done:
    made = insist_on_tables(doing.store).add_token(token, role, lasts)
    return Done(detail=f"token {token}, {role}", value=made)


def _remove_token(doing: Doing, *, token: str) -> Done:
    if not insist_on_tables(doing.store).remove_token(token):
        raise Refused(404, "token-not-found", "There is no token with that name.")
    return Done(detail=f"token {token}")


@dataclasses.dataclass(frozen=True)
class Act:
    """Something that can be done.

    Attributes:
        role: who may do it.
        run: does it, with arguments of its own.
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
    "add-token": Act(Role.ADMIN, _add_token),
    "remove-token": Act(Role.ADMIN, _remove_token),
}
"""All acts, by the names that the audit has of them."""


class Acts:
    """Does acts for people and programs, and writes them down. May be used from any thread.

    Args:
        service: whose queues they are about.
        store: of tokens and of the audit.
    """

    def __init__(self, service: QueueService, store: WebStore) -> None:
        self._service = service
        self._store = store

    def do(self, act: str, who: Principal, queue: str | None = None, **arguments: Any) -> Done:
        """Do an act, which its caller may.

        Args:
            act: a name of ``ACTS``.
            who: does it.
            queue: that it is about, if any.
            arguments: its own.

        Raises:
            TooManyFound: it would change more messages than were confirmed.
            QueueError, ValueError: as the library's verb does.
        """
        doing = Doing(self._service, self._store, who, act, queue)
        try:
            done = ACTS[act].run(doing, **arguments)
        except Exception:
            if doing.count:
                # What failed half-way says how far it came.
                doing.note_later(doing.count, "It failed before it was finished.")
            raise
        if not doing.is_audited:
            doing.note_later(done.count, done.detail)
        return done

    def note(self, act: str, who: Principal) -> None:
        """Write to the audit what was done without ``do``, such as a sign-in."""
        Doing(self._service, self._store, who, act, None).note_later(None, None)
