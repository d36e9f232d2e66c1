"""Fixtures of the contract suite beside those that every suite shares, and its two faces.

Each test runs on threads and on an event loop: there ``make_service`` makes asynchronous services
under the synchronous names, and ``engine`` is an asynchronous engine (see ``bridge.py``). Tests
that reach into what only threads have are marked ``threads`` with the reason.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from queue_over_sql import FixedDelay, QueueService
from queue_over_sql.dialects.async_engines import AsyncEngineForm
from tests.contract.bridge import Bridge
from tests.contract.queue_state import effects
from tests.tiers import faces_belong_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase
    from queue_over_sql.worker.worker import Worker

FACES = ("threads", "asyncio")
_bridge = pytest.StashKey[Bridge]()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of services on both faces, as far as this tier has them."""
    if "face" in metafunc.fixturenames:
        named = getattr(metafunc.cls, "only_threads", ())
        only_threads = (
            metafunc.definition.get_closest_marker("threads")
            or metafunc.function.__name__ in named
            or not faces_belong_to(metafunc)
        )
        metafunc.parametrize("face", FACES[:1] if only_threads else FACES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the event loop where no driver is for it."""
    dropped = {item: None for item in items if _has_no_driver(item)}
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]


def _has_no_driver(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
    if not parameters:
        return False
    return (parameters.get("face"), parameters.get("engine_name")) == ("asyncio", "h2")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let a test on the event loop, and its fixtures, use an asynchronous engine."""
    stash, callspec = item.config.stash, getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("face") != "asyncio" or stash.get(_inside, False):
        return None
    stash[_inside] = True
    try:
        protocol = item.config.hook.pytest_runtest_protocol
        _bridge_of(item.config).bridged(protocol, item=item, nextitem=nextitem)
    finally:
        stash[_inside] = False
    return True


_inside = pytest.StashKey[bool]()


def _bridge_of(config: pytest.Config) -> Bridge:
    if _bridge not in config.stash:
        config.stash[_bridge] = Bridge()
        config.add_cleanup(config.stash[_bridge].close)
    return config.stash[_bridge]


def asynchronous(url: str) -> str:
    """The URL of a database with the driver that an event loop has for it."""
    given = make_url(url)
    plain = given.set(drivername=given.get_backend_name())
    return AsyncEngineForm().with_driver(plain).render_as_string(hide_password=False)


@pytest.fixture
def make_service(
    face: str, database: TestDatabase, request: pytest.FixtureRequest
) -> Iterator[MakeService]:
    """Make services on the test's database; all are stopped at the end."""
    with ExitStack() as stack:

        def make(**settings: Any) -> QueueService:
            # Long enough for a busy machine; tests of expiry have their own.
            wanted = {"consumer_timeout": 30.0, **settings}
            service: QueueService
            if face == "threads":
                service = QueueService(database.url, **wanted)
            else:
                bridge = _bridge_of(request.config)
                service = bridge.service(asynchronous(database.url), **wanted)
            stack.callback(service.stop)
            return service

        yield make


@pytest.fixture
def engine(face: str, database: TestDatabase) -> Iterator[Engine]:
    """An engine of the user's own on the test's database."""
    if face == "threads":
        own = create_engine(database.url)
    else:
        own = create_async_engine(asynchronous(database.url)).sync_engine
    yield own
    own.dispose()


@pytest.fixture
def effects_engine(engine: Engine) -> Engine:
    """The user's own engine, with a table for effects."""
    effects.create(engine)
    return engine


@pytest.fixture
def outside(make_service: MakeService) -> Queue:
    """The queue as a service sees it that runs no worker."""
    return make_service().create_queue("jobs", retry=FixedDelay(0), max_attempts=3)


@pytest.fixture
def worker(make_service: MakeService, outside: Queue) -> Worker:
    """A quick worker on a service of its own, not yet running."""
    service: QueueService = make_service(reaper_interval=0.1)
    assert "jobs" == outside.name
    return service.worker(concurrency=2, poll_interval=(0.005, 0.05))
