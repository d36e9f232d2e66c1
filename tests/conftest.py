"""Fixtures of all tests: those that the package offers to its users."""

from __future__ import annotations

import signal

pytest_plugins = ["queue_over_sql.testing.plugin", "tests.tiers", "tests.flaky"]


def pytest_configure() -> None:
    """Let children be interrupted: a shell's background job ignores SIGINT, and they inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
