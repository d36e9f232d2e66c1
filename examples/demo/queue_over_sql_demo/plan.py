"""The options of a demo, and the order for each server process."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from queue_over_sql import Publication

if TYPE_CHECKING:
    from queue_over_sql_demo.files import InputFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the demo.

    Args:
        url: the database.
        folder: the folder of the files, except folders named in `without`.
        limit: the largest number of files; None for all.
        servers: number of server processes.
        threads: worker threads per server.
        batch: messages per claim and thread.
        kills: how many servers to kill, one after the other.
        customers: how many customers the files are dealt to, whose files must be done in order;
            None: no customers, and no order.
        sample: number of checksums to verify at the end.
        consumer_timeout: seconds without a heartbeat after which a server is considered dead.
        deadline: seconds after which the demo stops and checks the results.
        schema, table_prefix: of the queue's tables; None for the defaults.
        keep: whether to keep tables, queue and logs at the end.
        history: whether servers record a history for the dashboard.
    """

    url: str
    folder: Path
    without: frozenset[str] = frozenset()
    limit: int | None = None
    servers: int = 3
    threads: int = 2
    batch: int = 8
    kills: int = 1
    customers: int | None = None
    sample: int = 200
    consumer_timeout: float = 3.0
    deadline: float = 300.0
    schema: str | None = None
    table_prefix: str | None = None
    keep: bool = False
    history: bool = False
    # A different name for each run, so that the demo finds no other tables.
    name: str = dataclasses.field(default_factory=lambda: f"demo_{uuid4().hex[:8]}")

    @property
    def results(self) -> str:
        """The name of the results table."""
        return f"{self.name}_results"

    def server_name(self, number: int) -> str:
        """The name of the server with this number, counted from 1."""
        return f"server-{number}"

    def customer_of(self, file: InputFile) -> str | None:
        """The customer that a file belongs to."""
        return None if self.customers is None else f"customer-{file.number % self.customers}"

    def publication(self, file: InputFile) -> Publication[dict[str, object]]:
        """The message for a file; those of one customer are a group."""
        return Publication(file.payload(), group=self.customer_of(file))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOrder:
    """The order for a server process: one line of JSON on its standard input.

    Not on its command line, where other users of the machine could read the password.
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
        """The order in `line`."""
        return cls(**json.loads(line))
