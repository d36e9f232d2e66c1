"""Commands that change messages: `edit`, `cancel` and `requeue`."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_over_sql import DuplicateKey, Status
from queue_over_sql.cli.operations import EDITS
from queue_over_sql.cli.options import (
    ARCHIVE_STATUS,
    LIVE_STATUS,
    MESSAGES_PANEL,
    AllOption,
    Filters,
    IdFilter,
    QueueName,
    YesOption,
    argument,
    confirm,
    with_filters,
)
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.values import format_instant, parse_duration, parse_id, parse_instant
from queue_over_sql.management.operation import EditOption, OperatorVerb
from queue_over_sql.values.durations import exact_duration
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_text import read_exactly

if TYPE_CHECKING:
    from queue_over_sql import ArchiveSelection, EditResult, Queue


def insist_on_choice(filters: Filters, *, everything: bool) -> None:
    """Require either --all or filters."""
    if filters.given and everything:
        raise typer.BadParameter("use either --all, or ids and filters, but not both")
    if not filters.given and not everything:
        raise typer.BadParameter(
            "choose the messages: use ids, filters such as --key, --payload or --where, or --all"
        )


def removed_how(queue: Queue) -> str:
    """A note for removals from an adopted table, which keeps its rows."""
    from queue_over_sql import AdoptedQueue

    return " (the rows stay in the table)" if isinstance(queue, AdoptedQueue) else " permanently"


class Progress:
    """Counts the messages that are done: called with the number so far, and kept for the report."""

    def __init__(self, show: Callable[[int], object]) -> None:
        self.done = 0
        self._show = show

    def __call__(self, done: int) -> None:
        """Store and show the number so far."""
        self.done = done
        self._show(done)


@contextmanager
def progress_bar(
    output: Output,
    doing: str,
    total: Callable[[], int] | None = None,
    *,
    lasting: bool = True,
) -> Iterator[Progress]:
    """Show progress on a terminal; after an error, say how many messages were done.

    Args:
        output: the output of the command.
        doing: the action, such as ``Removing``.
        total: counts the messages; called only if the bar is shown. None: unknown.
        lasting: whether messages that are done stay done after an error.
    """
    with output.progress(total_known=total is not None) as bar:
        expected = None if bar.disable or total is None else total()
        task = bar.add_task(doing, total=expected)
        progress = Progress(lambda done: bar.update(task, completed=done))
        try:
            yield progress
        except BaseException:
            bar.stop()
            if progress.done and lasting:
                output.note(
                    f"{counted(progress.done, 'message').capitalize()} done before the error."
                )
            raise


def agreed(selection: ArchiveSelection, question: Callable[[int], str]) -> bool:
    """Ask `question` with the count of messages; True if there are any and the answer is yes."""
    found = selection.count()
    if found:
        confirm(question(found), yes=False)
    return found > 0


def report_finished(output: Output, queue: str, done_as: str, done: int, human: str) -> None:
    """Report how many finished messages were changed; exit code 3 if there were none."""
    output.record({"queue": queue, done_as: done}, human=human if done else None)
    if not done:
        output.nothing(f"No message in the archive of queue {queue} matches.")


@dataclasses.dataclass(frozen=True)
class _Edit:
    """The chosen change.

    Attributes:
        operation: what it does.
        option: the option that stands for it.
        arguments: of the operation.
        how: the text after the messages in the question and the report.
    """

    operation: OperatorVerb
    option: EditOption
    arguments: Mapping[str, Any]
    how: str


def _chosen(given: Mapping[str, Any]) -> _Edit:
    """The chosen change; a usage error unless there is exactly one."""
    chosen = [name for name, value in given.items() if value is not None and value is not False]
    if len(chosen) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"use exactly one of {names}")
    (name,) = chosen
    value, (operation, option) = given[name], EDITS[name]
    arguments = {name: value} if option.given is None else option.given
    return _Edit(operation, option, arguments, option.how.format(value=_shown(value)))


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return str(format_instant(value))
    return exact_duration(value) if isinstance(value, float) else str(value)


def _option(name: str, **more: Any) -> Any:
    text, panel = EDITS[name][1].help, "Change to make (exactly one)"
    return typer.Option(
        f"--{name.replace('_', '-')}", rich_help_panel=panel, show_default=False, help=text, **more
    )


commands = Commands(MESSAGES_PANEL)


@commands.add("edit")
@with_filters(LIVE_STATUS)
def edit(
    session: CommandSession,
    *,
    queue: QueueName,
    ids: IdFilter = None,
    everything: AllOption = False,
    remove: Annotated[bool, _option("remove")] = False,
    hold: Annotated[bool, _option("hold")] = False,
    unhold: Annotated[bool, _option("unhold")] = False,
    front: Annotated[bool, _option("front")] = False,
    priority: Annotated[int | None, _option("priority", metavar="N", min=0)] = None,
    delay: Annotated[
        float | None, _option("delay", metavar="DURATION", parser=parse_duration)
    ] = None,
    at: Annotated[datetime | None, _option("at", metavar="INSTANT", parser=parse_instant)] = None,
    max_attempts: Annotated[int | None, _option("max_attempts", metavar="N", min=1)] = None,
    yes: YesOption = False,
    **given: Any,
) -> None:
    """Remove, hold, move or reschedule unclaimed messages, or allow them other attempts.

    The command shows how many messages it would change and asks for confirmation. It skips claimed
    messages and reports how many. Exit code 5: it skipped some, or some ids did not match. Exit
    code 3: nothing matched.

    Example: queue-over-sql edit orders --payload customer=7 --front
    """
    filters = Filters(ids=ids, **given)
    insist_on_choice(filters, everything=everything)
    change = _chosen(
        {
            "remove": remove,
            "hold": hold,
            "unhold": unhold,
            "front": front,
            "priority": priority,
            "delay": delay,
            "at": at,
            "max_attempts": max_attempts,
        }
    )
    with filters.queue(session, queue) as edited:
        if remove:
            change = dataclasses.replace(change, how=removed_how(edited))
        done = _edit(session, edited, filters, change, yes=yes)
    _report(session, queue, change, done)
    filters.check_ids(session.output, int(done))


def _edit(
    session: CommandSession, queue: Queue, filters: Filters, change: _Edit, *, yes: bool
) -> EditResult:
    from queue_over_sql import EditResult

    selection, edit = filters.live(queue), change.operation.edit
    if not yes:
        free, claimed = _reach(queue, filters, change.option)
        if not free:
            return EditResult(0, claimed)
        held = f" ({_left_alone(claimed)})" if claimed else ""
        what = f"{_what(free, queue.name)}{change.how}{held}"
        confirm(f"{change.option.verb} {what}?", yes=False)
    if change.option.name != "remove":
        return edit(selection, **change.arguments)
    with progress_bar(
        session.output, "Removing", lambda: _reach(queue, filters, change.option)[0]
    ) as progress:
        return edit(selection, progress=progress)


def _reach(queue: Queue, filters: Filters, option: EditOption) -> tuple[int, int]:
    if option.status is not None:
        return _count(queue, filters, option.status), 0
    claimed = _count(queue, filters, Status.CLAIMED)
    return filters.live(queue).count() - claimed, claimed


def _count(queue: Queue, filters: Filters, status: str) -> int:
    if filters.status not in (None, status):
        return 0
    return dataclasses.replace(filters, status=status).live(queue).count()


def _report(session: CommandSession, queue: str, change: _Edit, done: EditResult) -> None:
    left = f"; {_left_alone(done.skipped)}" if done.skipped else ""
    nothing = not done and not done.skipped
    session.output.record(
        {
            "queue": queue,
            "action": change.option.name,
            "changed": int(done),
            "skipped": done.skipped,
        },
        human=None if nothing else f"{change.option.past} {_what(done, queue)}{change.how}{left}.",
    )
    if nothing:
        session.output.nothing(f"No message in queue {queue} matches.")
    if done.skipped:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _what(count: int, queue: str) -> str:
    return f"{counted(count, 'message')} of queue {queue}"


def _left_alone(claimed: int) -> str:
    skipped = "claimed one is" if claimed == 1 else "claimed ones are"
    return f"{claimed:,} {skipped} skipped"


@commands.add("cancel")
def cancel(
    session: CommandSession,
    *,
    queue: QueueName,
    ids: Annotated[list[int], argument("ID...", "Ids of the messages.", parser=parse_id)],
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="The reason, stored in last_error."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Turn live messages into dead letters, even if a consumer holds them.

    The consumers can no longer settle these messages. A worker notices the cancellation at its next
    lease renewal, within 10 s, and tells its handler. The command asks for confirmation. Exit code
    5: some of the messages do not exist. Exit code 3: none exists.

    Example: queue-over-sql cancel orders 17 18 --reason "wrong customer"
    """
    wanted, done = list(dict.fromkeys(ids)), list[int]()
    with session.queue(queue) as source:
        confirm(f"Cancel {_what(len(wanted), queue)}?", yes=yes)
        with progress_bar(session.output, "Cancelling", lambda: len(wanted)) as progress:
            for each in wanted:
                done += [each] if source.cancel(each, reason) else []
                progress(len(done))
    missing = [each for each in wanted if each not in done]
    gone = f" Not found: {', '.join(map(str, missing))}." if missing else ""
    session.output.record(
        {"queue": queue, "cancelled": done, "missing": missing},
        human=f"Cancelled {_what(len(done), queue)}.{gone}" if done else None,
    )
    if not done:
        session.output.nothing(f"No message in queue {queue} matches.")
    if missing:
        raise typer.Exit(ExitCode.INCOMPLETE)


@commands.add("requeue")
@with_filters(ARCHIVE_STATUS)
def requeue(
    session: CommandSession,
    *,
    queue: QueueName,
    ids: IdFilter = None,
    everything: AllOption = False,
    change: Annotated[
        bool,
        typer.Option(
            "--edit",
            help="First change the payload, in the editor that the environment variable VISUAL or "
            "EDITOR names. Exactly one message must match.",
        ),
    ] = False,
    yes: YesOption = False,
    **given: Any,
) -> None:
    """Move finished messages from the archive back to the queue, with the attempt count reset.

    Each message is due now and gets a new id. A transaction moves up to 500 messages. The header
    previous_error has the reason of the earlier failure. The header requeued_from has the earlier
    id. A row of an adopted table is requeued in place and keeps its id. The command shows how many
    messages match and asks for confirmation. Exit code 5: some ids did not match. Exit code 3:
    nothing matched.

    With --edit, nothing is requeued if the edited payload is invalid or the editor fails. The error
    then names the file with your text.

    Example: queue-over-sql requeue orders --status failed --kind invoice
    """
    filters, done = Filters(ids=ids, **given), 0
    insist_on_choice(filters, everything=everything)

    def agrees(chosen: ArchiveSelection) -> bool:
        return yes or agreed(chosen, lambda found: f"Requeue {_what(found, queue)}?")

    with filters.queue(session, queue) as target:
        selection = filters.archived(target)
        try:
            if change:
                done = _requeue_edited(session, target, selection, agrees)
            elif agrees(selection):
                with progress_bar(session.output, "Requeueing", selection.count) as progress:
                    done = int(selection.requeue(progress=progress))
        except DuplicateKey as error:
            session.output.error(_taken(error, target))
            raise typer.Exit(ExitCode.FAILED) from error
    report_finished(session.output, queue, "requeued", done, f"Requeued {_what(done, queue)}.")
    filters.check_ids(session.output, done)


@dataclasses.dataclass(frozen=True)
class _EditedMessage:
    id: int
    payload: Any
    # With the user's text.
    file: Path


def _edited(queue: Queue, selection: ArchiveSelection) -> _EditedMessage | None:
    from queue_over_sql import AdoptedQueue, inside

    found, settings = selection.list(limit=2), queue.settings
    if isinstance(queue, AdoptedQueue):
        raise typer.BadParameter(
            "--edit cannot change the row of an adopted table: change the row in its table, then "
            "requeue without --edit"
        )
    if settings.payload == "bytes":
        raise typer.BadParameter("--edit requires a queue with JSON or text payloads")
    if not found:
        return None
    if len(found) > 1:
        raise typer.BadParameter(
            "--edit changes exactly one message, but several match: choose one by its id"
        )
    payload, is_json = found[0].payload, settings.payload == "json"
    text = json.dumps(payload, indent=2, ensure_ascii=False) if is_json else str(payload)
    file = _edited_file(text, ".json" if is_json else ".txt")
    try:
        # As bytes, because reading text would make one line end of each \r\n.
        written = file.read_bytes().decode().removesuffix("\n")
        changed = read_exactly(written) if is_json else written
        inside.check_payload(queue, found[0].kind, changed)
    except ValueError as error:
        raise ValueError(f"{error}. Your text is in {file}") from error
    return _EditedMessage(found[0].id, changed, file)


def _edited_file(text: str, suffix: str) -> Path:
    variable = "VISUAL" if os.environ.get("VISUAL") else "EDITOR"
    editor = os.environ.get(variable) or "vi"
    number, name = tempfile.mkstemp(prefix="queue-over-sql-", suffix=suffix)
    os.close(number)
    Path(name).write_bytes(f"{text}\n".encode())
    try:
        code = subprocess.run([*shlex.split(editor), name], check=False).returncode
    except OSError as error:
        Path(name).unlink()
        raise ValueError(
            f"The editor cannot be started: {error}. Set {variable} to another editor."
        ) from error
    if code:
        raise ValueError(f"The editor ended with exit code {code}. Your text is in {name}")
    return Path(name)


def _requeue_edited(
    session: CommandSession,
    queue: Queue,
    selection: ArchiveSelection,
    agrees: Callable[[ArchiveSelection], bool],
) -> int:
    edited = _edited(queue, selection)
    if edited is None:
        return 0
    # While the user edited it, another message may have come to match, and this one may have gone.
    chosen, done = queue.archive.messages(where=queue.archive.table.c.id == edited.id), 0
    try:
        if agrees(chosen):
            done = int(chosen.requeue(payload=edited.payload))
    finally:
        if done:
            edited.file.unlink()
        else:
            session.output.note(f"Nothing was requeued. Your text is in {edited.file}")
    return done


def _taken(error: DuplicateKey, queue: Queue) -> str:
    name, key = shlex.quote(queue.name), shlex.quote(error.key)
    if queue.messages(key=error.key).first() is not None:
        reason = f"live message {error.id} already has the key {error.key!r}"
        way_out = (
            f"Wait until it is finished, or remove it with: queue-over-sql edit {name} --key "
            f"{key} --remove. Or remove the archived message with: queue-over-sql archive remove "
            f"{name} --key {key}"
        )
    else:
        reason = f"two of the messages have the key {error.key!r} (id {error.id})"
        way_out = (
            f"Only one live message may have a key. List them with: queue-over-sql search {name} "
            f"--archive --key {key}. Requeue one of them with: queue-over-sql requeue {name} ID"
        )
    return f"Queue {queue.name!r}: {reason}; this transaction requeued nothing. {way_out}"
