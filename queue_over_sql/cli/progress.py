"""Progress bars: Rich's, and what the commands on many messages show by them."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text


class RateColumn(ProgressColumn):
    """How many steps a second the task makes, e.g. ``12,400/s``."""

    def render(self, task: Task) -> Text:
        """The rate of `task`, or nothing while it is unknown."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="dim")


def bar(console: Console, *, silent: bool, total_known: bool, of_bytes: bool) -> Progress:
    """A bar as of `Output.progress`."""
    steps: list[ProgressColumn] = [
        MofNCompleteColumn() if total_known else TextColumn("{task.completed:,}"),
        RateColumn(),
    ]
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *([BarColumn()] if total_known else []),
        *([DownloadColumn(), TransferSpeedColumn()] if of_bytes else steps),
        TimeElapsedColumn(),
        console=console,
        disable=silent,
    )
