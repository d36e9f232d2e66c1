"""Publishing one message or a stream of lines, in batches and with progress."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import typer
from rich.progress import Progress

from queue_over_sql import (
    DatabaseUnavailable,
    Publication,
    Published,
    Queue,
    QueueError,
    QueueService,
)
from queue_over_sql.cli.advice import in_words
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.lines import BadLineError, Batch, LineSource, is_standard_input
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.probing import first_refused
from queue_over_sql.cli.values import counted
from queue_over_sql.cli.wire import LineFormat, LineReader


class RefusedBatchError(Exception):
    """A batch of lines that was not published; the text names the lines."""


def publish_one(
    output: Output, queue: Queue, reader: LineReader, text: str, on_conflict: str
) -> None:
    """Publish the message of the argument `text` and report its id and outcome."""
    publication = read_argument(reader, text)
    with wrong_columns_told():
        [published] = queue.publish_many([publication], on_conflict=on_conflict)
    output.record(
        {"queue": queue.name, "id": published.id, "outcome": published.outcome},
        human=f"Message {published.id} {published.outcome} in queue {queue.name}.",
    )


@contextmanager
def wrong_columns_told() -> Iterator[None]:
    """Tell of a column that the queue does not have, or of a value of the wrong type, as usual."""
    try:
        yield
    except TypeError as error:
        raise ValueError(str(error)) from error


def read_argument(
    reader: LineReader, text: str, *, otherwise: str | None = "--format text"
) -> Publication:
    """The message that the argument `text` is; a usage error says what is wrong with it.

    The error names `otherwise`, the option for those who meant a plain text.
    """
    try:
        return reader.read(text)
    except (ValueError, RecursionError) as error:
        advice = "A plain string is written '\"like this\"'"
        if otherwise is not None:
            advice = f"{advice}, or use {otherwise}"
        raise typer.BadParameter(f"{error}. {advice}", param_hint="PAYLOAD") from error


def argument_format(queue: Queue) -> LineFormat:
    """What an argument to `queue` is, where no option says so."""
    return LineFormat.PAYLOAD if queue.settings.payload == "json" else LineFormat.TEXT


def publish_lines(
    output: Output,
    service: QueueService,
    queue: Queue,
    reader: LineReader,
    path: Path | None,
    *,
    on_conflict: str,
    batch: int,
) -> None:
    """Publish the lines of `path` (None or ``-``: standard input), `batch` in one transaction.

    Exits with code 1 after an error, 4 when the database cannot be reached, and 2 after a line that
    is no message; in all cases, and when it is interrupted, everything before the failed batch or
    line is published, and the message says from which line on to go on.
    """
    outcomes: Counter[str] = Counter()
    at_work: Batch | None = None
    with _opened(path) as stream, _progress_bar(output, stream) as bar:
        source = LineSource(stream, reader, bar, output)
        try:
            for lines in source.batches(batch):
                at_work = lines
                with _naming_lines(service, queue, lines, on_conflict):
                    outcomes.update(_publish_batch(queue, lines, on_conflict))
                source.published(lines)
                at_work = None
        except (BadLineError, RefusedBatchError) as error:
            output.error(f"{error}\n{_progress(source, error)}")
            raise typer.Exit(_exit_code(error)) from error
        except (KeyboardInterrupt, OSError):
            output.note(_progress_cut_off(source, at_work))
            raise
    total = sum(outcomes.values())
    output.record(
        {"queue": queue.name, "published": total, **outcomes},
        human=f"Published {counted(total, 'message')} to queue {queue.name}"
        f"{_outcomes_in_words(outcomes)}.",
    )


@contextmanager
def _naming_lines(
    service: QueueService, queue: Queue, lines: Batch, on_conflict: str
) -> Iterator[None]:
    try:
        yield
    except DatabaseUnavailable as error:
        raise RefusedBatchError(f"in {lines.name()}: {error}") from error
    except (QueueError, ValueError, TypeError) as error:
        found = first_refused(service, queue, lines.publications, on_conflict)
        if found is None:
            raise RefusedBatchError(f"in {lines.name()}: {in_words(error)}") from error
        place, reason = found
        raise RefusedBatchError(f"line {lines.numbers[place]}: {in_words(reason)}") from error


def _progress_bar(output: Output, stream: BinaryIO) -> Progress:
    of_file = not is_standard_input(stream)
    return output.progress(total_known=of_file, of_bytes=of_file)


def _progress(source: LineSource, error: Exception) -> str:
    if isinstance(error.__cause__, DatabaseUnavailable):
        # The connection may have broken after the commit.
        rest = "If the connection broke just now, those of this transaction may be, too."
        return f"{_done(source)} {rest}"
    return _progress_cut_off(source, None)


def _progress_cut_off(source: LineSource, at_work: Batch | None) -> str:
    rest = f"Line {source.next_line} and what follows are not: send these again."
    if at_work is not None:
        rest = (
            f"Those of {at_work.name()} may be, too: their transaction was cut off. "
            "What follows is not."
        )
    return f"{_done(source)} {rest}"


def _done(source: LineSource) -> str:
    return f"Published so far: {counted(source.count, 'line')}."


def _exit_code(error: Exception) -> ExitCode:
    if isinstance(error, BadLineError):
        return ExitCode.USAGE
    unreachable = isinstance(error.__cause__, DatabaseUnavailable)
    return ExitCode.UNAVAILABLE if unreachable else ExitCode.FAILED


def _outcomes_in_words(outcomes: Counter[str]) -> str:
    if set(outcomes) <= {"created"}:
        return ""
    return ": " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))


def _publish_batch(queue: Queue, lines: Batch, on_conflict: str) -> Counter[str]:
    batch = lines.publications
    if on_conflict == "raise":
        return Counter(created=queue.load(batch, batch_size=len(batch)))
    results: list[Published] = queue.publish_many(batch, on_conflict=on_conflict)
    return Counter(str(published.outcome) for published in results)


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None or str(path) == "-":
        if sys.stdin is None:
            raise ValueError(
                "standard input is closed, so there are no lines to publish; "
                "give a PAYLOAD, or lines by --file or a pipe"
            )
        yield sys.stdin.buffer
        return
    with path.open("rb") as stream:
        yield stream
