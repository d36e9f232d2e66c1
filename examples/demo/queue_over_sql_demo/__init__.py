"""The demo: real work on real files, with a killed server and a check of the results.

`command` is the command line. `stage` sets up and cleans up. `course` runs the events. `server` is
the program of each server process. `fleet` starts and kills these. `observer` reads the database.
`view` shows the progress. `account` checks the result.
"""

from __future__ import annotations

# First, because it imports this package for its command.
import queue_over_sql.cli  # noqa: F401
