"""Monitoring: health probes, metrics, traces, history and diagnosis."""

from queue_over_sql.observability.doctor import diagnose
from queue_over_sql.observability.health import Check, Health, Report, check_queues
from queue_over_sql.observability.probes import ProbeServer
from queue_over_sql.values.findings import Finding, Level

__all__ = [
    "Check",
    "Finding",
    "Health",
    "Level",
    "ProbeServer",
    "Report",
    "check_queues",
    "diagnose",
]
