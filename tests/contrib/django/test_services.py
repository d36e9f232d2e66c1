"""The services of Django's databases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contrib.django import site

TLS = {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}


@pytest.mark.parametrize(
    ("backend", "options", "expected"),
    [
        ("postgresql", {**TLS, "pool": True, "isolation_level": 3, "assume_role": "app"}, TLS),
        (
            "mysql",
            {"ssl": {"ca": "/etc/ca.pem"}, "charset": "utf8mb4", "init_command": "SET x = 1"},
            {"ssl_ca": "/etc/ca.pem", "charset": "utf8mb4"},
        ),
        ("sqlite3", {"transaction_mode": "IMMEDIATE", "timeout": 20}, {"timeout": "20"}),
    ],
)
def test_the_url_keeps_the_options_of_the_driver(
    backend: str, options: dict[str, Any], expected: dict[str, str]
) -> None:
    """Without ``sslmode`` the queues would talk to the same server in the clear."""
    site.set_up()
    from django import db

    from queue_over_sql.contrib.django import url

    handler: Any = db.connections
    place = {"ENGINE": f"django.db.backends.{backend}", "NAME": "shop", "OPTIONS": options}
    handler.settings["asked"] = handler.configure_settings({"default": place})["default"]
    found = url("asked")
    del handler["asked"], handler.settings["asked"]
    assert expected == dict(found.query)
