"""The history of each message, from the journals of all processes and the tables at the end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, text

from queue_over_sql.testing.history import Event, Rules, Violation, check, read

T = TypeVar("T")
LEASED = Rules(lease=2.0, restored_within=20.0)
"""No test has a shorter lease; what the dead held is back after two seconds on a quiet machine."""


class Account:
    """What the journals of one folder say."""

    def __init__(self, folder: Path, dead: Mapping[str, float] | None = None) -> None:
        """Read every journal of the folder; `dead` says when writers were killed."""
        self._history = read(folder)
        self._dead = dead or {}

    @property
    def events(self) -> list[Event]:
        """All that was noted, in order of time."""
        return self._history.events

    def check(
        self, sql: Engine | None = None, rules: Rules = LEASED, queue: str = "jobs", **state: Any
    ) -> list[Violation]:
        """The broken promises of the queue, which keeps all finished messages.

        `sql`: where it is empty again; without it losses are not looked for.
        """
        if sql is not None:
            finished = [token for token, _ in archived(sql, queue)]
            state |= {"left": {queue: live_tokens(sql, queue)}, "finished": {queue: finished}}
        return check(self._history, {queue: rules}, **state, dead=self._dead).violations

    def tokens(self, act: str, verb: str | None = None) -> list[str]:
        """The messages of all entries with this act (and verb), with repetitions."""
        return [e.name for e in self._of(act) if e.name is not None and verb in (None, e.verb)]

    def batches(self, act: str) -> list[set[str]]:
        """The tokens of each batch that some writer noted with this act."""
        found: dict[tuple[str, int], set[str]] = defaultdict(set)
        for event in self._of(act):
            found[event.writer, event.batch].add(str(event.name))
        return list(found.values())

    def sequences(self) -> dict[str, list[str]]:
        """What each consumer was given, in the order in which it was given."""
        found: dict[str, list[str]] = defaultdict(list)
        for event in self._of("delivered"):
            found[event.consumer].append(str(event.name))
        return dict(found)

    def rounds_shared_by_batches(self) -> list[tuple[str, int]]:
        """Every consumer round that was stamped on more than one batch."""
        batches = {(e.writer, e.batch, e.consumer, e.round) for e in self._of("delivered")}
        uses = Counter((consumer, round_) for _, _, consumer, round_ in batches)
        return [stamp for stamp, count in uses.items() if count > 1]

    def _of(self, act: str) -> list[Event]:
        return [event for event in self.events if event.act == act]


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
