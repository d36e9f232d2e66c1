"""H2 driver: SQLAlchemy URLs become JDBC URLs with safe defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from sqlalchemy_h2 import H2Dialect
from tests.refusals import refused

pytestmark = pytest.mark.engines("h2")

LOCK = ";LOCK_TIMEOUT=10000"


@pytest.fixture(autouse=True)
def _h2_only(engine_name: str) -> None:
    """Let ``--engines`` leave these tests out with those that need H2."""


def arguments(url: str) -> dict[str, Any]:
    positional, named = H2Dialect().create_connect_args(make_url(url))
    assert [] == positional
    return named


JDBC = [
    ("h2+jaydebeapi:////data/x", f"jdbc:h2:file:/data/x{LOCK}"),
    ("h2:////data/x", f"jdbc:h2:file:/data/x{LOCK}"),
    ("h2:///~/x", f"jdbc:h2:file:~/x{LOCK}"),
    ("h2:///./a/x", f"jdbc:h2:file:{Path.cwd()}/a/x{LOCK}"),
    ("h2:///file:./x", f"jdbc:h2:file:{Path.cwd()}/x{LOCK}"),
    ("h2:///mem:x", f"jdbc:h2:mem:x{LOCK}"),
    ("h2:///mem%3Ax", f"jdbc:h2:mem:x{LOCK}"),
    ("h2://sa:@127.0.0.1:9092/./db", f"jdbc:h2:tcp://127.0.0.1:9092/./db{LOCK}"),
    ("h2://host//abs/db", f"jdbc:h2:tcp://host//abs/db{LOCK}"),
    ("h2://host/db?transport=ssl", f"jdbc:h2:ssl://host/db{LOCK}"),
    ("h2:////x?auto_server=TRUE", f"jdbc:h2:file:/x{LOCK};AUTO_SERVER=TRUE"),
    ("h2:////x?LOCK_TIMEOUT=5", "jdbc:h2:file:/x;LOCK_TIMEOUT=5"),
]


def test_jdbc_url() -> None:
    """Each documented form gives its JDBC URL; settings of the URL win over the defaults."""
    assert JDBC == [(url, arguments(url)["url"]) for url, _ in JDBC]


ADMIN = [
    ("h2:////x", ";WRITE_DELAY=0;OPTIMIZE_REUSE_RESULTS=0"),
    ("h2:////x?write_delay=50&OPTIMIZE_REUSE_RESULTS=1", ""),
    ("h2:///mem:x", ";WRITE_DELAY=0;OPTIMIZE_REUSE_RESULTS=0;DB_CLOSE_DELAY=-1"),
    ("h2://h/mem:x", ";WRITE_DELAY=0;OPTIMIZE_REUSE_RESULTS=0;DB_CLOSE_DELAY=-1"),
    (
        "h2:///mem:x?DB_CLOSE_DELAY=0",
        ";WRITE_DELAY=0;OPTIMIZE_REUSE_RESULTS=0",
    ),
]


def test_admin_settings() -> None:
    """Commits are written at once and memory is kept, unless the URL says otherwise."""
    assert ADMIN == [(url, arguments(url)["admin_settings"]) for url, _ in ADMIN]


def test_user_and_password() -> None:
    """The user is sa with an empty password unless given; escapes are undone."""
    assert ("sa", "") == tuple(arguments("h2:///mem:x")[key] for key in ("user", "password"))
    given = arguments("h2://app:p%40ss@h/x")
    assert "app" == given["user"]
    assert "p@ss" == given["password"]


def test_own_keys() -> None:
    """jar, jvm and jvm_args go to the driver and not to H2."""
    given = arguments("h2:////x?jar=/a/h2.jar&jvm=/java&jvm_args=-Xmx1g+-Da%3Db")
    assert f"jdbc:h2:file:/x{LOCK}" == given["url"]
    assert "/a/h2.jar" == given["jar"]
    assert "/java" == given["jvm_path"]
    assert ("-Xmx1g", "-Da=b") == given["jvm_args"]


def test_semicolons_are_refused() -> None:
    """No part of a URL can smuggle a setting (INIT runs SQL, which can run Java)."""
    wrong = (
        "h2:////x%3BINIT=RUNSCRIPT",
        "h2:////x?CACHE_SIZE=1%3BINIT=RUNSCRIPT",
        "h2:////x?CACHE%3BSIZE=1",
        "h2://u%3Bx@h/x",
        "h2://u:p%3Bx@h/x",
        "h2:////x?%3BINIT=1",
    )
    for url in wrong:
        with refused(url, ArgumentError, match="';'"):
            arguments(url)


def test_incomplete_urls_are_refused() -> None:
    """A URL without a database, or with an unknown transport, is an ArgumentError."""
    for url in ("h2://", "h2:///", "h2:///mem:", "h2://host", "h2://h/x?transport=web"):
        with refused(url, ArgumentError):
            arguments(url)
