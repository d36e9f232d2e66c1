"""A mix-in for test runners."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from django.db import connections
from django.test.runner import DiscoverRunner

from queue_over_sql.contrib.django.services import opened_databases, stop_services

_log = logging.getLogger(__name__)


class StopServices:
    """Stops services of the live databases before the tests, and those of the tests after them.

    A module that the tests import may have made a service, perhaps for a worker, before the test
    databases were there. Its tests would handle live messages. Any use of it now raises
    ``ServiceClosed``: make the service in a function.

    Processes of parallel tests end without that. SQLite would read what they leave beside their
    databases into the next ones of the same name, so it is removed first.

    ::

        class Runner(StopServices, DiscoverRunner):
            pass
    """

    keepdb: bool

    def setup_databases(self, **options: Any) -> Any:
        """Stop the services of live databases, remove what earlier tests left, and go on.

        Copies of databases for parallel tests are complete.
        """
        _stop_live_services()
        for connection in connections.all():
            on_file = None
            if hasattr(connection, "is_in_memory_db") and not self.keepdb:
                on_file = connection.settings_dict["TEST"]["NAME"]  # None: it is in memory
            if on_file:
                _remove_left(Path(on_file))
            _prepare_copies(connection, complete=bool(on_file))
        return super().setup_databases(**options)  # type: ignore[misc]

    def teardown_databases(self, *arguments: Any, **options: Any) -> None:
        """Stop the services, and go on."""
        stop_services()
        super().teardown_databases(*arguments, **options)  # type: ignore[misc]


class Runner(StopServices, DiscoverRunner):
    """Django's own test runner, for ``TEST_RUNNER``."""


def _stop_live_services() -> None:
    live = ", ".join(sorted(str(each.database) for each in opened_databases()))
    if live:
        _log.warning(
            "The tests import a module that calls service() for the database %s, before the test "
            "databases exist. This service is stopped, so that no test touches that database. "
            "Call service() in a function, such as one that makes the worker.",
            live,
        )
    stop_services()


def _prepare_copies(connection: Any, *, complete: bool) -> None:
    """Stop the services that migrations have made before Django copies their database.

    PostgreSQL copies none that anybody is connected to. ``complete`` writes what is in the
    write-ahead log to the file that is copied.
    """
    clone = connection.creation.clone_test_db

    def prepare_and_clone(*arguments: Any, **options: Any) -> None:
        stop_services()
        if complete:
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        clone(*arguments, **options)

    connection.creation.clone_test_db = prepare_and_clone


def _remove_left(database: Path) -> None:
    """Remove write-ahead logs of a test database, and of its copies for parallel tests."""
    left = re.compile(
        rf"{re.escape(database.stem)}(_[0-9]+)?{re.escape(database.suffix)}-(wal|shm)"
    )
    if database.parent.is_dir():
        for file in database.parent.iterdir():
            if left.fullmatch(file.name):
                file.unlink()
