"""Starts one server process of the demo; see `server`."""

from __future__ import annotations

from queue_over_sql_demo.server import main

if __name__ == "__main__":
    main()
