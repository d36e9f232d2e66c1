"""Queues without groups in this tree, against those of an earlier commit.

Groups, limits and rates must cost nothing where no queue has them. Both trees run with the packages
of this one, each in a process and a database of its own on one server, and take turns in each
round. The goal is a loss of at most 3 %.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.progress import Progress

from queue_over_sql.testing.servers import PrivateServer
from scripts.benchmarks.ageing import parser_of
from scripts.benchmarks.groups import processor_of
from scripts.benchmarks.harness import RESULTS, TITLES, databases_of, origin_of, read_result
from scripts.benchmarks.ungrouped_acts import ACTS, BATCH

NAME: Final = "ungrouped"
BEFORE: Final = "c26f67a8~1"
"""The last commit without any code of groups."""
_ROOT: Final = RESULTS.parents[2]


class Tree:
    """A tree of the repository, with a process that runs its code.

    Args:
        stack: ends the process.
        folder: of the tree.
        url: of an empty database.
    """

    def __init__(self, stack: ExitStack, folder: Path, url: str) -> None:
        acts = Path(__file__).with_name("ungrouped_acts.py")
        self._process = subprocess.Popen(
            [sys.executable, str(acts), url],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._process.wait)
        if self._process.stdin is None or self._process.stdout is None:
            raise TypeError  # they were asked for
        self._input, self._output = self._process.stdin, self._process.stdout
        stack.callback(self._input.close)
        if self._output.readline().strip() != "ready":
            sys.exit(f"the tree in {folder} does not run")

    def act(self, name: str, count: int) -> list[float]:
        """Do something with so many messages; returns the seconds, and those of the processor."""
        self._input.write(json.dumps([name, count]) + "\n")
        self._input.flush()
        answer: list[float] = json.loads(self._output.readline())
        return answer


def measure(engine: str, options: Any, progress: Progress) -> dict[str, Any]:
    """The microseconds of each act for a message, by tree and round; also of the processor."""
    found: dict[str, Any] = {name: {"before": [], "now": []} for name in ACTS}
    with ExitStack() as stack:
        new = stack.enter_context(databases_of(engine))
        server = getattr(new, "__self__", None)
        pid = server.pid if isinstance(server, PrivateServer) else None
        old = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        packed = subprocess.run(
            ["git", "archive", options.before, "queue_over_sql", "sqlalchemy_h2"],
            cwd=_ROOT,
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "-x", "-C", str(old)], input=packed.stdout, check=True)
        folders = {"before": old, "now": _ROOT}
        trees = {name: Tree(stack, each, new(name)) for name, each in folders.items()}
        for turn in range(options.rounds + 1):
            for act in ACTS:
                count = options.messages // (1 if "by" in act else 10)
                for name in list(trees)[:: -1 if turn % 2 else 1]:
                    tree = trees[name]
                    if not act.startswith("publish"):
                        tree.act("load", count)
                    used = processor_of(pid) if pid is not None else 0.0
                    lasted, own = tree.act(act, count)
                    used = own + (processor_of(pid) - used if pid is not None else 0.0)
                    each = [round(1e6 * seconds / count, 2) for seconds in (lasted, used)]
                    if turn:
                        # In the first turn all prepare their statements.
                        found[act][name].append(each)
                progress.print(f"{engine} {act}: {found[act]}") if turn == options.rounds else None
    return {"acts": found}


def section() -> str:
    """The part of the page that shows the result."""
    result = read_result(NAME)
    lines = [
        "## Queues without groups, before and after groups",
        "",
        f"""\
This tree against the last commit without groups (`{result["before"]}`): one process each, in turns,
on one server. Microseconds for a message, the median of {result["rounds"]} rounds, and the median
of the ratios of single rounds, all for the processor's time of client and server, which other work
on the machine disturbs less; in brackets by the clock. Batches have {BATCH}. The goal is 1.03.""",
        "",
        "| engine | act | before | now | ratio | lowest, highest |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for engine, found in result["engines"].items():
        for act, sides in found["acts"].items():
            used = [
                now[1] / before[1]
                for now, before in zip(sides["now"], sides["before"], strict=True)
            ]
            lasted = [
                now[0] / before[0]
                for now, before in zip(sides["now"], sides["before"], strict=True)
            ]
            cells = [TITLES[engine], act]
            cells += [f"{median(each[1] for each in sides[s]):.1f}" for s in ("before", "now")]
            cells += [f"{median(used):.2f} ({median(lasted):.2f})"]
            lines.append(f"| {' | '.join([*cells, f'{min(used):.2f}, {max(used):.2f}'])} |")
    return "\n".join([*lines, "", origin_of(result)]) + "\n"


def main() -> None:
    """Run the benchmark, or print its part of the page."""
    parser = parser_of(__doc__, engines=("postgresql", "sqlite"))
    parser.add_argument("--before", default=BEFORE, help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=20_000, help="of a batch act; else a tenth")
    options = parser.options({"messages": 2_000, "rounds": 2})
    if options.markdown:
        print(section(), end="")
        return
    sizes = {name: getattr(options, name) for name in ("before", "rounds", "messages")}
    parser.measure_each(NAME, options, sizes, lambda e, p: measure(e, options, p))
    print(section())


if __name__ == "__main__":
    main()
