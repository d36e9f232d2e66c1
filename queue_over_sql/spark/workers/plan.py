"""What the driver tells each worker of a fleet, and what each tells back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queue_over_sql.spark.options import Location


Form = Literal["message", "batch", "arrow"]
FORMS: Final = ("message", "batch", "arrow")
BATCHES: Final = {"message": 100, "batch": 100, "arrow": 500}
"""How many messages a worker claims at once where nothing is said."""

TAKEN: Final = 10_000
"""The same of those that it takes."""

Ending = Literal["empty", "time", "told"]
"""Why a worker ended: nothing was left, its time was over, or the driver told it to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkersPlan:
    """The work of one worker; pickled to the executors.

    Attributes:
        location: the database.
        queue: name of the queue.
        handler: the user's function.
        form: what it is called with.
        transactional: whether it gets a connection whose commit is the ack as well.
        batch: messages claimed at once.
        concurrency: threads of each worker.
        lease_keepalive: whether leases are renewed while the handler runs.
        until_empty: whether to end when nothing is left.
        ends_at: when to end, by the database's clock in microseconds; None for never.
        leader: the driver's ``consumer_id``: when it is gone, so is the reason to work.
        name: of the fleet, under which its workers are registered as consumers.
        consumer_timeout: seconds without a heartbeat after which a worker counts as dead.
        poll_interval: shortest and longest pause in seconds between two looks.
        retry_policies: the application's own, by name.
        losses: how often workers were lost before.
    """

    location: Location
    queue: str
    handler: Callable[..., Any]
    form: Form
    transactional: bool
    batch: int
    concurrency: int
    lease_keepalive: bool
    until_empty: bool
    ends_at: int | None
    leader: str
    name: str
    consumer_timeout: float
    poll_interval: tuple[float, float]
    retry_policies: Mapping[str, type[Any]] = dataclasses.field(default_factory=dict)
    losses: int = 0


@dataclasses.dataclass(frozen=True)
class WorkerReport:
    """What one worker did.

    Attributes:
        worker: its number, from 0.
        host, pid: where it ran.
        handled: deliveries whose handler ended well.
        failed: deliveries whose handler raised, or said so; they are retried or dead letters.
        dead: those of them that were the last of their message.
        calls: how often the handler was called.
        seconds: how long it worked.
        ended: ``empty``, ``time`` or ``told``.
    """

    worker: int
    host: str
    pid: int
    handled: int
    failed: int
    dead: int
    calls: int
    seconds: float
    ended: str


REPORT_SCHEMA: Final = (
    "worker int, host string, pid int, handled long, failed long, dead long, calls long, "
    "seconds double, ended string"
)
"""``WorkerReport`` as the columns of a DataFrame."""
