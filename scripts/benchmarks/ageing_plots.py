"""The curves of the benchmarks of ageing, from their result files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from scripts.benchmarks.ageing_backlog import MEASURES
from scripts.benchmarks.drawing import Plot
from scripts.benchmarks.harness import TITLES

Measured = Mapping[str, Any]


def horizons(result: Measured) -> Iterator[Plot]:
    """The median claim by how many messages passed while a reader was open."""
    for engine, found in result["engines"].items():
        for size, what in (("single", "one message"), ("batch", "100 messages")):
            series = {
                f"{state}, {count} consumer{'s' * (count != '1')}": {
                    point["passed"]: point[size]["claim"]["median"] for point in measured["points"]
                }
                for state, by_count in found["states"].items()
                for count, measured in by_count.items()
            }
            yield Plot(
                f"ageing_horizon-{engine}-{size}",
                f"{TITLES[engine]}: claims of {what} while one reader stays open",
                series,
                across="messages passed",
                up="ms per claim, median",
                linear_across=True,
            )


def backlogs(result: Measured) -> Iterator[Plot]:
    """What single messages, batches and publishes take by how many messages wait."""
    for engine, found in result["engines"].items():
        series: dict[str, dict[float, float]] = {}
        for size, measured in found["sizes"].items():
            for name, title in MEASURES.items():
                series.setdefault(title, {})[int(size)] = measured[name]["median"]
        yield Plot(
            f"ageing_backlog-{engine}",
            f"{TITLES[engine]}: the same work with a growing backlog",
            series,
            across="messages waiting",
            up="ms, median",
        )


PLOTS: Final[Mapping[str, Callable[[Measured], Iterator[Plot]]]] = {
    "ageing_backlog": backlogs,
    "ageing_horizon": horizons,
}
