"""The process from which the tests fork commands."""

from __future__ import annotations

from tests.cli import command_line
from tests.cli.warm_process import warm


def test_one_process_serves_all_tests() -> None:
    """Each holds what the command line imports, so that one for each test would fill the memory."""
    command_line.run("--version")
    kept = warm.cache_info().currsize
    for url in ("sqlite:///one.db", "sqlite:///two.db"):
        command_line.run("--help", url=url)
    assert kept == warm.cache_info().currsize
    assert "PYTEST_CURRENT_TEST" not in command_line.environment()
