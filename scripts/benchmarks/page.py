"""Write the page of the benchmarks: ``python -m scripts.benchmarks.page > docs/benchmarks.md``."""

from __future__ import annotations

from scripts.benchmarks import (
    ageing_backlog,
    ageing_burdens,
    ageing_horizon,
    ageing_latency,
    ageing_peers,
    ageing_purge,
    archived_history,
    celery_kills,
    celery_suite,
    computing,
    dashboard,
    django_kills,
    django_suite,
    faults,
    groups,
    groups_built,
    groups_peers,
    interleavings,
    observer,
    spark_fleet,
    spark_read,
    spark_stream,
    spark_write,
    ungrouped,
    wakeups,
    worker_sharing,
    workloads_page,
)
from scripts.benchmarks.harness import was_run
from scripts.benchmarks.plots import images

SECTIONS = {
    "workloads": workloads_page.section,
    "worker_sharing": worker_sharing.section,
    "computing": computing.section,
    "wakeups": wakeups.section,
    "observer": observer.section,
    "groups": groups.section,
    "groups_built": groups_built.section,
    "groups_peers": groups_peers.section,
    "ungrouped": ungrouped.section,
    "celery_kills": celery_kills.section,
    "celery_suite": celery_suite.section,
    "django_kills": django_kills.section,
    "django_suite": django_suite.section,
    "dashboard": dashboard.section,
    "faults": faults.section,
    "archived_history": archived_history.section,
    "interleavings": interleavings.section,
    "ageing_backlog": ageing_backlog.section,
    "ageing_burdens": ageing_burdens.section,
    "ageing_horizon": ageing_horizon.section,
    "ageing_latency": ageing_latency.section,
    "ageing_peers": ageing_peers.section,
    "ageing_purge": ageing_purge.section,
    "spark_read": spark_read.section,
    "spark_write": spark_write.section,
    "spark_stream": spark_stream.section,
    "spark_fleet": spark_fleet.section,
}
HEAD = """\
# Benchmarks

Made by `python -m scripts.benchmarks.page > docs/benchmarks.md` from the result files in
`scripts/benchmarks/results`, which have each single round; do not edit by hand. Each benchmark is
one module of `scripts/benchmarks` and starts database servers of its own, so that anybody can
repeat it: `./scripts/benchmarks/run archived_history`. Figures depend on the machine and its
disk; what a page promises is a ratio. The plots are drawn by `python -m scripts.benchmarks.plots`.
"""


def page() -> str:
    """The whole page: of each benchmark that was run."""
    measured = {name: show for name, show in SECTIONS.items() if was_run(name)}
    parts = [part for name, section in measured.items() for part in (section(), images(name))]
    return "\n".join([HEAD, *filter(None, parts)])


if __name__ == "__main__":
    print(page(), end="")
