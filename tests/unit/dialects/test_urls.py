"""URLs of databases: how messages show them, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import DBAPIError

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.database.urls import insist_on_file, read_url, shown_url
from queue_over_sql.dialects.engines import EngineForm

SHOWN = [
    ("postgresql://me:hunter2@host/db", "postgresql://me:***@host/db"),
    (
        "postgresql://host/db?user=me&password=hunter2",
        "postgresql://host/db?password=***&user=me",
    ),
    ("mysql+pymysql://host/db?passwd=hunter2", "mysql+pymysql://host/db?passwd=***"),
    ("postgresql://host/db?sslpassword=hunter2", "postgresql://host/db?sslpassword=***"),
    ("sqlite:///queue.db", "sqlite:///queue.db"),
    ("sqlite:////home/me@work/a:b.db", "sqlite:////home/me%40work/a%3Ab.db"),
    ("postgresql://me@host/db?user=a@b", "postgresql://me@host/db?user=a%40b"),
    # An @ that was not escaped; where the password ends is anybody's guess but not ours.
    ("postgresql://me:hunt@er2@host:1/db", "postgresql://me:***@host:1/db"),
    ("postgresql://me:hunt@er/2@host/db", "postgresql://me:***@host/db"),
    ("postgresql://me:hunt@er:5/2@host/db", "postgresql://me:***@host/db"),
    ("postgresql://me:hunt@er?a=2@host/db", "postgresql://me:***@host%2Fdb"),
    ("postgresql://me:hunt@er?2@=host", "postgresql://me:***@=host"),
]


def test_a_url_is_shown_without_its_password() -> None:
    """Also where it stands among the parameters, as drivers take it there."""
    assert SHOWN == [(url, shown_url(make_url(url))) for url, _ in SHOWN]


def test_an_error_does_not_tell_a_password_of_the_parameters() -> None:
    """What cannot be reached is named, and ends up in logs."""
    pytest.importorskip("psycopg")
    service = QueueService("postgresql://127.0.0.1:1/db?user=me&password=hunter2")
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1") as caught:
        service.queue("orders")
    assert "hunter2" not in str(caught.value)


def test_the_file_that_a_database_needs_is_known() -> None:
    """Servers and databases in memory need none; what is not there is refused and not made."""
    for url in (
        "sqlite://",
        "sqlite:///file:x?mode=memory&uri=true",
        "postgresql://host/none",
        "h2:///mem:none",
        "h2://host/./none",
        "h2:///zip:none.zip!/none",
    ):
        insist_on_file(make_url(url))
    for url, file in (
        ("sqlite:///none.db", "none.db"),
        ("sqlite:///file:none.db?uri=true", "none.db"),
        ("h2:///./none", "none.mv.db"),
        ("h2:///file:/none/queues", "/none/queues.mv.db"),
        ("h2:///~/none/queues", str(Path.home() / "none/queues.mv.db")),
    ):
        with pytest.raises(DatabaseUnavailable) as caught:
            insist_on_file(make_url(url))
        assert f"no file {Path(file).absolute()} on" in str(caught.value), url


def test_a_uri_that_would_be_the_name_of_a_file_is_refused(tmp_path: Path) -> None:
    """As Django's name of a test database in memory is; with uri=true it is one."""
    name = "file:memorydb_default?mode=memory&cache=shared"
    given = (
        URL.create("sqlite", database=name),
        f"sqlite:///{name}",
        f"sqlite:///file:{tmp_path}/queue.db",
        f"sqlite+pysqlite:///{name}&uri=false",
    )
    for url in given:
        with pytest.raises(ValueError, match=r"add uri=true.*Django.*'TEST': {'NAME'"):
            QueueService(url)
    assert [] == list(tmp_path.iterdir())
    with QueueService(f"sqlite:///file:{tmp_path}/queue.db?uri=true") as service:
        service.create_queue("jobs")
    assert "queue.db" in {file.name for file in tmp_path.iterdir()}


def test_an_unescaped_at_sign_is_refused() -> None:
    """A host has none, and drivers tell what they took for one when they cannot find it."""
    for rest in ("er2@127.0.0.1:1/db", "@127.0.0.1:1/db", "h?er2@h/db", "h?a=b&er2@h"):
        with pytest.raises(ValueError, match="write %40") as caught:
            QueueService(f"postgresql://me:hunt@{rest}")
        assert "er2" not in str(caught.value), rest


def test_an_error_does_not_tell_what_may_be_of_a_password() -> None:
    """The host that a driver cannot find may be the middle of a password with @ and /."""
    pytest.importorskip("psycopg")
    service = QueueService("postgresql://me:hunt@127.0.0.1:1/ter2@host/db")
    with pytest.raises(DatabaseUnavailable, match=r"postgresql\+psycopg://me:\*\*\*@host/db") as it:
        service.queue("orders")
    assert "127.0.0.1" not in str(it.value)


def test_a_port_that_is_no_number() -> None:
    """An unescaped character of a password can make a port of its rest, so it is not told."""
    with pytest.raises(ValueError, match="SQLAlchemy URL whose port is not a number") as caught:
        read_url("postgresql://me@host:hunter2/db")
    assert caught.value.__cause__ is None
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "threshold"), [("none", None), ("None", None), ("0", 0), ("7", 7)]
)
def test_a_url_says_when_statements_are_prepared(text: str, threshold: int | None) -> None:
    """The driver takes a number or None, and a URL has only texts."""
    pytest.importorskip("psycopg")
    url = make_url(f"postgresql://127.0.0.1:1/db?prepare_threshold={text}")
    engine = EngineForm().open(url).engine
    given: dict[str, Any] = {}

    @event.listens_for(engine, "do_connect")
    def note(_: Any, __: Any, ___: Any, parameters: dict[str, Any]) -> None:
        given.update(parameters)

    with pytest.raises(DBAPIError):
        engine.connect()
    assert threshold == given["prepare_threshold"]


@pytest.mark.parametrize("text", ["-1", "many", "1&prepare_threshold=2"])
def test_another_threshold_is_refused(text: str) -> None:
    """Else psycopg would fail with the first statement."""
    with pytest.raises(ValueError, match="or none to disable"):
        QueueService(f"postgresql://127.0.0.1:1/db?prepare_threshold={text}")
