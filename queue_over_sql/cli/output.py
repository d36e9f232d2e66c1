"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.errors import visible
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.json_lines import to_json

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

NARROWEST_CUT = 10
UNBOUNDED = 1_000_000_000
_DONE = "{task.completed:,}"
Found = TypeVar("Found")


def insist_on_output() -> None:
    """Refuse to work if standard output is closed, because the results would be lost."""
    if sys.stdout is None:
        raise ValueError(
            "standard output is closed, so nothing was done; redirect it to /dev/null if you do "
            "not need it"
        )


@dataclass
class Output:
    """Writes for people (Rich tables and notes) or, with `machine`, as JSON lines."""

    machine: bool = False

    @cached_property
    def out(self) -> Console:
        """Standard output."""
        return _console()

    @cached_property
    def err(self) -> Console:
        """Standard error."""
        return _console(stderr=True)

    def line(self, text: str) -> None:
        """Write plain text to standard output and flush it, so that a pipe has it at once.

        A terminal gets control characters escaped; a pipe or a file gets `text` unchanged.
        """
        if sys.stdout.isatty():
            text = visible(text)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def record(self, fields: Mapping[str, Any], *, human: str | None = None) -> None:
        """Write a result: a JSON line for a machine, the sentence `human` (if any) for a person."""
        if self.machine:
            self.line(to_json(fields))
        elif human is not None:
            # As a note, so that a pipe gets one line, whatever its length.
            soft_wrap = not self.out.is_terminal
            self.out.print(visible(human), markup=False, highlight=False, soft_wrap=soft_wrap)

    def note(self, text: str) -> None:
        """Write a message for a person to standard error."""
        # Wrapped only on a terminal; a pipe gets each note as one line.
        soft_wrap = not self.err.is_terminal
        self.err.print(
            _shown(text), style="dim", markup=False, highlight=False, soft_wrap=soft_wrap
        )

    def error(self, text: str) -> None:
        """Write an error to standard error, with the passwords of URLs hidden."""
        from rich.text import Text

        label = Text("Error: ", style="bold red")
        self.err.print(label + Text(_shown(text)), highlight=False, soft_wrap=True)

    def nothing(self, text: str) -> NoReturn:
        """Report that nothing was found, and end with the exit code for that."""
        self.note(text)
        raise typer.Exit(ExitCode.NOTHING)

    def listing(
        self,
        found: Sequence[Found],
        record: Callable[[Found], Mapping[str, Any]],
        columns: Sequence[str],
        row: Callable[[Found], Sequence[object]],
        *,
        nothing: str | None = None,
    ) -> None:
        """Write each of `found`: a JSON line for a machine, a row of a table for a person.

        Args:
            found: the objects to list.
            record: the JSON line of one.
            columns: of the table, as of `build_table`.
            row: the cells of one.
            nothing: the message if `found` is empty.
        """
        if not found and nothing is not None:
            self.nothing(nothing)
        if self.machine:
            for each in found:
                self.line(to_json(record(each)))
        elif found:
            self.table(None, columns, [row(each) for each in found])

    def table(
        self, title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """Print a table; see `build_table` for the names of columns.

        If standard output is not a terminal, no text is cut, however long the lines become.
        """
        if self.out.is_terminal:
            self.out.print(build_table(title, columns, rows, self.out.width))
            return
        from rich.console import Console

        text = io.StringIO()
        wide = Console(file=text, width=UNBOUNDED, force_terminal=False)
        wide.print(build_table(title, columns, rows, UNBOUNDED))
        for line in text.getvalue().splitlines():
            self.line(line.rstrip())

    def details(self, fields: Mapping[str, str]) -> None:
        """Print one object, one field per line; nothing is cut."""
        widest = max(map(len, fields))
        for name, value in fields.items():
            self.line(f"{name:{widest}}  {visible(value, keep='')}")

    def progress(self, *, total_known: bool = True, of_bytes: bool = False) -> Progress:
        """A progress bar on standard error, silent when that is no terminal or with ``--json``.

        Its steps are whatever the task counts, or bytes.
        """
        from rich import progress
        from rich.text import Text

        class Rate(progress.ProgressColumn):
            """How many steps a second the task makes, e.g. ``12,400/s``."""

            def render(self, task: progress.Task) -> Text:
                """The rate of `task`, or nothing while it is unknown."""
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{speed:,.0f}/s", style="dim")

        done = progress.MofNCompleteColumn() if total_known else progress.TextColumn(_DONE)
        transfer = (progress.DownloadColumn(), progress.TransferSpeedColumn())
        steps: tuple[progress.ProgressColumn, ...] = transfer if of_bytes else (done, Rate())
        return progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            *([progress.BarColumn()] if total_known else []),
            *steps,
            progress.TimeElapsedColumn(),
            console=self.err,
            disable=self.machine or not self.err.is_terminal,
        )


def _console(*, stderr: bool = False) -> Console:
    # Rich takes longer to import than many a command takes to run.
    from rich.console import Console

    class Refusing(Console):
        def on_broken_pipe(self) -> None:
            """Override Rich, which would end the process."""
            raise BrokenPipeError

    return Refusing(stderr=stderr)


def _shown(text: str) -> str:
    from queue_over_sql.values.texts import hide_passwords

    return visible(hide_passwords(text))


def in_yellow(text: str) -> Text:
    """A cell of a table that stands out, such as ``paused``."""
    from rich.text import Text

    return Text(text, style="yellow")


def build_table(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]], width: int = 80
) -> Table:
    """A plain Rich table.

    A column with a leading ``#`` is right-aligned. Columns with a leading ``…`` share the rest of
    `width`, and their longer texts are cut.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "right" if name.startswith("#") else "left"
        table.add_column(name.lstrip("#…"), justify=justify, header_style="bold", no_wrap=True)
    texts = [[_cell(cell) for cell in row] for row in rows]
    limits = _widths_of_cut_columns(columns, texts, width)
    for row in texts:
        for place, limit in limits.items():
            row[place].truncate(limit, overflow="ellipsis")
        table.add_row(*row)
    return table


def without_spare(
    columns: Sequence[str], rows: Sequence[Sequence[object]], width: int, spare: Sequence[str]
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Leave out `spare` columns, the first of them first, until the table is no wider than `width`.

    A column that may be cut counts as wide as it must be at least.
    """
    for name in spare:
        texts = [[_cell(cell) for cell in row] for row in rows]
        limits = _widths_of_cut_columns(columns, texts, 0)
        needed = _widths(columns, texts) | limits
        if sum(needed.values()) + 2 * (len(columns) - 1) <= width:
            break
        kept = [place for place, each in enumerate(columns) if each != name]
        columns = [columns[place] for place in kept]
        rows = [[row[place] for place in kept] for row in rows]
    return columns, rows


def _widths(columns: Sequence[str], rows: list[list[Text]]) -> dict[int, int]:
    return {
        place: max([len(name.lstrip("#…")), *(row[place].cell_len for row in rows)])
        for place, name in enumerate(columns)
    }


def _cell(cell: object) -> Text:
    from rich.text import Text

    return cell if isinstance(cell, Text) else Text(visible(str(cell), keep=""))


def _widths_of_cut_columns(
    columns: Sequence[str], rows: list[list[Text]], width: int
) -> dict[int, int]:
    needed = _widths(columns, rows)
    cut = {place: needed[place] for place, name in enumerate(columns) if name.startswith("…")}
    left = width - sum(needed.values()) + sum(cut.values()) - 2 * (len(columns) - 1)
    limits: dict[int, int] = {}
    # The shortest first, because the others may use what it leaves.
    for place, wanted in sorted(cut.items(), key=lambda item: item[1]):
        share = left // (len(cut) - len(limits))
        limits[place] = min(wanted, max(NARROWEST_CUT, share))
        left -= limits[place]
    return limits
