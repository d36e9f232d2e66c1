"""Monitoring: health probes, metrics, traces, history and diagnosis."""

from queue_over_sql.observability.counting import (
    COUNTED,
    Activity,
    ActivitySnapshots,
    AtLeast,
    Counting,
    QueueCounts,
    SharedSnapshot,
    count_queues,
)
from queue_over_sql.observability.doctor import diagnose
from queue_over_sql.observability.health import Check, Health, Report, check_queues
from queue_over_sql.observability.probes import (
    Probed,
    ProbePage,
    ProbeServer,
    SystemdNotifier,
    page_of,
    read_address,
)
from queue_over_sql.values.findings import Finding, Level

__all__ = [
    "COUNTED",
    "Activity",
    "ActivitySnapshots",
    "AtLeast",
    "Check",
    "Counting",
    "Finding",
    "Health",
    "Level",
    "ProbePage",
    "ProbeServer",
    "Probed",
    "QueueCounts",
    "Report",
    "SharedSnapshot",
    "SystemdNotifier",
    "check_queues",
    "count_queues",
    "diagnose",
    "page_of",
    "read_address",
]
