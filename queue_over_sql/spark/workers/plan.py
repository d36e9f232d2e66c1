"""The driver's plan for each worker, and each worker's report."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queue_over_sql.spark.options import Location


Form = Literal["message", "batch", "arrow"]
Ending = Literal["empty", "time", "told"]
"""Why a worker ended: no messages left, its time was over, or the driver told it to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkersPlan:
    """The work of one worker; pickled to the executors. See ``run_workers``.

    Attributes:
        ends_at: when to end, by the database's clock in microseconds; None: never.
        leader: the driver's ``consumer_id``; the workers end when it is gone.
        name: the consumer name of all workers.
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
    """The work of one worker.

    Attributes:
        worker: its number, from 0.
        host, pid: where it ran.
        handled: deliveries that were handled successfully.
        failed: deliveries whose handler failed; the messages are retried or became dead letters.
        dead: messages that became dead letters.
        calls: how often the handler was called.
        seconds: duration in seconds.
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
    "worker long, host string, pid long, handled long, failed long, dead long, calls long, "
    "seconds double, ended string"
)
"""``WorkerReport`` as the columns of a DataFrame."""
