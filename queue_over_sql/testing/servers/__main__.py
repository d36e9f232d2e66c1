"""Say for each engine where its server for tests comes from, or what to install.

``python -m queue_over_sql.testing.servers [engine …]``: exits with 1 if one of them is missing.
"""

from __future__ import annotations

import sys

from queue_over_sql.testing.servers import DEFAULT_ENGINES, SERVER_ENGINES, ServerMissing, obtain


def main(engines: list[str]) -> int:
    """Print a line for each of `engines`, the required ones by default."""
    missing = 0
    for engine in engines or [name for name in DEFAULT_ENGINES if name in SERVER_ENGINES]:
        try:
            line = obtain(engine).origin
        except ServerMissing as error:
            line = f"MISSING: {error}"
            missing += 1
        print(f"{engine}: {line}")  # noqa: T201 - this is a command
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
