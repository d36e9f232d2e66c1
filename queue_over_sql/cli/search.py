"""Commands that show messages: `peek`, `search`, `show`, `why` and `dead`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql import Message, Reason, Status
from queue_over_sql.cli.lines import payload_line
from queue_over_sql.cli.options import (
    ANY_STATUS,
    MESSAGES_PANEL,
    Filters,
    IdArgument,
    QueueName,
    number,
    with_filters,
)
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.values import format_instant
from queue_over_sql.errors import visible
from queue_over_sql.values.durations import instant
from queue_over_sql.values.headers import PREVIOUS_ERROR, REQUEUED_FROM
from queue_over_sql.values.humanize import duration_words
from queue_over_sql.values.json_lines import message_fields
from queue_over_sql.values.states import DEAD

if TYPE_CHECKING:
    from queue_over_sql import Attempt, ConsumerInfo, Queue, QueueService, Selection
    from queue_over_sql.inside import ErrorGroup

ArchiveOption = Annotated[
    bool, typer.Option("--archive", help="Show finished messages, from the archive.")
]
LimitOption = Annotated[int, number("Show at most this many messages.", "--limit", "-n")]
AfterOption = Annotated[
    int | None,
    typer.Option(metavar="ID", help="Only messages with an id above this one (for the next page)."),
]


commands = Commands(MESSAGES_PANEL)


@commands.add("peek")
@with_filters(ANY_STATUS, "key", "kind", "group")
def peek(
    session: CommandSession,
    *,
    queue: QueueName,
    archive: ArchiveOption = False,
    limit: LimitOption = 20,
    after: AfterOption = None,
    **given: Any,
) -> None:
    """Show messages in the order of their ids, without claiming them.

    Exit code 3: there is none.
    """
    with session.queue(queue) as looked_at:
        selection = _selection(looked_at, Filters(**given), archive=archive)
        found = selection.list(limit=limit, after=after)
        _show(session, looked_at, found, archive=archive)


@commands.add("search")
@with_filters(ANY_STATUS)
def search(
    session: CommandSession,
    *,
    queue: QueueName,
    archive: ArchiveOption = False,
    count: Annotated[
        bool, typer.Option("--count", help="Only print the number of all messages that match.")
    ] = False,
    limit: LimitOption = 20,
    after: AfterOption = None,
    **given: Any,
) -> None:
    """Find messages by payload fields or by an SQL condition, without claiming them.

    A message must match all filters. Exit code 3: nothing matched.

    Example: queue-over-sql search orders --payload address.city=Zagreb --where 'attempt_count > 2'
    """
    filters = Filters(**given)
    with filters.queue(session, queue) as searched:
        selection = _selection(searched, filters, archive=archive)
        if count:
            number = selection.count()
            session.output.record({"queue": queue, "count": number}, human=str(number))
            raise typer.Exit(ExitCode.OK if number else ExitCode.NOTHING)
        found = selection.list(limit=limit, after=after)
        _show(session, searched, found, archive=archive)


@commands.add("show")
def show(
    session: CommandSession,
    *,
    queue: QueueName,
    message_id: IdArgument,
) -> None:
    """Show one message: its fields, its history with each failed attempt, and the last traceback.

    Exit code 3: the message does not exist. If it was requeued, and the new message
    still exists, the error has the new id.
    """
    with session.connect() as service:
        looked_at = service.queue(queue)
        of_it = looked_at.table.c.id == message_id
        message = looked_at.messages(where=of_it).first()
        if message is None:
            archive = looked_at.archive
            message = archive.messages(where=archive.table.c.id == message_id).first()
        if message is None:
            from queue_over_sql.inside import requeued_as

            anew = requeued_as(looked_at, message_id)
            where = "" if anew is None else f" It was requeued with the new id {anew}."
            session.output.nothing(f"Queue {queue} has no message {message_id}.{where}")
        traceback = looked_at.last_traceback(message_id)
        consumer = _holder(service, message)
        attempts = looked_at.attempts(message_id)
        told = [dataclasses.asdict(each) for each in attempts]
        fields = {**message_fields(message), "last_traceback": traceback, "attempts": told}
        if session.output.machine:
            session.output.record({**fields, "consumer": _facts(consumer)})
            return
        shown: dict[str, Any] = dict.fromkeys(("id", "queue", "status"))
        shown |= {name: value for name, value in fields.items() if value is not None}
        shown |= {"payload": payload_line(message, looked_at.settings.payload)}
        for name in ("last_traceback", "attempts"):
            shown.pop(name, None)
        session.output.details({name: _one_line(str(value)) for name, value in shown.items()})
        session.output.line("")
        for at, event in _story(message, message.status, consumer, attempts):
            session.output.line(f"{format_instant(at):19}  {visible(_one_line(event), keep='')}")
        if traceback is not None:
            session.output.line("")
            session.output.line(visible(traceback.rstrip()))
        elif message.last_error is not None and message.row is not None:
            session.output.note("An adopted table has no tracebacks: see the log of the worker.")


@commands.add("why")
def why(
    session: CommandSession,
    *,
    queue: QueueName,
    message_id: IdArgument,
) -> None:
    """Say why a message does not run, and what to do about it.

    Exit code 3: the message does not exist.
    """
    with session.queue(queue) as looked_at:
        found = looked_at.why(message_id)
        if found.reason is Reason.MISSING:
            session.output.nothing(found.text)
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        session.output.record({**fields, "consumer": _facts(found.consumer)}, human=found.text)


def _facts(consumer: ConsumerInfo | None) -> dict[str, Any] | None:
    return None if consumer is None else {name: getattr(consumer, name) for name in _HOLDER}


_HOLDER: Final = ("consumer_id", "name", "host", "pid", "heartbeat_at", "expires_at")


def _holder(service: QueueService, message: Message) -> ConsumerInfo | None:
    if message.consumer_id is None:
        return None
    known = {consumer.consumer_id: consumer for consumer in service.consumers()}
    return known.get(message.consumer_id)


def _story(
    message: Message,
    status: str | None,
    consumer: ConsumerInfo | None,
    attempts: Sequence[Attempt],
) -> list[tuple[datetime | None, str]]:
    claimed = status == Status.CLAIMED
    earlier, previous = (message.headers.get(name) for name in (REQUEUED_FROM, PREVIOUS_ERROR))
    again = "" if earlier is None else f" again: requeued from message {earlier}"
    again += "" if previous is None else f" after a failure: {previous}"
    story: list[tuple[datetime | None, str]] = [(message.published_at, f"published{again}")]
    tried = [(each.ended_at, _attempt(each, message.max_attempts)) for each in attempts]
    # Those of its life before.
    before = [each for each in tried if each[0] < message.published_at]
    story = [*before, *story, *tried[len(before) :]]
    if message.last_error is not None and status not in DEAD and not attempts:
        number = message.attempt - claimed
        failed = f"attempt {number} of {message.max_attempts} failed: {message.last_error}"
        story.append((message.last_attempt_at, failed))
    if claimed:
        holder = f"consumer {message.consumer_id}, which is no longer registered"
        if consumer is not None:
            process = "" if consumer.permanent else f"process {consumer.pid} on "
            holder = f"{consumer.name} ({process}{consumer.host})"
        attempt = f"attempt {message.attempt} of {message.max_attempts}"
        story.append((message.claimed_at, f"claimed for {attempt} by {holder}"))
        story.append((message.lease_expires_at, "the lease ends, unless it is extended"))
    elif message.outcome is not None:
        why = "" if message.last_error is None else f": {message.last_error}"
        at_last = f" at attempt {message.attempt} of {message.max_attempts}"
        story.append((message.finished_at, f"{message.outcome}{at_last}{why}"))
    elif status == Status.HELD:
        story.append((None, "held until queue-over-sql edit --unhold"))
    else:
        story.append((message.available_at, "due"))
        if message.expires_at is not None and not message.attempt:
            story.append((message.expires_at, "expires, unless it was started"))
    return story


def _attempt(told: Attempt, most: int) -> str:
    became = {"retried": "failed", "lost": "was lost"}.get(told.outcome, told.outcome)
    why = "" if told.error is None else f": {told.error}"
    facts = []
    if told.began_at is not None:
        facts.append(f"after {duration_words((told.ended_at - told.began_at).total_seconds())}")
    if told.worker is None:
        facts.append(f"consumer {told.consumer_id}")
    else:
        process = f"process {told.pid} on {told.host}" if told.pid else str(told.host)
        facts += [told.worker, process]
    return f"attempt {told.attempt} of {most} {became}{why} ({', '.join(facts)})"


def _selection(queue: Queue, filters: Filters, *, archive: bool) -> Selection:
    return filters.archived(queue) if archive else filters.live(queue)


def _show(
    session: CommandSession, queue: Queue, found: Sequence[Message], *, archive: bool
) -> None:
    when = ("outcome", "finished (UTC)") if archive else ("due (UTC)",)
    # Empty columns would take space from the payload.
    kind = ("kind",) if any(message.kind for message in found) else ()
    group = ("group",) if any(message.group is not None for message in found) else ()
    error = ("…last error",) if any(message.last_error for message in found) else ()
    session.output.listing(
        found,
        message_fields,
        ("#id", "#prio", "#tried", *when, "key", *kind, *group, "…payload", *error),
        lambda message: (
            message.id,
            message.priority,
            f"{message.attempt}/{message.max_attempts}",
            *_when(message, archive=archive),
            message.key or "",
            *(message.kind or "" for _ in kind),
            *(message.group or "" for _ in group),
            _one_line(payload_line(message, queue.settings.payload)),
            *(_one_line(message.last_error or "") for _ in error),
        ),
        nothing=f"No message in {'the archive of ' * archive}queue {queue.name} matches.",
    )


def _when(message: Message, *, archive: bool) -> tuple[Any, ...]:
    if archive:
        return message.outcome, format_instant(message.finished_at)
    if message.consumer_id is not None:
        return ("claimed",)
    return (format_instant(message.available_at) or "held",)


def _one_line(text: str) -> str:
    return " ".join(text.split())


@commands.add("dead")
def dead(
    session: CommandSession,
    *,
    queue: QueueName,
    limit: Annotated[int, number("The largest number of errors.")] = 50,
) -> None:
    """List the errors of a queue's dead letters, the last one first. Exit code 3: there is none.

    Errors that differ only in numbers, ids, addresses or quoted values are one. Give the
    fingerprint of an error to --error of `requeue`, `archive remove` or `archive export`.

    Example: queue-over-sql requeue orders --error 3f0e2a9c1b7d4e85
    """
    from queue_over_sql import inside

    with session.queue(queue) as target:
        found = inside.errors(target, limit=limit)
    session.output.listing(
        found,
        lambda each: {"queue": queue, **_error_fields(each)},
        ("fingerprint", "#messages", "#24 h", "first (UTC)", "last (UTC)", "kind", "…error"),
        lambda each: (
            each.fingerprint,
            f"{each.count:,}{'+' * each.more}",
            f"{sum(each.hours):,}",
            format_instant(instant(each.first_at)),
            format_instant(instant(each.last_at)),
            each.kind or "",
            _one_line(each.error),
        ),
        nothing=f"Queue {queue} has no dead letters.",
    )


def _error_fields(each: ErrorGroup) -> dict[str, Any]:
    times = {name: instant(getattr(each, name)) for name in ("first_at", "last_at")}
    return {**dataclasses.asdict(each), **times}
