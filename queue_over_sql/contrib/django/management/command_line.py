"""Runs the command line inside this process."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> None:
    """Run ``queue-over-sql`` with these arguments; ends with SystemExit."""
    sys.argv = ["queue-over-sql", *arguments]
    runpy.run_module("queue_over_sql", run_name="__main__")
