"""Messages as JSON lines: written by `consume` and `peek`, read by `publish`."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from queue_over_sql import Message, Publication
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.values import parse_duration, parse_instant
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_lines import (
    DELIVERY_FIELDS,
    ENCODING_FIELD,
    in_base64,
    to_json,
)
from queue_over_sql.values.json_text import read_exactly
from queue_over_sql.values.options import DURATIONS, PUBLISH_OPTIONS

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

READ_OTHERWISE = {"payload", ENCODING_FIELD, "id", "queue", *DELIVERY_FIELDS}
"""Fields of a written message that ``publish`` ignores."""


class LineFormat(StrEnum):
    """How to read one line of input."""

    PAYLOAD = "payload"
    TEXT = "text"
    MESSAGE = "message"


def payload_line(message: Message, payload_type: str) -> str:
    """The payload alone: compact JSON, text as it is, or bytes in Base64."""
    if isinstance(message.payload, bytes):
        return in_base64(message.payload)
    return str(message.payload) if payload_type == "text" else to_json(message.payload)


def payload_bytes(message: Message, payload_type: str) -> bytes:
    """The payload for a command's standard input: bytes unchanged, anything else as UTF-8."""
    payload = message.payload
    return payload if isinstance(payload, bytes) else payload_line(message, payload_type).encode()


@dataclasses.dataclass(frozen=True)
class LineReader:
    """Turns lines of input into publications for a queue of one payload type.

    Args:
        payload_type: ``json``, ``text`` or ``bytes``, of the queue.
        line_format: how to read a line.
        defaults: fields of `Publication` for those that a line does not have.
    """

    payload_type: str
    line_format: LineFormat
    defaults: Mapping[str, Any]

    def read(self, line: str) -> Publication:
        """The publication that `line` describes; ValueError says what is wrong with it."""
        if self.line_format is LineFormat.TEXT:
            return Publication(self._text_payload(line), **self.defaults)
        try:
            value = read_exactly(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON ({error.msg} at character {error.pos + 1})") from error
        if self.line_format is LineFormat.MESSAGE:
            return self._message(value)
        return Publication(self._json_payload(value), **self.defaults)

    def _text_payload(self, line: str) -> str | bytes:
        return line.encode() if self.payload_type == "bytes" else line

    def _json_payload(self, value: Any) -> Any:
        if self.payload_type == "json":
            return value
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004 - the input is wrong, not an argument's type
                f"the queue has {self.payload_type} payloads, so a line must be a JSON string"
                f"{' of Base64' if self.payload_type == 'bytes' else ''}"
            )
        return value if self.payload_type == "text" else _from_base64(value)

    def _message(self, value: Any) -> Publication:
        if not isinstance(value, dict) or "payload" not in value:
            raise ValueError('this is not a message; a message looks like {"payload": …, "key": …}')
        unknown = value.keys() - READERS.keys() - READ_OTHERWISE
        if unknown:
            known = ", ".join(sorted(READERS.keys() | {"payload"}))
            raise ValueError(
                f"unknown field {', '.join(sorted(unknown))}; the fields of a message are {known}"
            )
        own = {
            name: read(value[name]) for name, read in READERS.items() if value.get(name) is not None
        }
        return Publication(self._json_payload(value["payload"]), **{**self.defaults, **own})


def _from_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not Base64 ({error})") from error


def _as_given(value: Any) -> Any:
    return value


READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(PUBLISH_OPTIONS, _as_given),
    **dict.fromkeys(DURATIONS, parse_duration),
    "at": parse_instant,
}


READ_BYTES = 1 << 20


def is_standard_input(stream: BinaryIO) -> bool:
    """Whether `stream` is this process's standard input, whose size is unknown."""
    return sys.stdin is not None and stream is sys.stdin.buffer


class BadLineError(Exception):
    """An input line that is not a valid message."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")


@dataclass
class Batch:
    """The messages of one transaction, and the line number of each, from 1."""

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
        count: number of messages published so far.
        next_line: number of the first line that is not published yet.
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
        """Yield batches of up to `size` messages; a bad line raises after the messages before it.

        Lines from a pipe are yielded as they arrive, so that they do not wait for a slow writer.
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
        # Streams of standard input and of files have read1, though BinaryIO lacks it.
        read: Callable[[int], bytes] = getattr(self._stream, "read1", self._stream.read)
        while chunk := read(READ_BYTES):
            complete, newline, rest = chunk.rpartition(b"\n")
            if newline:
                # Join only once, because a long line arrives in many chunks.
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
