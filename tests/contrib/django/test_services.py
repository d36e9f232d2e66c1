"""The services of Django's databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from queue_over_sql import ServiceClosed
from queue_over_sql.testing import drain
from queue_over_sql.testing.plugin import TestDatabase
from tests.contrib.django import site

TLS = {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}


@pytest.mark.parametrize(
    ("backend", "options", "expected", "host"),
    [
        (
            "postgresql",
            {**TLS, "pool": True, "isolation_level": 3, "assume_role": "app"},
            {**TLS, "options": "-c role=app"},
            "db",
        ),
        (
            "postgresql",
            {"assume_role": "app", "options": "-c search_path=shop"},
            {"options": "-c search_path=shop -c role=app"},
            "db",
        ),
        (
            "mysql",
            {"ssl": {"ca": "/etc/ca.pem"}, "charset": "utf8mb4", "init_command": "SET x = 1"},
            {"ssl_ca": "/etc/ca.pem", "charset": "utf8mb4"},
            "db",
        ),
        ("mysql", {"ssl_mode": "REQUIRED"}, {"ssl_check_hostname": "false"}, "db"),
        (
            "mysql",
            {"ssl": {"ca": "/etc/ca.pem"}, "ssl_mode": "VERIFY_IDENTITY"},
            {"ssl_ca": "/etc/ca.pem", "ssl_check_hostname": "true"},
            "db",
        ),
        ("mysql", {"ssl_mode": "PREFERRED"}, {}, "db"),
        # Without a CA the driver would check nothing, so it gets to see the word and refuses it.
        ("mysql", {"ssl_mode": "VERIFY_CA"}, {"ssl_mode": "VERIFY_CA"}, "db"),
        ("mysql", {}, {"unix_socket": "/run/mysqld.sock"}, "/run/mysqld.sock"),
        ("postgresql", {}, {"host": "/run/postgresql"}, "/run/postgresql"),
        ("sqlite3", {"transaction_mode": "IMMEDIATE", "timeout": 20}, {"timeout": "20"}, ""),
    ],
)
def test_the_url_keeps_the_options_of_the_driver(
    backend: str, options: dict[str, Any], expected: dict[str, str], host: str
) -> None:
    """Without ``sslmode`` the queues would talk to the same server in the clear.

    A host that begins with a slash is a socket, and the URL as text has it, too.
    """
    site.set_up()
    from django import db

    from queue_over_sql.contrib.django import url

    handler: Any = db.connections
    place = {"ENGINE": f"django.db.backends.{backend}", "NAME": "shop", "OPTIONS": options}
    place |= {"HOST": host}
    handler.settings["asked"] = handler.configure_settings({"default": place})["default"]
    found = url("asked")
    del handler["asked"], handler.settings["asked"]
    assert expected == dict(found.query)
    assert found == make_url(found.render_as_string(hide_password=False))
    assert ("db" == host) == (found.host is not None)


@pytest.mark.engines("sqlite")
def test_no_test_reaches_the_live_database(
    shop: Any,
    database: TestDatabase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that a module made at its import is refused, and the log says what to change."""
    from django.test.runner import DiscoverRunner

    from queue_over_sql.contrib.django.runner import Runner
    from queue_over_sql.contrib.django.running import make_worker

    result, early = shop.add.enqueue(1, two=2), make_worker()
    monkeypatch.setattr(DiscoverRunner, "setup_databases", lambda _, **options: options)
    runner = Runner(keepdb=True)
    assert {"interactive": False} == runner.setup_databases(interactive=False)
    with pytest.raises(ServiceClosed):
        drain(early)
    result.refresh()
    assert ("READY", 0) == (result.status, result.attempts)
    [told] = [each.getMessage() for each in caplog.records if "runner" in each.name]
    assert f"for the database {make_url(database.url).database}," in told


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("shop")
def test_no_service_is_open_while_databases_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration may have made one, and PostgreSQL copies no database that is in use."""
    from django.db import connections
    from django.test.runner import DiscoverRunner

    from queue_over_sql.contrib.django import service
    from queue_over_sql.contrib.django.runner import Runner
    from queue_over_sql.contrib.django.services import opened_databases

    creation, opened = connections["default"].creation, list[bool]()

    def set_up(_: Any) -> None:
        assert service().queue("default").stats().ready == 0
        creation.clone_test_db(suffix="1")

    monkeypatch.setattr(
        creation, "clone_test_db", lambda **_: opened.append(bool(list(opened_databases())))
    )
    monkeypatch.setattr(DiscoverRunner, "setup_databases", set_up)
    Runner(keepdb=True).setup_databases()
    assert [False] == opened


def test_what_parallel_tests_leave_is_removed(tmp_path: Path) -> None:
    """SQLite would read it into the next database of the same name; others' files stay."""
    site.set_up()
    from queue_over_sql.contrib.django.runner import _remove_left

    left = {"test.db-wal", "test_1.db-wal", "test_1.db-shm"}
    others = {"test.db", "testing.db-wal", "site.db-wal", "test_1.db", "test_live.db-wal"}
    for name in left | others:
        (tmp_path / name).touch()
    _remove_left(tmp_path / "test.db")
    assert others == {file.name for file in tmp_path.iterdir()}
