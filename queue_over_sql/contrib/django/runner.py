"""A mix-in for test runners."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from django.db import connections
from django.test.runner import DiscoverRunner

from queue_over_sql.contrib.django.services import stop_services


class StopServices:
    """Stops the services of the tests before their databases are dropped.

    Processes of parallel tests end without that. SQLite would read what they leave beside their
    databases into the next ones of the same name, so it is removed first.

    ::

        class Runner(StopServices, DiscoverRunner):
            pass
    """

    keepdb: bool

    def setup_databases(self, **options: Any) -> Any:
        """Remove what earlier tests left, and go on; copies of databases are complete."""
        if not self.keepdb:
            for connection in connections.all():
                if hasattr(connection, "is_in_memory_db"):
                    name = connection.settings_dict["TEST"]["NAME"]
                    if name:  # else it is in memory
                        _remove_left(Path(name))
                        _complete_before_copies(connection)
        return super().setup_databases(**options)  # type: ignore[misc]

    def teardown_databases(self, *arguments: Any, **options: Any) -> None:
        """Stop the services, and go on."""
        stop_services()
        super().teardown_databases(*arguments, **options)  # type: ignore[misc]


class Runner(StopServices, DiscoverRunner):
    """Django's own test runner, for ``TEST_RUNNER``."""


def _complete_before_copies(connection: Any) -> None:
    """Write what is in the write-ahead log to the file that Django copies for parallel tests."""
    clone = connection.creation.clone_test_db

    def complete_and_clone(*arguments: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        clone(*arguments, **options)

    connection.creation.clone_test_db = complete_and_clone


def _remove_left(database: Path) -> None:
    """Remove write-ahead logs of a test database, and of its copies for parallel tests."""
    left = re.compile(
        rf"{re.escape(database.stem)}(_[0-9]+)?{re.escape(database.suffix)}-(wal|shm)"
    )
    if database.parent.is_dir():
        for file in database.parent.iterdir():
            if left.fullmatch(file.name):
                file.unlink()
