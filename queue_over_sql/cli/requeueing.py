"""The command that gives finished messages a new life: `requeue`."""

from __future__ import annotations

import shlex

import typer

from queue_over_sql import ArchiveSelection, DuplicateKey, Queue
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.filters import ARCHIVE_STATUS, Filters, filtered
from queue_over_sql.cli.many import end_with_nothing, insist_on_choice, progress_bar
from queue_over_sql.cli.options import MESSAGES_PANEL, AllOption, QueueName, YesOption, confirm
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import counted


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "requeue", panel=MESSAGES_PANEL)(filtered(requeue, status=ARCHIVE_STATUS))


def requeue(
    session: Session,
    *,
    queue: QueueName,
    filters: Filters,
    everything: AllOption = False,
    yes: YesOption = False,
) -> None:
    """Send finished messages of the archive again, due now and with all attempts before them.

    Each gets a new id and leaves the archive in the same transaction, of 500 messages each; why it
    had failed stands in its header previous_error. A row of an adopted table is sent again as it
    is. Says how many, and asks. Exit code 3 when nothing matched.

    Example: queue-over-sql requeue orders --status failed --kind invoice
    """
    insist_on_choice(filters, everything=everything)
    with session.queue(queue) as target:
        selection = filters.archived(target)
        done = _requeue(session, target, selection) if yes or _agreed(queue, selection) else 0
    session.output.record(
        {"queue": queue, "requeued": done},
        human=f"Requeued {counted(done, 'message')} of queue {queue}." if done else None,
    )
    if not done:
        end_with_nothing(session.output, f"the archive of queue {queue}")


def _agreed(queue: str, selection: ArchiveSelection) -> bool:
    """Whether there is something to requeue, after a yes; a no ends the command."""
    found = selection.count()
    if found:
        confirm(f"Requeue {counted(found, 'message')} of queue {queue}?", yes=False)
    return found > 0


def _requeue(session: Session, queue: Queue, selection: ArchiveSelection) -> int:
    try:
        with progress_bar(session.output, "Requeueing", selection.count) as progress:
            return int(selection.requeue(progress=progress))
    except DuplicateKey as error:
        session.output.error(_taken(error, queue))
        raise typer.Exit(ExitCode.FAILED) from error


def _taken(error: DuplicateKey, queue: Queue) -> str:
    """Which key stands in the way, and what to type about it."""
    name, key = shlex.quote(queue.name), shlex.quote(error.key)
    if queue.messages(key=error.key).first() is not None:
        reason = f"message {error.id} has the key {error.key!r} already"
        way_out = (
            "Let that one finish, remove it with: "
            f"queue-over-sql edit {name} --key {key} --remove, or give up the finished one with: "
            f"queue-over-sql archive remove {name} --key {key}"
        )
    else:
        reason = f"the key {error.key!r} would be taken twice (id {error.id})"
        way_out = (
            "Only one message of a key can be live. Look at them with: "
            f"queue-over-sql search {name} --archive --key {key}, and send one of them with: "
            f"queue-over-sql requeue {name} --where 'id = …'"
        )
    return f"Queue {queue.name!r}: {reason}; nothing of that transaction was requeued. {way_out}"
