"""Publishing one message or a stream of lines, in batches and with progress."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import typer
from rich.progress import Progress, TaskID

from queue_over_sql import Publication, Published, Queue, QueueError
from queue_over_sql.cli.exits import ExitCode
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.wire import LineReader

READ_BYTES = 1 << 20


class BadLineError(Exception):
    """A line of the input that is no message."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")


def publish_one(
    output: Output, queue: Queue, reader: LineReader, text: str, on_conflict: str
) -> None:
    """Publish the message of the argument `text` and report its id and outcome."""
    try:
        publication = reader.read(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"{error}. A plain string is written '\"like this\"', or use --format text",
            param_hint="PAYLOAD",
        ) from error
    with _refusals_as_value_errors():
        [published] = queue.publish_many([publication], on_conflict=on_conflict)
    output.record(
        {"queue": queue.name, "id": published.id, "outcome": published.outcome},
        human=f"Message {published.id} {published.outcome} in queue {queue.name}.",
    )


def publish_lines(
    output: Output,
    queue: Queue,
    reader: LineReader,
    path: Path | None,
    *,
    on_conflict: str,
    batch: int,
) -> None:
    """Publish the lines of `path` (None or ``-``: standard input), `batch` in one transaction.

    Exits with code 1 after an error and with 2 after a line that is no message; in both cases all
    lines before the failed batch or line are published, and the message says how many these are.
    """
    outcomes: Counter[str] = Counter()
    lines = 0
    with (
        _opened(path) as stream,
        output.progress(total_known=stream is not sys.stdin.buffer) as bar,
    ):
        source = LineSource(stream, reader, bar, output)
        try:
            for publications in source.batches(batch):
                with _refusals_as_value_errors():
                    outcomes.update(_publish_batch(queue, publications, on_conflict))
                lines = source.published(len(publications))
        except (BadLineError, QueueError, ValueError) as error:
            output.error(f"{error}\n{lines:,} lines before it are published; the rest is not.")
            code = ExitCode.USAGE if isinstance(error, BadLineError) else ExitCode.FAILED
            raise typer.Exit(code) from error
    output.record(
        {"queue": queue.name, "published": sum(outcomes.values()), **outcomes},
        human=f"Published {sum(outcomes.values()):,} messages to queue {queue.name}"
        f"{_outcomes_in_words(outcomes)}.",
    )


@contextmanager
def _refusals_as_value_errors() -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        # A column that the queue does not have, or a value of the wrong type in a line.
        raise ValueError(str(error)) from error


def _outcomes_in_words(outcomes: Counter[str]) -> str:
    if set(outcomes) <= {"created"}:
        return ""
    return ": " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))


def _publish_batch(queue: Queue, batch: list[Publication], on_conflict: str) -> Counter[str]:
    if on_conflict == "raise":
        return Counter(created=queue.load(batch, batch_size=len(batch)))
    results: list[Published] = queue.publish_many(batch, on_conflict=on_conflict)
    return Counter(str(published.outcome) for published in results)


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None or str(path) == "-":
        yield sys.stdin.buffer
        return
    with path.open("rb") as stream:
        yield stream


class LineSource:
    """Reads publications from a stream in batches and moves a progress bar.

    The bar counts bytes of a file, whose total is known, and messages of a pipe.
    """

    def __init__(self, stream: BinaryIO, reader: LineReader, bar: Progress, output: Output) -> None:
        self._stream = stream
        self._reader = reader
        self._bar = bar
        self._read_bytes = 0
        self._published = 0
        self._task = self._start(output)

    def _start(self, output: Output) -> TaskID:
        if self._stream is not sys.stdin.buffer:
            size = os.fstat(self._stream.fileno()).st_size
            return self._bar.add_task("Publishing", total=size)
        if sys.stdin.isatty():
            output.note("Reading JSON Lines from the terminal; end with Ctrl-D.")
        return self._bar.add_task("Publishing", total=None)

    def batches(self, size: int) -> Iterator[list[Publication]]:
        """Lists of up to `size` publications; a bad line is a `BadLineError` after those before it.

        What a pipe has is handed out at once, so that a slow writer's lines do not wait for more.
        """
        number = 0
        for lines in self._available_lines():
            for start in range(0, len(lines), size):
                batch, error = self._read_batch(lines[start : start + size], number + start)
                if batch:
                    yield batch
                if error is not None:
                    raise error
            number += len(lines)

    def _available_lines(self) -> Iterator[list[bytes]]:
        rest = b""
        # Buffered streams of standard input and of files all have read1, BinaryIO does not say so.
        read: Callable[[int], bytes] = getattr(self._stream, "read1", self._stream.read)
        while chunk := read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            yield lines
        if rest:
            yield [rest]

    def _read_batch(
        self, lines: list[bytes], number: int
    ) -> tuple[list[Publication], BadLineError | None]:
        batch: list[Publication] = []
        for offset, line in enumerate(lines, start=1):
            self._read_bytes += len(line) + 1
            try:
                if line.strip():
                    batch.append(self._reader.read(line.decode().rstrip("\r")))
            except (ValueError, RecursionError, typer.BadParameter) as error:
                return batch, BadLineError(number + offset, str(error))
        return batch, None

    def published(self, count: int) -> int:
        """Note that `count` more messages are committed; returns how many there are now."""
        self._published += count
        if self._bar.tasks[self._task].total is None:
            self._bar.update(self._task, completed=self._published)
        else:
            self._bar.update(
                self._task,
                completed=self._read_bytes,
                description=f"Publishing {self._published:,} messages",
            )
        return self._published
