"""Real files through the whole pipeline, with a driver that is killed.

    python examples/spark/demo.py [--url URL] [--folder FOLDER] [--limit N] [--output FOLDER]

Each file becomes a message (``load``). Spark computes its hash and writes Parquet (``process``).
The first driver is killed by ``kill -9`` in the middle, and a second one continues. Then the
archive becomes a history (``export-history``), and the history a report. The account at the end
must balance: every file once, with the hash that Python computes. Exit code 5: it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from queue_over_sql import QueueService
from queue_over_sql.spark import export_history, history_of, load, report, session
from queue_over_sql.values.humanize import counted
from queue_over_sql_demo.files import NOT_STANDARD, scan, standard_library

HERE = Path(__file__).parent
QUEUE = "spark_demo_files"
BATCHES = 8
SAMPLE = 300
DEADLINE = 600.0
UNBALANCED = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """The options of the demo.

    Attributes:
        url: the database.
        folder: the folder of the files.
        limit: the largest number of files.
        output: the folder of all results.
    """

    url: str
    folder: Path
    limit: int | None
    output: Path


@dataclasses.dataclass(frozen=True)
class Account:
    """The result; ``problems`` is empty if everything matches."""

    files: int
    loaded: int
    loaded_again: int
    killed_after: int
    processed: int
    different: int
    sampled: int
    wrong: int
    exported: int
    in_history: int
    pruned: int
    left_in_archive: int
    left_in_queue: int
    reported: int

    def problems(self) -> list[str]:
        """The differences, one sentence each."""
        found = [
            (self.files == 0, "there were no files"),
            (self.loaded != self.files, f"{self.loaded} of {self.files} files were loaded"),
            (self.loaded_again > 0, f"a second load published {self.loaded_again} again"),
            (self.killed_after < 1, "no driver was killed in the middle"),
            (self.killed_after >= self.files, "the driver was killed when all was done"),
            (self.different < self.files, f"{self.files - self.different} files have no result"),
            (
                self.processed > self.different,
                f"{self.processed - self.different} duplicate results",
            ),
            (self.wrong > 0, f"{self.wrong} of {self.sampled} hashes are wrong"),
            (self.exported != self.files, f"{self.exported} messages were exported"),
            (self.in_history != self.files, f"{self.in_history} messages are in the history"),
            (self.pruned != self.files, f"{self.pruned} messages were pruned"),
            (self.left_in_archive > 0, f"{self.left_in_archive} messages are left in the archive"),
            (self.left_in_queue > 0, f"{self.left_in_queue} messages are left in the queue"),
            (self.reported != self.files, f"the report knows {self.reported} messages"),
        ]
        return [sentence for wrong, sentence in found if wrong]


def perform(plan: Plan, say: Console) -> Account:
    """All steps, and the account."""
    with QueueService(plan.url) as service:
        queue = service.create_queue(QUEUE, archive="all")
        spark = session()
        try:
            files = list(found_files(plan))
            say.print(f"{len(files):,} files below {plan.folder}")
            listed = spark.createDataFrame(files, "path string, size bigint, modified timestamp")
            loads = [
                load(spark, listed, QUEUE, url=plan.url, columns={"key": "sha2(path, 256)"})
                for _ in range(2)
            ]
            for made in loads:
                say.print(f"load: {made.published:,} published, {made.skipped:,} skipped")
            killed_after = killed_process(plan, len(files), say)
            subprocess.run(process_command(plan, len(files)), env=environment(), check=True)
            hashes = spark.read.parquet(str(plan.output / "hashes"))
            exported = export_history(spark, plan.output / "history", url=plan.url, prune=True)
            written = counted(exported.files, "file")
            say.print(f"export-history: {exported.messages:,} messages, {written}")
            history = history_of(spark, plan.output / "history")
            told = report(
                spark,
                plan.output / "report",
                history=plan.output / "history",
                url=plan.url,
                title="Hashes of files",
            )
            say.print(f"report: {told.page}")
            stats = queue.stats()
            rows = hashes.select("path", "sha256").collect()
            sample = rows[:: max(1, len(rows) // SAMPLE)]
            return Account(
                files=len(files),
                loaded=loads[0].published,
                loaded_again=loads[1].published,
                killed_after=killed_after,
                processed=len(rows),
                different=len({row["path"] for row in rows}),
                sampled=len(sample),
                wrong=sum(row["sha256"] != hash_of(row["path"]) for row in sample),
                exported=exported.messages,
                in_history=history.select("id").distinct().count(),
                pruned=sum(exported.pruned.values()),
                left_in_archive=stats.archived,
                left_in_queue=stats.live,
                reported=told.finished,
            )
        finally:
            spark.stop()
            service.drop_queue(QUEUE)


def found_files(plan: Plan) -> Iterator[tuple[str, int, datetime]]:
    """Path, size and time of each file."""
    without = NOT_STANDARD if plan.folder == standard_library() else frozenset[str]()
    for file in scan(plan.folder, plan.limit, without).files:
        path = plan.folder / file.path
        facts = path.stat()
        yield str(path), facts.st_size, datetime.fromtimestamp(facts.st_mtime, UTC)


def hash_of(path: str) -> str:
    """The hash as Python computes it, for comparison."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def process_command(plan: Plan, files: int) -> list[str]:
    """The command that consumes the queue; the same for each start."""
    return [
        *(sys.executable, "-m", "queue_over_sql", "spark", "process", QUEUE, "hashes"),
        *("--output", str(plan.output / "hashes"), "--checkpoint", str(plan.output / "state")),
        *("--max-messages", str(max(1, -(-files // BATCHES))), "--url", plan.url),
    ]


def environment() -> dict[str, str]:
    """The environment of a driver; its workers can import the transformation."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def killed_process(plan: Plan, files: int, say: Console) -> int:
    """Start a driver, and kill it in the middle of its work; returns how much it had written."""
    log = plan.output / "killed-driver.log"
    with log.open("wb") as written:
        driver = subprocess.Popen(
            process_command(plan, files), env=environment(), stdout=written, stderr=written
        )
    deadline = time.monotonic() + DEADLINE
    while driver.poll() is None and committed(plan) < BATCHES // 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    ended_early = driver.poll() is not None
    driver.kill()
    driver.wait()
    if ended_early:
        say.print(f"the driver ended unexpectedly: {log.read_text(errors='replace')[-2000:]}")
        return 0
    done = min(files, committed(plan) * -(-files // BATCHES))
    say.print(f"process: driver {driver.pid} killed by kill -9 after {done:,} messages")
    return done


def committed(plan: Plan) -> int:
    """How many batches are in the output."""
    folder = plan.output / "hashes" / "_commits"
    return len(list(folder.glob("*.json"))) if folder.exists() else 0


def show(account: Account, say: Console) -> None:
    """The account as a table."""
    table = Table(title="Account", title_justify="left", box=None)
    table.add_column("")
    table.add_column("messages", justify="right")
    for name, value in dataclasses.asdict(account).items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    say.print(table)
    for problem in account.problems():
        say.print(f"NOT BALANCED: {problem}", style="bold red")
    if not account.problems():
        say.print(
            f"Balanced: {account.files:,} files, each once, 0 lost, 0 twice.", style="bold green"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    given = _arguments(arguments)
    say = Console(stderr=given.json, highlight=False)
    with contextlib.ExitStack() as stack:
        if given.output is None:
            output = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-demo-")))
        else:
            output = given.output.absolute()
            output.mkdir(parents=True)
        url = given.url or f"sqlite:///{output / 'queues.db'}"
        plan = Plan(url, given.folder.absolute(), given.limit, output)
        account = perform(plan, say)
        show(account, say)
        if given.json:
            facts: dict[str, Any] = {**dataclasses.asdict(account), "problems": account.problems()}
            sys.stdout.write(json.dumps(facts) + "\n")
        elif given.output is not None:
            say.print(f"The page of the report: {output / 'report' / 'report.html'}")
    return UNBALANCED if account.problems() else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real files through the pipeline on Spark.")
    parser.add_argument("--url", help="the database; default: a temporary SQLite file")
    parser.add_argument("--folder", type=Path, default=standard_library(), help="whose files")
    parser.add_argument("--limit", type=int, help="only the first N files")
    parser.add_argument(
        "--output",
        type=Path,
        help="a new folder for all results, which is kept; default: a temporary folder",
    )
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
