"""The journal of a process: a file that survives `kill -9`, with one JSON line per event."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queue_over_sql import ClaimLost, Message
from queue_over_sql.aio import AsyncMessage

Stamp = tuple[int, str, int]
"""Message id, consumer id, consumer round: what names one delivery."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One fact of one writer. `at` is the machine's monotonic clock, which all processes share."""

    act: str
    at: float
    writer: str
    token: str | None = None
    id: int = 0
    consumer: str = ""
    round: int = 0
    attempt: int = 0
    verb: str = ""
    batch: int = 0

    @property
    def stamp(self) -> Stamp:
        """The delivery that this entry is about."""
        return (self.id, self.consumer, self.round)


class Journal:
    """The append-only file of one writer; safe to share between the threads of a process."""

    def __init__(self, folder: str | Path, writer: str = "") -> None:
        """Open `<folder>/<writer>.jsonl`; the writer is named after the process unless told."""
        self.writer = writer or f"process-{os.getpid()}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(Path(folder) / f"{self.writer}.jsonl", flags, 0o644)
        self._lock = threading.Lock()
        self._batches = 0

    def intends(self, tokens: Sequence[str]) -> None:
        """These are about to be published: they may be found or not."""
        self._batches += 1
        self._write([self._entry("intends", token=t, batch=self._batches) for t in tokens])

    def published(self, tokens: Sequence[str]) -> None:
        """The publish of these has committed: they must be found."""
        self._write([self._entry("published", token=t, batch=self._batches) for t in tokens])

    def delivered(self, messages: Sequence[Message]) -> None:
        """`consume` gave these, in this order."""
        with self._lock:
            self._batches += 1
            batch = self._batches
        self._write([self._about("delivered", m, batch=batch) for m in messages])

    @contextmanager
    def settling(self, verb: str, messages: Sequence[Message]) -> Iterator[None]:
        """Note a settle verb before it runs, and afterwards what became of each message."""
        self._write([self._about("settling", m, verb=verb) for m in messages])
        lost: set[int] = set()
        try:
            yield
        except ClaimLost as refusal:
            lost = {m.id for m in refusal.messages}
        self._write(
            [self._about("lost" if m.id in lost else "settled", m, verb=verb) for m in messages]
        )

    def note(self, act: str, message: Message | AsyncMessage) -> None:
        """Any other fact about a message, such as the start of its handler."""
        self._write([self._about(act, message)])

    def _about(self, act: str, message: Message | AsyncMessage, **details: Any) -> Entry:
        return self._entry(
            act,
            token=_token(message),
            id=message.id,
            consumer=message.consumer_id,
            round=message.consumer_round,
            attempt=message.attempt,
            **details,
        )

    def _entry(self, act: str, **details: Any) -> Entry:
        return Entry(act=act, at=time.monotonic(), writer=self.writer, **details)

    def _write(self, entries: Sequence[Entry]) -> None:
        lines = "".join(json.dumps(dataclasses.asdict(entry)) + "\n" for entry in entries)
        os.write(self._file, lines.encode())


def read_journals(folder: Path) -> list[Entry]:
    """All entries of all writers in time order; a line that a kill cut off is left out."""
    entries = [
        Entry(**json.loads(line))
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return sorted(entries, key=lambda entry: entry.at)


def _token(message: Message | AsyncMessage) -> str:
    """The tests' payloads are `{"token": …}`: a name given before the database gave an id."""
    return str(message.payload["token"])
