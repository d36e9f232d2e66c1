"""The plots of the result files: ``python -m scripts.benchmarks.plots``.

It writes ``docs/plots/<benchmark>-<engine>.svg`` for each benchmark with results and curves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from scripts.benchmarks import ageing_plots
from scripts.benchmarks.drawing import Plot, drawn
from scripts.benchmarks.harness import RESULTS, read_result, was_run

FOLDER: Final = RESULTS.parents[2] / "docs" / "plots"


def plots() -> Iterator[Plot]:
    """All plots for which there is a result."""
    drawn_of = {
        "spark_read": reads,
        "spark_write": writes,
        "spark_stream": streams,
        "spark_fleet": fleets,
        **ageing_plots.PLOTS,
    }
    for name, of in drawn_of.items():
        if was_run(name):
            yield from of(read_result(name))


def reads(result: Mapping[str, Any]) -> Iterator[Plot]:
    """Readers, by engine."""
    for engine, found in result["engines"].items():
        series: dict[str, dict[float, float]] = {}
        for rows, choices in found["sizes"].items():
            for choice, measured in choices.items():
                for reader, rate in measured["rows_per_second"].items():
                    series.setdefault(f"{reader}, {choice}", {})[int(rows)] = rate
        yield Plot(f"spark_read-{engine}", f"Reading into Spark: {engine}", series)


def writes(result: Mapping[str, Any]) -> Iterator[Plot]:
    """Writers, by engine."""
    for engine, found in result["engines"].items():
        series: dict[str, dict[float, float]] = {}
        for rows, writers in found["sizes"].items():
            for writer, measured in writers.items():
                series.setdefault(writer, {})[int(rows)] = measured["rows_per_second"]
        yield Plot(f"spark_write-{engine}", f"Publishing from Spark: {engine}", series)


def streams(result: Mapping[str, Any]) -> Iterator[Plot]:
    """All cases of the streaming source."""
    series: dict[str, dict[float, float]] = {
        case: {int(size): int(size) / median(seconds) for size, seconds in measured.items()}
        for case, measured in result["cases"].items()
    }
    yield Plot("spark_stream", "Consuming as a stream, end to end", series)


def fleets(result: Mapping[str, Any]) -> Iterator[Plot]:
    """The forms of a fleet's workers, by engine."""
    by_engine: dict[str, dict[str, dict[float, float]]] = {}
    for each in result["measured"]:
        rates = by_engine.setdefault(each["engine"], {}).setdefault(each["form"], {})
        rates[each["count"]] = median(each["rates"])
    for engine, series in by_engine.items():
        yield Plot(f"spark_fleet-{engine}", f"Workers on Spark: {engine}", series)


def written(folder: Path = FOLDER) -> list[Path]:
    """Write all plots; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for plot in plots():
        path = folder / f"{plot.name}.svg"
        path.write_text(drawn(plot), encoding="utf-8")
        paths.append(path)
    return paths


def images(name: str) -> str:
    """The plots of one benchmark as the page shows them."""
    made = [plot for plot in plots() if plot.name.split("-", 1)[0] == name]
    return "\n".join(f"![{plot.title}](plots/{plot.name}.svg)\n" for plot in made)


if __name__ == "__main__":
    for each in written():
        print(each.name)
