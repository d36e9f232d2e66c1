"""How many schedules of real clients keep the promises, and in how many seconds.

Each scenario of ``tests/interleavings`` is played on each engine, one statement at a time: in every
order where there are at most ``--schedules``, else so many by seed. The first schedule that the
promises do not allow ends the run.
"""

from __future__ import annotations

import time
from typing import Any, Final

from queue_over_sql.testing.plugin import TestDatabase
from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.harness import TITLES, databases_of, origin_of, read_result
from tests.interleavings.scenarios import SCENARIOS
from tests.interleavings.theatre import Theatre, opened

NAME: Final = "interleavings"


def measure(engine: str, most: int) -> dict[str, Any]:
    """Play all scenarios on one engine; what was played, by scenario."""
    with (
        databases_of(engine) as new_database,
        opened(TestDatabase(engine, new_database("interleavings"))) as theatre,
    ):
        return {"scenarios": {name: _played(theatre, name, most) for name in SCENARIOS}}


def _played(theatre: Theatre, name: str, most: int) -> dict[str, Any]:
    began = time.perf_counter()
    runs = list(theatre.schedules(SCENARIOS[name], most))
    seconds = time.perf_counter() - began
    return {
        "schedules": len({run.schedule for run in runs}),
        "all": theatre.is_all,
        "statements": sum(len(run.steps) for run in runs),
        "waits": sum(run.waits > 0 for run in runs),
        "seconds": round(seconds, 1),
    }


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    played = next(iter(result["engines"].values()))["scenarios"]
    lines = [
        "## Orders of statements",
        "",
        f"""\
Two to four clients of {len(played)} scenarios go on one statement at a time, in every order
where there are at most {result["most"]} of a scenario, else in so many by seed. A checker looks at
each. None broke a promise. In some a client waited for the lock of another.""",
        "",
        "| engine | schedules | scenarios in every order | statements | with waits | seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for engine, title in TITLES.items():
        if engine in result["engines"]:
            found = list(result["engines"][engine]["scenarios"].values())
            kinds = ("schedules", "all", "statements", "waits", "seconds")
            cells = [f"{sum(each[kind] for each in found):,.0f}" for kind in kinds]
            lines.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def main() -> None:
    """Play them, or print their part of the page."""
    parser = parser_of(__doc__)
    parser.add_argument("--schedules", type=int, default=100, help="of each scenario, at most")
    options = parser.options({"schedules": 5})
    if options.markdown:
        print(section(), end="")
        return
    parser.measure_each(
        NAME,
        options,
        {"most": options.schedules},
        lambda engine, _: measure(engine, options.schedules),
    )
    print(section())


if __name__ == "__main__":
    main()
