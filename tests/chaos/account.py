"""The history of each message, from the journals of all processes and the tables at the end."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Engine, text

from tests.chaos.journal import Entry, Stamp, read_journals

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Hold:
    """One delivery, and the time during which its claim was valid for sure."""

    delivery: Entry
    until: float
    ending: str

    def overlaps(self, later: Hold) -> bool:
        """Whether the later delivery arrived while this claim was still held."""
        return later.delivery.at < self.until


class Account:
    """What the journals of one folder say."""

    def __init__(self, folder: Path) -> None:
        """Read every journal of the folder."""
        self.entries = read_journals(folder)
        self._last_sign: dict[str, float] = {e.writer: e.at for e in self.entries}

    def tokens(self, act: str, verb: str | None = None) -> list[str]:
        """The messages of all entries with this act (and verb), with repetitions."""
        return [str(e.token) for e in self._of(act) if verb in (None, e.verb)]

    def batches(self, act: str) -> list[set[str]]:
        """The tokens of each batch that some writer noted with this act."""
        found: dict[tuple[str, int], set[str]] = defaultdict(set)
        for entry in self._of(act):
            found[entry.writer, entry.batch].add(str(entry.token))
        return list(found.values())

    def sequences(self) -> dict[str, list[str]]:
        """What each consumer was given, in the order in which it was given."""
        found: dict[str, list[str]] = defaultdict(list)
        for entry in self._of("delivered"):
            found[entry.consumer].append(str(entry.token))
        return dict(found)

    def rounds_shared_by_batches(self) -> list[tuple[str, int]]:
        """Every consumer round that was stamped on more than one batch."""
        batches = {(e.writer, e.batch, e.consumer, e.round) for e in self._of("delivered")}
        uses = Counter((consumer, round_) for _, _, consumer, round_ in batches)
        return [stamp for stamp, count in uses.items() if count > 1]

    def repeated_stamps(self) -> list[Stamp]:
        """Every delivery whose message, consumer and round were those of another one."""
        return repeated([e.stamp for e in self._of("delivered")])

    def double_holds(self) -> list[tuple[Entry, Entry]]:
        """Every delivery of a message while another consumer still held a valid claim on it."""
        found = []
        for holds in self._holds().values():
            for earlier, later in pairwise(holds):
                if earlier.overlaps(later):
                    found.append((earlier.delivery, later.delivery))
        return found

    def _holds(self) -> dict[int, list[Hold]]:
        """Per message its holds in time order."""
        ends: dict[Stamp, dict[str, Entry]] = defaultdict(dict)
        for entry in self.entries:
            ends[entry.stamp][entry.act] = entry
        found: dict[int, list[Hold]] = defaultdict(list)
        for delivery in self._of("delivered"):
            found[delivery.id].append(self._hold(delivery, ends[delivery.stamp]))
        return found

    def _hold(self, delivery: Entry, acts: dict[str, Entry]) -> Hold:
        """Until when this claim was valid for sure.

        A settle that succeeded proves that the claim was held when it began; a refused one proves
        nothing; a killed consumer held everything until its last sign of life.
        """
        if "settled" in acts:
            return Hold(delivery, acts["settling"].at, "settled")
        if "lost" in acts:
            return Hold(delivery, delivery.at, "lost")
        last = acts.get("settling")
        return Hold(delivery, last.at if last else self._last_sign[delivery.writer], "killed")

    def _of(self, act: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.act == act]


def repeated(things: Sequence[T]) -> list[T]:
    """Those that come more than once."""
    return [thing for thing, count in Counter(things).items() if count > 1]


def archived(sql: Engine, queue: str = "jobs") -> list[tuple[str, str]]:
    """Token and outcome of every row of the queue's archive, in publish order."""
    rows = _rows(sql, f"SELECT payload, outcome FROM queue_{queue}_archive")
    return [(str(payload["token"]), outcome) for payload, outcome in rows]


def archived_tokens(sql: Engine, outcome: str, queue: str = "jobs") -> list[str]:
    """The tokens of the archive's rows with this outcome, in publish order."""
    return [token for token, ended in archived(sql, queue) if ended == outcome]


def live_payloads(sql: Engine, queue: str = "jobs") -> list[dict[str, object]]:
    """The payloads of all messages that are still in the queue, in publish order."""
    return [payload for payload, _ in _rows(sql, f"SELECT payload, id FROM queue_{queue}")]


def live_tokens(sql: Engine, queue: str = "jobs") -> list[str]:
    """The tokens of all messages that are still in the queue, in publish order."""
    return [str(payload["token"]) for payload in live_payloads(sql, queue)]


def _rows(sql: Engine, statement: str) -> list[tuple[dict[str, object], str]]:
    """Read around the library, so that its own reading cannot hide a loss."""
    with sql.connect() as connection:
        rows = connection.execute(text(f"{statement} ORDER BY id")).all()
    return [(_payload(row[0]), str(row[1])) for row in rows]


def _payload(stored: object) -> dict[str, object]:
    """Some drivers decode a JSON column by themselves."""
    loaded = stored if isinstance(stored, dict) else json.loads(str(stored))
    return dict(loaded)


def archived_count(sql: Engine, queue: str = "jobs") -> int:
    """How many rows the queue's archive has."""
    with sql.connect() as connection:
        count = connection.execute(text(f"SELECT count(*) FROM queue_{queue}_archive")).scalar_one()
    return int(count)


def create_effects(sql: Engine) -> None:
    """The table into which transactional handlers write; without any key, so it shows repeats."""
    with sql.begin() as connection:
        connection.execute(text("CREATE TABLE effects (token VARCHAR(100), attempt INTEGER)"))


def effects(sql: Engine) -> list[tuple[str, int]]:
    """Token and attempt of every effect that was committed."""
    with sql.connect() as connection:
        rows = connection.execute(text("SELECT token, attempt FROM effects ORDER BY token")).all()
    return [(str(row[0]), int(row[1])) for row in rows]
