"""Write the page of the benchmarks: ``python -m scripts.benchmarks.page > docs/benchmarks.md``."""

from __future__ import annotations

from scripts.benchmarks import archived_history

SECTIONS = (archived_history.section,)
HEAD = """\
# Benchmarks

Made by `python -m scripts.benchmarks.page > docs/benchmarks.md` from the result files in
`scripts/benchmarks/results`, which have each single round; do not edit by hand. Each benchmark is
one module of `scripts/benchmarks` and starts database servers of its own, so that anybody can
repeat it: `./scripts/benchmarks/run archived_history`. Figures depend on the machine and its
disk; what a page promises is a ratio.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section() for section in SECTIONS)])


if __name__ == "__main__":
    print(page(), end="")
