"""Reading lines of input as batches of messages that know their line numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import typer
from rich.progress import Progress, TaskID

from queue_over_sql import Publication
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.values import counted
from queue_over_sql.cli.wire import LineReader

READ_BYTES = 1 << 20


def is_standard_input(stream: BinaryIO) -> bool:
    """Whether `stream` is this process's own, whose size nobody knows."""
    return sys.stdin is not None and stream is sys.stdin.buffer


class BadLineError(Exception):
    """A line of the input that is no message."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")


@dataclass
class Batch:
    """What is published in one transaction, and the number of each message's line, from 1."""

    publications: list[Publication] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def name(self) -> str:
        """The lines in words: ``line 3``, ``lines 1-500``."""
        first, last = self.numbers[0], self.numbers[-1]
        return f"line {first}" if first == last else f"lines {first}-{last}"


class LineSource:
    """Reads publications from a stream in batches and moves a progress bar.

    The bar counts bytes of a file, whose total is known, and messages of a pipe.

    Attributes:
        count: messages that are published so far.
        next_line: number of the first line that is not.
    """

    def __init__(self, stream: BinaryIO, reader: LineReader, bar: Progress, output: Output) -> None:
        self.count = 0
        self.next_line = 1
        self._stream = stream
        self._reader = reader
        self._bar = bar
        self._read_bytes = 0
        self._task = self._start(output)

    def _start(self, output: Output) -> TaskID:
        if not is_standard_input(self._stream):
            size = os.fstat(self._stream.fileno()).st_size
            return self._bar.add_task("Publishing", total=size)
        if sys.stdin.isatty():
            output.note("Reading JSON Lines from the terminal; end with Ctrl-D.")
        return self._bar.add_task("Publishing", total=None)

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of up to `size` messages; a bad line is a `BadLineError` after those before it.

        What a pipe has is handed out at once, so that a slow writer's lines do not wait for more.
        """
        number = 0
        for lines in self._available_lines():
            for start in range(0, len(lines), size):
                batch, error = self._read_batch(lines[start : start + size], number + start)
                if batch.publications:
                    yield batch
                if error is not None:
                    raise error
            number += len(lines)

    def _available_lines(self) -> Iterator[list[bytes]]:
        begun: list[bytes] = []
        # Buffered streams of standard input and of files all have read1, BinaryIO does not say so.
        read: Callable[[int], bytes] = getattr(self._stream, "read1", self._stream.read)
        while chunk := read(READ_BYTES):
            complete, newline, rest = chunk.rpartition(b"\n")
            if newline:
                # Joined once only: a long line comes in many chunks.
                yield b"".join((*begun, complete)).split(b"\n")
                begun = []
            begun.append(rest)
        if last := b"".join(begun):
            yield [last]

    def _read_batch(self, lines: list[bytes], before: int) -> tuple[Batch, BadLineError | None]:
        batch = Batch()
        for number, line in enumerate(lines, start=before + 1):
            self._read_bytes += len(line) + 1
            try:
                if line.strip():
                    batch.publications.append(self._reader.read(line.decode().rstrip("\r")))
                    batch.numbers.append(number)
            except (ValueError, RecursionError, typer.BadParameter) as error:
                return batch, BadLineError(number, str(error))
        return batch, None

    def published(self, batch: Batch) -> None:
        """Note that the messages of `batch` are committed."""
        self.count += len(batch.publications)
        self.next_line = batch.numbers[-1] + 1
        if self._bar.tasks[self._task].total is None:
            self._bar.update(self._task, completed=self.count)
        else:
            self._bar.update(
                self._task,
                completed=self._read_bytes,
                description=f"Publishing {counted(self.count, 'message')}",
            )
