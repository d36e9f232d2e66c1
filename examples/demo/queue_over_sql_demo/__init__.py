"""The demo: the main job on real input, with a server killed on the way and an account at the end.

`command` is the command line, `stage` sets up and clears away, `course` leads through the events,
`server` is what each server process does, `fleet` starts and kills these, `observer` looks from
outside, `view` shows it live, `account` proves the result.
"""

from __future__ import annotations

# First: it imports this package in its turn, to have the command.
import queue_over_sql.cli  # noqa: F401
