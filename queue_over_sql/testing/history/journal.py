"""The journal of a process: a file of JSON lines that survives ``kill -9``.

It needs nothing of the library but an error, so that processes of an earlier release can write it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from queue_over_sql.errors import ClaimLost

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from queue_over_sql import Message


class Stamp(NamedTuple):
    """What names one claim of a message."""

    queue: str
    id: int
    consumer: str
    round: int


@dataclasses.dataclass(frozen=True)
class Event:
    """One fact that one writer noted.

    ``queue``, ``id``, ``consumer``, ``round``, ``attempt``, ``group`` and ``priority`` are those of
    the message and its claim.

    Attributes:
        act: ``intends`` (to publish), ``published``, ``delivered`` (a claim or take), ``started``,
            ``finished``, ``failed`` (of a handler), ``settling`` (it begins), ``settled``,
            ``lost`` (the claim was lost), ``dead`` (a dead letter), ``closing`` (a service of
            this writer stops and gives back what it holds), ``opened`` (the writer started again),
            or another act of your own.
        at: when the act was over, in seconds. The clock is the machine's monotonic one, which all
            its processes share; if the history comes from several machines, seconds since 1970.
        writer: who noted it.
        name: the application's name of the message, if it gave one.
        due: when the message was first due, in seconds since 1970 by the database's clock.
        began: when the act began; None if that is not known.
        verb: of a settle: its verb, such as ``ack``, or its outcome, such as ``done``.
        batch: number of the writer's call.
    """

    act: str
    at: float
    writer: str
    name: str | None = None
    queue: str = ""
    id: int = 0
    consumer: str = ""
    round: int = 0
    attempt: int = 0
    group: str | None = None
    priority: int = 0
    due: float | None = None
    began: float | None = None
    verb: str = ""
    batch: int = 0

    @property
    def stamp(self) -> Stamp:
        """The claim that this event is about."""
        return Stamp(self.queue, self.id, self.consumer, self.round)

    @property
    def since(self) -> float:
        """The earliest time at which the act can have happened."""
        return self.at if self.began is None else self.began


_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Event)
    if field.default is not dataclasses.MISSING
}


class Journal:
    """The file of one writer, only ever appended to; threads may share it.

    Each call writes its events at once and whole. What is written survives the end of the process,
    but not a power failure.

    Args:
        folder: where all writers of one history write; it must exist.
        writer: name of the writer and of its file; default: one that no other process has. A
            process that is started again may have its former name; two at once must not share it.
        name_of: returns the application's name of a message, to find it without its id; for
            example ``lambda message: message.payload["order"]``.
    """

    def __init__(
        self,
        folder: str | Path,
        writer: str = "",
        *,
        name_of: Callable[[Any], str | None] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._given = writer
        self._name_of = name_of
        self._lock = threading.Lock()
        self._batches = 0
        self._pid = 0
        self._file = -1
        self._open()

    def _open(self) -> None:
        host, self._pid = socket.gethostname(), os.getpid()
        unique = f"{host}-{self._pid}-{uuid.uuid4().hex[:8]}"
        # A forked child writes a file of its own.
        forked = self._file >= 0 and self._given
        self.writer = f"{self._given}-{self._pid}" if forked else self._given or unique
        path = self._folder / f"{self.writer}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        now = time.monotonic()
        head = {"act": "opened", "at": now, "writer": self.writer}
        # Monotonic clocks can be compared within one boot of one machine.
        head |= {"machine": _boot(), "epoch": time.time() - now}
        # A kill may have cut off the last line of one that had this name before.
        begin = "\n" if os.fstat(self._file).st_size else ""
        os.write(self._file, (begin + json.dumps(head) + "\n").encode())

    def intends(self, names: Sequence[str]) -> None:
        """These are about to be published: they may be found or not."""
        batch = self.new_batch()
        self.write([self.event("intends", name=name, batch=batch) for name in names])

    def published(self, names: Sequence[str]) -> None:
        """The publish of these has committed: they must be found."""
        batch = self._batches
        self.write([self.event("published", name=name, batch=batch) for name in names])

    def delivered(self, messages: Sequence[Any], *, began: float | None = None) -> None:
        """``consume`` gave these, in this order.

        Args:
            messages: what it returned.
            began: when it was called, by ``time.monotonic``.
        """
        batch = self.new_batch()
        self.write([self._about("delivered", m, batch=batch, began=began) for m in messages])

    @contextlib.contextmanager
    def settling(self, verb: str, messages: Sequence[Message]) -> Generator[None]:
        """Wrap a settle verb: note that it begins, and then what became of each message.

        ``ClaimLost`` is noted and not raised on. After any other exception the outcome is unknown.
        """
        self.write([self._about("settling", m, verb=verb) for m in messages])
        lost: set[int] = set()
        try:
            yield
        except ClaimLost as refusal:
            lost = {m.id for m in refusal.messages}
        self.write(
            [self._about("lost" if m.id in lost else "settled", m, verb=verb) for m in messages]
        )

    def note(self, act: str, message: Any) -> None:
        """Any other fact about a message, such as ``started`` for its handler."""
        self.write([self._about(act, message)])

    def new_batch(self) -> int:
        """The number of a new call."""
        with self._lock:
            self._batches += 1
            return self._batches

    def event(self, act: str, **details: Any) -> Event:
        """An event of now."""
        return Event(act=act, at=time.monotonic(), writer=self.writer, **details)

    def write(self, events: Sequence[Event]) -> None:
        """Append events."""
        if self._pid != os.getpid():
            self._open()
        lines = "".join(json.dumps(_brief(event)) + "\n" for event in events)
        os.write(self._file, lines.encode())

    def _about(self, act: str, message: Any, **details: Any) -> Event:
        due = getattr(message, "scheduled_at", None)
        return self.event(
            act,
            name=None if self._name_of is None else self._name_of(message),
            # Messages of an earlier release, or of a client of the SQL API, have less.
            queue=getattr(message, "queue", ""),
            id=message.id,
            consumer=message.consumer_id or "",
            round=message.consumer_round or 0,
            attempt=message.attempt,
            group=getattr(message, "group", None),
            priority=getattr(message, "priority", 0),
            due=None if due is None else due.timestamp(),
            **details,
        )


def _brief(event: Event) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(event).items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


@dataclasses.dataclass(frozen=True)
class History:
    """What all writers noted.

    Attributes:
        events: in order of time.
        tolerance: seconds by which the clocks of the writers may differ; 0 if all of them were on
            one machine.
    """

    events: list[Event]
    tolerance: float = 0.0


def read(folder: str | Path, *, tolerance: float = 0.1) -> History:
    """Read the journals of a folder; a line that a kill cut off is left out.

    Args:
        folder: where the writers wrote.
        tolerance: if they ran on several machines: seconds by which their clocks may differ.

    Raises:
        FileNotFoundError: nobody wrote in the folder, or it is not there.
        ValueError: a file has a line that is no event.
    """
    paths = sorted(Path(folder).glob("*.jsonl"))
    if not paths:
        msg = f"{folder} has no journal (*.jsonl): give the folder in which the recorders wrote"
        raise FileNotFoundError(msg)
    runs = [run for path in paths for run in _read_file(path)]
    several = len({run.machine for run in runs}) > 1
    events = [
        dataclasses.replace(event, at=event.at + run.epoch, began=_later(event.began, run.epoch))
        if several
        else event
        for run in runs
        for event in run.events
    ]
    events.sort(key=lambda event: event.at)
    return History(events, tolerance if several else 0.0)


def _later(at: float | None, by: float) -> float | None:
    return None if at is None else at + by


class _Run(NamedTuple):
    """What a process noted from one opening of its file on."""

    machine: str
    epoch: float
    events: list[Event]


def _read_file(path: Path) -> list[_Run]:
    runs: list[_Run] = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n") or not line.strip():
            continue
        try:
            values = json.loads(line)
            if values["act"] == "opened":
                # Who had this name before has ended.
                before = [Event("opened", values["at"], values["writer"])] if runs else []
                runs.append(_Run(values["machine"], values["epoch"], before))
            else:
                event = Event(**values)
                runs[-1].events.append(event)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            if _opens(lines[number : number + 1]):
                continue
            msg = f"{path}, line {number} is no event of a history: {error}"
            raise ValueError(msg) from error
    return runs


def _opens(line: Sequence[str]) -> bool:
    """Whether a process opened the file at this line, so that the one before it was cut off."""
    return bool(line) and line[0].startswith('{"act": "opened"')
