"""The commands of `archive`: export, prune and remove finished messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from queue_over_sql.cli.edit import (
    agreed,
    insist_on_choice,
    progress_bar,
    removed_how,
    report_finished,
)
from queue_over_sql.cli.options import (
    ARCHIVE_STATUS,
    MESSAGES_PANEL,
    AllOption,
    Filters,
    IdFilter,
    QueueName,
    YesOption,
    argument,
    with_filters,
)
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_lines import message_fields, to_json

if TYPE_CHECKING:
    from queue_over_sql import ArchiveSelection, Queue

PANEL: Final = "Archive"
PAGE: Final = 1_000
STANDARD_OUTPUT: Final = "-"


commands = Commands(
    PANEL,
    "archive",
    group_panel=MESSAGES_PANEL,
    help="Export, prune or remove the finished messages of a queue.",
)


@commands.add("export")
@with_filters(ARCHIVE_STATUS)
def export(
    session: CommandSession,
    *,
    queue: QueueName,
    file: Annotated[
        str,
        argument(
            "FILE",
            "Output file; replaced atomically. Use - for standard output, which is written page "
            "by page.",
        ),
    ],
    **given: Any,
) -> None:
    """Write finished messages to a JSON Lines file, one message per line, ordered by id.

    Without filters it exports the whole archive, without the failed attempts of its messages. It
    removes nothing. The file appears under its
    name only when it is complete.

    Example: queue-over-sql archive export orders failed.jsonl --status failed
    """
    filters = Filters(**given)
    with filters.queue(session, queue) as source:
        if file == STANDARD_OUTPUT:
            written = _write_out(session.output, filters.archived(source))
            session.output.note(_exported(written, queue))
            return
        written = _write_file(session.output, source, filters, Path(file))
    session.output.record(
        {"queue": queue, "file": file, "exported": written},
        human=f"{_exported(written, queue)[:-1]} to {file}.",
    )


def _exported(count: int, queue: str) -> str:
    return f"Exported {_what(count, queue)}."


def _write_file(output: Output, queue: Queue, filters: Filters, file: Path) -> int:
    count = filters.archived(queue).count
    try:
        with progress_bar(output, "Exporting", count, lasting=False) as progress:
            arguments = filters.archive_arguments(queue)
            return queue.archive.export(file, **arguments, progress=progress)
    except OSError as error:
        # The error's own text names the temporary file.
        raise OSError(f"{file} cannot be written: {error.strerror or error}") from error


def _write_out(output: Output, selection: ArchiveSelection) -> int:
    from queue_over_sql import inside

    written = 0
    for page in inside.pages(selection, PAGE):
        output.line("\n".join(to_json(message_fields(message)) for message in page))
        written += len(page)
    return written


@commands.add("prune")
def prune(session: CommandSession, *, queue: QueueName) -> None:
    """Remove finished messages that are beyond the queue's --archive-ttl or --archive-limit.

    Every started service and the reaper daemon also do this in the background, in small steps. This
    command runs until nothing is left to prune. It does not ask for confirmation.
    """
    from queue_over_sql import inside

    with session.queue(queue) as pruned, progress_bar(session.output, "Pruning") as progress:
        while step := inside.prune(pruned):
            progress(progress.done + step)
    session.output.record(
        {"queue": queue, "pruned": progress.done},
        human=f"Pruned {_what(progress.done, queue)}.",
    )


@commands.add("remove")
@with_filters(ARCHIVE_STATUS)
def remove(
    session: CommandSession,
    *,
    queue: QueueName,
    ids: IdFilter = None,
    everything: AllOption = False,
    yes: YesOption = False,
    **given: Any,
) -> None:
    """Permanently remove finished messages from the archive, 500 per transaction.

    It shows how many messages match and asks for confirmation. Exit code 5: some ids did not
    match. Exit code 3: nothing matched.

    Example: queue-over-sql archive remove orders --status done --kind ping
    """
    filters, done = Filters(ids=ids, **given), 0
    insist_on_choice(filters, everything=everything)
    with filters.queue(session, queue) as target:
        selection, how = filters.archived(target), removed_how(target)
        if yes or agreed(selection, lambda found: f"Remove {_what(found, queue)}{how}?"):
            with progress_bar(session.output, "Removing", selection.count) as progress:
                done = int(selection.remove(progress=progress))
    human = f"Removed {_what(done, queue)}{how}."
    report_finished(session.output, queue, "removed", done, human)
    filters.check_ids(session.output, done)


def _what(count: int, queue: str) -> str:
    return f"{counted(count, 'message')} from the archive of queue {queue}"
