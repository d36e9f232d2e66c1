"""Show for each engine where its test server comes from, or what to install.

``python -m queue_over_sql.testing.servers [engine …]``: exits with 1 if one of them is missing.
"""

from __future__ import annotations

import argparse
import sys

from queue_over_sql.testing.servers import DEFAULT_ENGINES, SERVER_ENGINES, ServerMissing, obtain


def main(arguments: list[str]) -> int:
    """Print a line for each named engine; by default for the required ones."""
    missing = 0
    for engine in _engines(arguments):
        try:
            line = obtain(engine).origin
        except ServerMissing as error:
            line = f"MISSING: {error}"
            missing += 1
        print(f"{engine}: {line}")  # noqa: T201 - this is a command
    return 1 if missing else 0


def _engines(arguments: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(
        prog="python -m queue_over_sql.testing.servers",
        description="Show for each engine where its test server comes from, or what to install. "
        "Exit code 1: one of them is missing.",
    )
    required = [name for name in DEFAULT_ENGINES if name in SERVER_ENGINES]
    parser.add_argument(
        "engines",
        metavar="engine",
        nargs="*",
        help=f"{', '.join(SERVER_ENGINES)} (default: {', '.join(required)})",
    )
    named: list[str] = parser.parse_args(arguments).engines
    for unknown in sorted(set(named) - set(SERVER_ENGINES)):
        parser.error(f"there is no engine {unknown!r}: choose from {', '.join(SERVER_ENGINES)}")
    return named or required


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
