"""The tables of tokens and of the audit, on every engine."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from sqlalchemy import create_engine, text

from queue_over_sql import QueueService
from queue_over_sql.service import parts_of
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import TokenTaken, WebStore, hash_of

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import MakeService


def store_of(service: QueueService, **settings: float) -> WebStore:
    """The tables as a service sees them."""
    return WebStore(service, WebSettings(**settings))  # type: ignore[arg-type]


def test_tokens(service: QueueService) -> None:
    """A token is kept as its hash, with its role, until it is removed."""
    store = store_of(service)
    assert store.prepare()
    assert store.prepare()
    secret, made = store.add_token("ada", Role.OPERATOR, timedelta(days=90))
    store.add_token("bob@example.org", Role.VIEWER)
    with pytest.raises(TokenTaken):
        store.add_token("ada", Role.ADMIN)
    for wrong in ("", " ", "a b", "é", "-x", "x" * 101, "a\n"):
        with pytest.raises(ValueError, match="letters"):
            store.add_token(wrong, Role.ADMIN)
    ada, bob = store.tokens()
    assert made == ada
    assert hash_of(secret) == ada.token_hash
    assert bob.expires_at is None
    assert ada.expires_at is not None
    assert timedelta(days=90) == ada.expires_at - ada.created_at
    assert secret not in repr(ada)
    assert [True, False] == [store.remove_token("ada"), store.remove_token("ada")]


def test_names_differ_by_case(service: QueueService) -> None:
    """What two names share is nothing but letters."""
    store = store_of(service)
    store.prepare()
    store.add_token("ada", Role.VIEWER)
    store.add_token("Ada", Role.ADMIN)
    assert {"ada", "Ada"} == {token.name for token in store.tokens()}


def test_audit(service: QueueService) -> None:
    """Rows come newest first, page by page, whole or of one queue; any text is kept."""
    store = store_of(service)
    store.prepare()
    hostile = "<b>\0\u202e\ud800" + "x" * 5_000
    for number in range(5):
        store.write_audit(
            "ada" + hostile,
            "admin",
            "messages.delete",
            queue="jobs" if number % 2 else None,
            count=number,
            address="2001:db8::1",
            detail=hostile,
        )
    first = store.audit(limit=3)
    rest = store.audit(limit=3, before=first[-1].id)
    assert [4, 3, 2, 1, 0] == [row.count for row in [*first, *rest]]
    assert [3, 1] == [row.count for row in store.audit(queue="jobs")]
    assert [3, 1] == [row.count for row in store.audit(queue="jobs", what="messages.delete")]
    assert 5 == len(store.audit(day=first[0].at.date()))
    day = first[0].at.date() - timedelta(days=1)
    assert [] == store.audit(day=day) == store.audit(who="ada") == store.audit(what="hold")
    store.write_audit("ada", "admin", "hold")
    assert 1 == len(store.audit(who="ada", what="hold"))
    assert 200 == len(first[0].who)
    assert 2_000 == len(first[0].detail or "")
    assert first[0].at >= rest[-1].at


def test_audit_is_bounded(service: QueueService) -> None:
    """What is too old goes, and what is too much."""
    store = store_of(service, keep_audit_rows=3)
    store.prepare()
    for number in range(5):
        store.write_audit("ada", "admin", "pause", count=number)
    store.prune_audit()
    assert [4, 3, 2] == [row.count for row in store.audit()]
    brief = store_of(service, keep_audit_days=1e-12)
    assert 3 == brief.prune_audit()
    assert [] == store.audit()


def test_prefixes_are_apart(make_service: MakeService) -> None:
    """Services of different table prefixes share the tables, and see nothing of each other."""
    one, other = store_of(make_service()), store_of(make_service(table_prefix="other_"))
    for store in (one, other):
        store.prepare()
        store.add_token("ada", Role.VIEWER)
        store.write_audit("ada", "viewer", "login")
    assert one.remove_token("ada")
    assert 0 == len(one.tokens())
    assert 1 == len(other.tokens())
    assert 1 == len(one.audit())
    assert 1 == len(other.audit())


def test_makers_meet(make_service: MakeService) -> None:
    """Servers that start at once make the tables once."""
    stores = [store_of(make_service()) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [True] * 4 == list(pool.map(WebStore.prepare, stores))
    assert stores[0].takes_writes()


@pytest.mark.engines("postgresql")
def test_standby(make_service: MakeService) -> None:
    """A database that takes no writes is noticed, and viewed all the same."""
    writing = make_service()
    store = store_of(writing)
    store.prepare()
    store.add_token("ada", Role.VIEWER)
    url = parts_of(writing).connections.engine.url
    engine = create_engine(url, connect_args={"options": "-c default_transaction_read_only=on"})
    with QueueServiceOn(engine) as service:
        reading = store_of(service)
        assert reading.prepare()
        assert not reading.takes_writes()
        assert ["ada"] == [token.name for token in reading.tokens()]
    engine.dispose()


@pytest.mark.engines("postgresql")
def test_login_without_rights(make_service: MakeService) -> None:
    """Where the login may not make the tables it is said what is missing, and who can help."""
    owner = make_service()
    owner.create_queue("jobs")
    engine = parts_of(owner).connections.engine
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS web_looker"))
        connection.execute(text("CREATE ROLE web_looker LOGIN PASSWORD 'secret'"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO web_looker"))
    try:
        url = engine.url.set(username="web_looker", password="secret")
        looker = QueueService(url)
        store = store_of(looker)
        assert not store.prepare()
        assert "may not create them" in str(store.problem)
        looker.stop()
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY web_looker"))
            connection.execute(text("DROP ROLE web_looker"))


class QueueServiceOn(QueueService):
    """A service that is not started: it only looks."""

    def __enter__(self) -> Self:
        return self


@pytest.mark.engines("sqlite")
def test_file_without_the_right_to_write(service: QueueService, tmp_path: Path) -> None:
    """So it is with a file that may only be read."""
    store_of(service).prepare()
    service.stop()
    folder = tmp_path / "frozen"
    folder.mkdir()
    file = Path(shutil.copy(tmp_path / "queues.db", folder))
    looking = QueueService(f"sqlite:///file:{file}?mode=ro&uri=true")
    store = store_of(looking)
    assert store.prepare()
    assert not store.takes_writes()
    looking.stop()
