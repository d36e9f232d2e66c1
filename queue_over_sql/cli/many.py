"""What commands share that change many messages at once: which ones, how far, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from queue_over_sql import AdoptedQueue, Queue
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.filters import Filters
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.values import counted


def insist_on_choice(filters: Filters, *, everything: bool) -> None:
    """Refuse to mean all messages because nothing was said, and to mean some and all."""
    if filters.given and everything:
        raise typer.BadParameter("--all and filters contradict each other: give one of them")
    if not filters.given and not everything:
        raise typer.BadParameter(
            "say which messages: by filters such as --key, --payload or --where, or with --all"
        )


def removed_how(queue: Queue) -> str:
    """What removal means: an adopted table keeps its rows."""
    return " (the rows stay in the table)" if isinstance(queue, AdoptedQueue) else " for ever"


class Progress:
    """How many messages are done: called with the number so far, and kept for the report."""

    def __init__(self, show: Callable[[int], object]) -> None:
        self.done = 0
        self._show = show

    def __call__(self, done: int) -> None:
        """Note and show the number so far."""
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
    """Show on a terminal how far it is; where it ends early, say how much was done by then.

    Args:
        output: where.
        doing: what is done, such as ``Removing``.
        total: counts the messages; asked only where it is shown. None: not known.
        lasting: what is done stays done when the rest is not.
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
                output.note(f"Done before this: {counted(progress.done, 'message')}.")
            raise


def end_with_nothing(output: Output, where: str) -> None:
    """End with exit code 3, since there was no message to change."""
    output.note(f"No such message in {where}.")
    raise typer.Exit(ExitCode.NOTHING)
