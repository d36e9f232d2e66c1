"""A mix-in for test runners."""

from __future__ import annotations

from typing import Any

from django.test.runner import DiscoverRunner

from queue_over_sql.contrib.django.services import stop_services


class StopServices:
    """Stops the services of the tests before their databases are dropped.

    ::

        class Runner(StopServices, DiscoverRunner):
            pass
    """

    def teardown_databases(self, *arguments: Any, **options: Any) -> None:
        """Stop the services, and go on."""
        stop_services()
        super().teardown_databases(*arguments, **options)  # type: ignore[misc]


class Runner(StopServices, DiscoverRunner):
    """Django's own test runner, for ``TEST_RUNNER``."""
