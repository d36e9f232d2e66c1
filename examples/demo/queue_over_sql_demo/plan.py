"""What a run of the demo is to do, and what a server process has to know of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from uuid import uuid4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How the demo is to run.

    Args:
        url: the database.
        folder: every file below it is a message, unless in a folder named in `without`.
        limit: only so many files; None for all.
        servers: number of server processes.
        threads: worker threads in each.
        batch: messages that a thread claims at once.
        kill: whether one server is killed on the way.
        sample: number of files whose checksum is computed again at the end.
        consumer_timeout: seconds without a heartbeat after which a server counts as dead.
        deadline: seconds after which the demo gives up and accounts for what is there.
        schema, table_prefix: of the queue's tables; None for the defaults.
        keep: whether tables, queue and logs stay at the end.
        history: whether servers keep a history, for the dashboard.
    """

    url: str
    folder: Path
    without: frozenset[str] = frozenset()
    limit: int | None = None
    servers: int = 3
    threads: int = 2
    batch: int = 8
    kill: bool = True
    sample: int = 200
    consumer_timeout: float = 3.0
    deadline: float = 300.0
    schema: str | None = None
    table_prefix: str | None = None
    keep: bool = False
    history: bool = False
    # A name of its own for each run, so that the demo meets nobody else's tables.
    name: str = dataclasses.field(default_factory=lambda: f"demo_{uuid4().hex[:8]}")

    @property
    def results(self) -> str:
        """The name of the results table."""
        return f"{self.name}_results"

    def server_name(self, number: int) -> str:
        """The name of the server with this number, counted from 1."""
        return f"server-{number}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOrder:
    """What a server process is told, as one line of JSON on its standard input.

    Not on its command line, where other users of the machine could read the URL's password.
    """

    url: str
    schema: str | None
    table_prefix: str | None
    queue: str
    results: str
    folder: str
    name: str
    threads: int
    batch: int
    consumer_timeout: float
    history: bool = False

    @classmethod
    def of(cls, plan: Plan, name: str) -> ServerOrder:
        """The order for the server `name` of `plan`."""
        return cls(
            url=plan.url,
            schema=plan.schema,
            table_prefix=plan.table_prefix,
            queue=plan.name,
            results=plan.results,
            folder=str(plan.folder),
            name=name,
            threads=plan.threads,
            batch=plan.batch,
            consumer_timeout=plan.consumer_timeout,
            history=plan.history,
        )

    def line(self) -> str:
        """The order as a line of JSON."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @classmethod
    def read(cls, line: str) -> ServerOrder:
        """The order that `line` holds."""
        return cls(**json.loads(line))
