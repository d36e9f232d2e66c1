"""The curves of the benchmarks of ageing, from their result files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from scripts.benchmarks.drawing import Plot

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
                f"{engine}: claims of {what} while one reader stays open",
                series,
                across="messages passed",
                up="ms per claim, median",
                linear_across=True,
            )


PLOTS: Final[Mapping[str, Callable[[Measured], Iterator[Plot]]]] = {"ageing_horizon": horizons}
