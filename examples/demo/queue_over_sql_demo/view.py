"""The output of the demo: a live view or plain lines, and the account at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from queue_over_sql.cli.output import Output, build_table
from queue_over_sql_demo.account import Account
from queue_over_sql_demo.course import Course, Progress
from queue_over_sql_demo.fleet import Server

BAR_WIDTH = 40
EVENTS_SHOWN = 6


class View:
    """Shows the progress of one run on standard error.

    Args:
        output: the output; with ``--json`` nothing is shown.
        title: the first line.
    """

    def __init__(self, output: Output, title: str) -> None:
        self._output = output
        self._title = title
        self._started = time.monotonic()
        self._events: list[str] = []
        self._live: Live | None = None

    @contextmanager
    def open(self) -> Iterator[View]:
        """Show the view during the block; on a terminal it is updated, and its last state stays."""
        if self._output.machine or not self._output.err.is_terminal:
            self._output.note(self._title)
            yield self
            return
        with Live(console=self._output.err, refresh_per_second=12, redirect_stdout=False) as live:
            self._live = live
            live.update(_line(f"{self._title}\nstarting the processes …"))
            yield self
        self._live = None

    def tell(self, event: str) -> None:
        """Show an event with its time since the start."""
        line = f"{time.monotonic() - self._started:6.1f} s  {event}"
        self._events.append(line)
        if self._live is None:
            self._output.note(line)

    def show(self, progress: Progress, course: Course) -> None:
        """Show the present state, if the view is live."""
        if self._live is not None:
            self._live.update(self._render(progress, course))

    def _render(self, progress: Progress, course: Course) -> RenderableType:
        return Group(
            _line(self._title, style="bold"),
            Text(),
            _bars(progress),
            _facts_line(progress),
            Text(),
            _servers(progress, course),
            Text(),
            *(_line(event, style="dim") for event in self._events[-EVENTS_SHOWN:]),
        )


def _line(text: str, style: str = "") -> Text:
    """A text whose lines are cut instead of wrapped, so that the view's height stays the same."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _bars(progress: Progress) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(width=BAR_WIDTH)
    grid.add_column(justify="right", no_wrap=True)
    seen = progress.snapshot
    for name, count in (("published", progress.published), ("done", seen.results)):
        bar = ProgressBar(
            total=progress.total,
            completed=count,
            width=BAR_WIDTH,
            complete_style="cyan",
            finished_style="green",
        )
        grid.add_row(name, bar, f"{count:,} of {progress.total:,}")
    return grid


def _facts_line(progress: Progress) -> Text:
    seen = progress.snapshot
    rate = seen.results / progress.work_seconds if progress.work_seconds else 0.0
    facts = (
        f"{sum(seen.claimed.values()):,} claimed   {seen.redelivered:,} redelivered   "
        f"{rate:,.0f} files/s"
    )
    return _line(facts, style="cyan")


def _servers(progress: Progress, course: Course) -> Table:
    table = build_table(None, ("process", "#pid", "state", "#claimed", "#done"), ())
    for server in course.servers:
        done, _ = progress.snapshot.done.get(server.name, (0, 0))
        claimed = progress.snapshot.claimed.get(course.consumer_of(server), 0)
        table.add_row(server.name, str(server.pid), _state(server), f"{claimed:,}", f"{done:,}")
    return table


def _state(server: Server) -> Text:
    if server.killed:
        return Text("killed -9", style="bold red")
    return Text("working", style="green") if server.alive else Text("ended", style="yellow")


def account_table(account: Account, progress: Progress) -> Table:
    """The account as a table: each count, and whether it is right."""
    table = build_table("Account", ("fact", "#count", ""), ())
    for fact, count, right in _facts(account):
        mark = Text("") if right is None else _mark(right=right)
        table.add_row(fact, f"{count:,}", mark)
    table.add_row()
    for fact, text in _rates(account, progress):
        table.add_row(fact, text, "")
    return table


def _facts(account: Account) -> list[tuple[str, int, bool | None]]:
    ordered = [
        ("customers", account.customers, None),
        ("of these with files out of order", len(account.disordered), not account.disordered),
    ]
    return [
        ("files found", account.files, None),
        ("messages published", account.published, account.published == account.files),
        ("results committed", account.results, account.results == account.files),
        ("files without a result (lost)", len(account.lost), not account.lost),
        ("files with more than one result (twice)", len(account.twice), not account.twice),
        ("results of unknown files", account.unknown, not account.unknown),
        ("checksums computed again by the parent", account.sampled, not account.wrong),
        ("of these wrong", len(account.wrong), not account.wrong),
        *(ordered if account.customers else ()),
        ("held by killed processes", account.held_at_kill, not account.kill_missing),
        ("of these done by others", account.came_back, account.came_back == account.held_at_kill),
        ("redelivered in all", account.redelivered, None),
        ("left in the queue", account.live, not account.live),
        ("failed, in the archive", account.archived, not account.archived),
    ]


def _mark(*, right: bool) -> Text:
    return Text("ok", style="green") if right else Text("WRONG", style="bold red")


def rates(account: Account, progress: Progress) -> dict[str, float]:
    """Messages published and done, and bytes hashed, per second; seconds until the rescue.

    The publisher waits until the kill, so its rate only counts the seconds in which it publishes.
    """
    work, publish = progress.work_seconds, progress.publish_seconds
    return {
        "published_per_second": account.published / publish if publish else 0.0,
        "done_per_second": account.results / work if work else 0.0,
        "bytes_per_second": account.size / work if work else 0.0,
        "work_seconds": work,
        "rescue_seconds": max((each.seconds or 0.0 for each in progress.rescues), default=0.0),
    }


def _rates(account: Account, progress: Progress) -> list[tuple[str, str]]:
    measured = rates(account, progress)
    shown = [
        ("published, while publishing", f"{measured['published_per_second']:,.0f}/s"),
        ("done, the wait for the rescue included", f"{measured['done_per_second']:,.0f}/s"),
        ("read and hashed", f"{account.size / 1e6:,.1f} MB"),
        ("from first publish to last result", f"{measured['work_seconds']:.1f} s"),
    ]
    if progress.rescues:
        name = "from the kill to the last rescued"
        if len(progress.rescues) > 1:
            name = "from a kill to its last rescued, at most"
        shown.append((name, f"{measured['rescue_seconds']:.1f} s"))
    return shown
