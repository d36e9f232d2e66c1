"""A real Spark driver that exports a history, and kills itself with its JVM at a given point."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from typing import Any

from queue_over_sql.archive.archive import ArchiveHistory
from queue_over_sql.spark import export_history, session
from queue_over_sql.spark.pipelines import history
from queue_over_sql.spark.pipelines.files import LocalFiles
from queue_over_sql.spark.pipelines.history import Export
from queue_over_sql.spark.pipelines.staged import StagedFolder
from tests.chaos.roles.protocol import emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What is exported where, and where the driver dies."""

    url: str
    folder: str
    die: str = ""
    """`staged`, `committed`, `moving` or `pruning`; empty to live."""
    prune: bool = True


POINTS: dict[str, tuple[type, str, int]] = {
    # Files were written, and do not count yet.
    "staged": (Export, "verified", 0),
    # They count, and none is in its place.
    "committed": (StagedFolder, "_put_in_place", 0),
    # Some are in their places.
    "moving": (LocalFiles, "move", 1),
    # Some messages are gone from the archive.
    "pruning": (ArchiveHistory, "remove", 2),
}
"""Where to die: before the call of a method after so many others."""


def dies(whole: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The method, which at one of its calls is the end of the process."""
    calls: list[int] = []

    def deadly(*arguments: Any) -> Any:
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(0)
        return whole(*arguments)

    return deadly


def main(arguments: Arguments) -> None:
    """Export once, and say what was done."""
    if arguments.die:
        home, name, after = POINTS[arguments.die]
        setattr(home, name, dies(getattr(home, name), after))
        # Several transactions are needed to die between them.
        history._PRUNE_BATCH = 10  # type: ignore[misc]
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    spark = session(master="local[2]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    report = export_history(
        spark, arguments.folder, url=arguments.url, source="jobs", prune=arguments.prune
    )
    emit("exported", exported=dict(report.exported), pruned=dict(report.pruned))
    spark.stop()


if __name__ == "__main__":
    play(main, Arguments)
