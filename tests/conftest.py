"""Fixtures of all tests: those that the package offers to its users."""

from __future__ import annotations

pytest_plugins = ["queue_over_sql.testing.plugin"]
