"""A pytest plugin: an empty database on every engine, and queues in it.

A project turns it on in its top-level ``conftest.py``::

    pytest_plugins = ["queue_over_sql.testing.plugin"]

Fixtures
    ``database``
        an empty database; the test runs once on each engine. A process of tests has one database on
        each server, and empties it for each test. The library's own tables may exist without rows,
        because creating them takes longer than most tests. ``@pytest.mark.empty_database`` drops
        them, too.
    ``service``, ``make_service``, ``queue``
        services on that database, stopped when the test ends, and a queue named ``jobs``.
    ``engine``
        the test's own SQLAlchemy engine on that database.
    ``server``
        a server for this test alone, which it may stop and kill; once per server engine.

``--engines=sqlite,h2`` chooses engines. By default all are required: SQLite, PostgreSQL, MySQL,
MariaDB and H2. A missing server is an error and not a skip.
``@pytest.mark.engines("postgresql")`` runs a test only on these engines.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pytest

from queue_over_sql.testing.servers import (
    DEFAULT_ENGINES,
    SERVER_ENGINES,
    Server,
    ServerMissing,
    obtain,
    obtain_private,
)
from queue_over_sql.testing.servers.process import folder_variable, numbers

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from queue_over_sql import Queue, QueueService

pytest.register_assert_rewrite("queue_over_sql.testing.contract")

_EMBEDDED = "sqlite"
_selected = pytest.StashKey[tuple[str, ...]]()


@dataclass(frozen=True)
class TestDatabase:
    """An empty database that several processes may use."""

    __test__: ClassVar[bool] = False

    engine: str
    """The engine's name."""
    url: str
    """Its SQLAlchemy URL."""


class TestServer:
    """A server for one test alone, with one database, whose port and data survive restarts."""

    __test__: ClassVar[bool] = False

    def __init__(self, server: Server, database: str) -> None:
        self.engine = server.engine
        self.url = server.create_database(database)
        self.start = server.start
        """Start it again; returns when it answers."""
        self.stop = server.stop
        """Stop it gracefully; returns when it has ended."""
        self.kill = server.kill
        """Kill it as ``kill -9`` does; returns when it has ended."""


class MakeService(Protocol):
    """Makes another service on the test's database."""

    def __call__(self, **settings: object) -> QueueService:
        """Return a new service; `settings` are those of `QueueService`."""


class _Servers:
    """The servers of this test run, each started when first needed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[str, Server] = {}
        self._missing: dict[str, str] = {}
        self._databases: dict[str, str] = {}

    def get(self, engine: str) -> Server:
        if engine in self._missing:
            raise ServerMissing(self._missing[engine])
        if engine not in self._started:
            try:
                self._started[engine] = self._stack.enter_context(obtain(engine))
            except ServerMissing as error:
                self._missing[engine] = str(error)
                raise
        return self._started[engine]

    def database(self, engine: str, *, keep: bool) -> str:
        """Return the URL of this process's database on a server, emptied.

        Args:
            engine: the engine of the server.
            keep: keep the library's own tables, without rows; otherwise create a new database.
        """
        server, name = self.get(engine), self._databases.get(engine)
        if name is not None and keep:
            server.clear_database(name, _is_system)
            return server.url(name)
        if name is not None:
            server.drop_database(name)
        self._databases[engine] = name = _fresh_name()
        return server.create_database(name)

    def close(self) -> None:
        for engine, name in self._databases.items():
            self._started[engine].drop_database(name)
        self._stack.close()


@cache
def _system_tables() -> frozenset[str]:
    from queue_over_sql.inside.testing import system_table_names

    return system_table_names()


def _is_system(table: str) -> bool:
    return table.lower() in _system_tables()


# ---------------------------------------------------------------- options and parametrisation


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--engines``."""
    parser.addoption(
        "--engines",
        metavar="NAMES",
        help="run on these engines only, separated by commas: sqlite, postgresql, mariadb, …",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the engines, and share the H2 jar and fetched servers between test processes."""
    config.addinivalue_line("markers", "engines(*names): run on these engines only")
    config.addinivalue_line(
        "markers", "empty_database: needs a database without the library's own tables"
    )
    cache = config.rootpath / ".cache"
    jars = sorted(cache.glob("h2-*.jar"), key=numbers)
    if jars:
        os.environ.setdefault("H2_JAR", str(jars[-1]))
    for engine in SERVER_ENGINES:
        if (programs := cache / "servers" / engine / "bin").exists():
            os.environ.setdefault(folder_variable(engine), str(programs))
    config.stash[_selected] = _select(config.getoption("--engines"))


def _select(option: str | None) -> tuple[str, ...]:
    if option is None:
        return DEFAULT_ENGINES
    names = tuple(name.strip() for name in option.split(",") if name.strip())
    unknown = sorted(set(names) - {_EMBEDDED, *SERVER_ENGINES})
    if unknown:
        raise pytest.UsageError(f"--engines: unknown engine {', '.join(unknown)}")
    if not names:
        raise pytest.UsageError("--engines: name at least one engine")
    return names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests on each engine that was selected or that the test's marker names."""
    marker = metafunc.definition.get_closest_marker("engines")
    names = tuple(marker.args) if marker else metafunc.config.stash[_selected]
    if "engine_name" in metafunc.fixturenames:
        metafunc.parametrize("engine_name", names)
    if "server_engine" in metafunc.fixturenames:
        servers = [name for name in names if name in SERVER_ENGINES]
        metafunc.parametrize("server_engine", servers)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of engines that were not selected."""
    selected = config.stash[_selected]
    dropped = {item: None for item in items if not _engines_of(item) <= set(selected)}
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]


def _engines_of(item: pytest.Item) -> set[str]:
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return {parameters[name] for name in ("engine_name", "server_engine") if name in parameters}


# ---------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def servers() -> Iterator[_Servers]:
    """The servers of this test run."""
    running = _Servers()
    yield running
    running.close()


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a SQLite file with the library's own tables, which is copied for each test."""

    @cache
    def made() -> Path:
        from queue_over_sql import QueueService

        file = tmp_path_factory.mktemp("sqlite") / "template.db"
        service = QueueService(f"sqlite:///{file}")
        service.queues()
        service.stop()
        return file

    return made


@pytest.fixture
def database(
    request: pytest.FixtureRequest,
    engine_name: str,
    servers: _Servers,
    tmp_path: Path,
    _template: Callable[[], Path],
) -> Iterator[TestDatabase]:
    """An empty database; see the marker ``empty_database``."""
    empty = request.node.get_closest_marker("empty_database") is not None
    if engine_name == _EMBEDDED:
        file = tmp_path / "queues.db"
        if not empty:
            shutil.copy(_template(), file)
        yield TestDatabase(engine_name, f"sqlite:///{file}")
        return
    _or_fail(engine_name, servers.get)
    yield TestDatabase(engine_name, servers.database(engine_name, keep=not empty))
    if empty:
        # The test may have left tables of another version or owner.
        servers.database(engine_name, keep=False)


@pytest.fixture
def server(server_engine: str) -> Iterator[TestServer]:
    """A running server for this test alone, which it may stop, kill and start again."""
    with _or_fail(server_engine, obtain_private) as private:
        yield TestServer(private, _fresh_name())


@pytest.fixture
def make_service(database: TestDatabase) -> Iterator[MakeService]:
    """Make services on the test's database; all are stopped at the end."""
    from queue_over_sql import QueueService

    with ExitStack() as stack:

        def make(**settings: Any) -> QueueService:
            service = QueueService(database.url, **{"consumer_timeout": 5.0, **settings})
            stack.callback(service.stop)
            return service

        yield make


@pytest.fixture
def engine(database: TestDatabase) -> Iterator[Engine]:
    """The test's own engine on that database."""
    from sqlalchemy import create_engine

    own = create_engine(database.url)
    yield own
    own.dispose()


@pytest.fixture
def service(make_service: MakeService) -> QueueService:
    """A service on the test's database, with a consumer timeout of five seconds."""
    return make_service()


@pytest.fixture
def queue(service: QueueService) -> Queue:
    """The queue ``jobs`` of the service."""
    return service.create_queue("jobs")


def _fresh_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"


def _or_fail(engine: str, obtain: Callable[[str], Server]) -> Server:
    """Return the server, or fail the test, because a missing engine must not pass unnoticed."""
    try:
        return obtain(engine)
    except ServerMissing as error:
        pytest.fail(f"engine {engine} is required: {error}", pytrace=False)
