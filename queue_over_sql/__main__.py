"""``python -m queue_over_sql``: the same command as ``queue-over-sql``."""

from __future__ import annotations

from queue_over_sql.cli import main

if __name__ == "__main__":
    main()
