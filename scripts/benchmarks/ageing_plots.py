"""The curves of the benchmarks of ageing, from their result files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from scripts.benchmarks import ageing_latency, ageing_peers, ageing_purge
from scripts.benchmarks.ageing_backlog import MEASURES
from scripts.benchmarks.drawing import Plot
from scripts.benchmarks.harness import TITLES

Measured = Mapping[str, Any]


def horizons(result: Measured) -> Iterator[Plot]:
    """The median claim, by the number of messages that passed while a reader was open."""
    for engine, found in result["engines"].items():
        for size, what in (("single", "one message"), ("batch", "100 messages")):
            series = {
                f"{state}, {consumers(count)}": {
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
    """The duration of single messages, batches and publishes, by the number of waiting messages."""
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


def latencies(result: Measured) -> Iterator[Plot]:
    """The median and the 99th percentile of the latency, by the reached rate."""
    for engine, found in result["engines"].items():
        series: dict[str, dict[float, float]] = {}
        for _, count, state, runs in ageing_latency.each_case(found):
            for name, title in (("p99", "p99"), ("median", "p50")):
                if state != "mark" and name != "p99":
                    continue
                curve = series.setdefault(f"{title}, {state}, {consumers(count)}", {})
                reached = ageing_latency.middle(runs, "reached")
                curve[reached] = max(0.01, ageing_latency.middle(runs, name))
        yield Plot(
            f"ageing_latency-{engine}",
            f"{TITLES[engine]}: from publish to claim",
            series,
            across="messages/s published",
            up="ms",
        )


def peers(result: Measured) -> Iterator[Plot]:
    """The cost of a message for ours and other libraries while one reader stays open."""
    for size, what in (("single", "one by one"), ("batch", "by 100")):
        for wanted in ("1", "4"):
            series = {
                measured["about"]["name"]: {
                    point["passed"]: point[size] for point in measured["points"]
                }
                for _, count, measured in ageing_peers.each_case(result)
                if count == wanted
            }
            if series:
                yield Plot(
                    f"ageing_peers-{wanted}-{size}",
                    f"PostgreSQL, one reader stays open: {what}, {consumers(wanted)}",
                    series,
                    across="messages passed",
                    up="ms per message, claim and ack",
                    linear_across=True,
                )


def purges(result: Measured) -> Iterator[Plot]:
    """Single claims by the time since a mass claim ended."""
    for engine, found in result["engines"].items():
        series = {
            f"{case}, {state}": ageing_purge.curve(runs)
            for case, state, runs in ageing_purge.each_case(found)
        }
        yield Plot(
            f"ageing_purge-{engine}",
            f"{TITLES[engine]}: single claims after a mass claim",
            series,
            across="seconds since its end",
            up="ms per claim, median",
            linear_across=True,
        )


def consumers(count: str) -> str:
    """So many, in words."""
    return f"{count} consumer{'s' * (count != '1')}"


PLOTS: Final[Mapping[str, Callable[[Measured], Iterator[Plot]]]] = {
    "ageing_backlog": backlogs,
    "ageing_horizon": horizons,
    "ageing_latency": latencies,
    "ageing_peers": peers,
    "ageing_purge": purges,
}
