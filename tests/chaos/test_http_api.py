"""Node, shells and Python workers drain one queue; some of each, and the server, are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import Engine

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore
from tests.chaos.account import archived_count, archived_tokens, live_tokens, repeated
from tests.chaos.processes import REPOSITORY, Crew, Process
from tests.chaos.roles import consumer, web_server
from tests.chaos.test_mixed import finish, start
from tests.waiting import eventually

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(240),
    pytest.mark.default_on("sqlite", "postgresql"),
]

EXAMPLES = REPOSITORY / "examples" / "http"
LEASE = 3
CLIENTS = (
    ("node", str(EXAMPLES / "worker.mjs")),
    ("sh", str(EXAMPLES / "worker.sh")),
)


class Client:
    """A program in another language, which prints each message that it has acknowledged."""

    def __init__(self, command: tuple[str, ...], address: str, token: str, said: Path) -> None:
        self.said = said
        with said.open("wb") as out:
            self._popen = subprocess.Popen(
                [*command, "jobs", str(LEASE)],
                env={**os.environ, "QUEUES_URL": address, "QUEUES_TOKEN": token},
                stdout=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL, to the programs that it has started, too."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(60)

    def check_alive(self) -> None:
        """Fail where it has ended by itself."""
        assert self._popen.poll() is None, f"{self._popen.args!r} ended"

    def acked(self) -> list[str]:
        """The tokens of what it has acknowledged."""
        lines = self.said.read_text().splitlines(keepends=True)
        return [_token_of(line) for line in lines if line.endswith("\n")]


def _token_of(line: str) -> str:
    if line.startswith("{"):
        return str(json.loads(line)["messages"][0]["payload"]["token"])
    return str(json.loads(line.partition(" ")[2])["token"])


class Publisher(threading.Thread):
    """Publishes over HTTP until it is stopped, each message under a key, again where it must."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._token = token
        self.enough = threading.Event()
        self.published: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Publish."""
        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            with httpx2.Client(headers=headers, trust_env=False) as client:
                while not self.enough.wait(0.01):
                    self._publish(client, f"http-{len(self.published)}")
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self.failure = error

    def check(self) -> None:
        """Raise what it failed with."""
        if self.failure is not None:
            raise self.failure

    def _publish(self, client: httpx2.Client, token: str) -> None:
        while True:
            try:
                answer = client.post(
                    f"{self._address}/queues/jobs/messages",
                    headers={"Idempotency-Key": token},
                    json={"payload": {"token": token, "claim": '"claim":"x"}]}'}},
                )
            except httpx2.TransportError:
                time.sleep(0.05)
                continue
            assert answer.is_success or answer.status_code == 503, answer.text
            if answer.is_success:
                self.published.append(token)
                return


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.full)])
def test_all_languages_drain_one_queue(
    kills: int,
    make_service: MakeService,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
) -> None:
    """Each message is finished once, whoever is killed: clients, workers or the server."""
    assert shutil.which("node")
    assert shutil.which("curl")
    service = make_service()
    service.create_queue("jobs", archive="all", max_attempts=10_000, lease=5.0)
    store = WebStore(service, WebSettings())
    assert store.prepare()
    token, _ = store.add_token("clients", Role.OPERATOR)
    luck = random.Random(17)  # noqa: S311 - chance, not a secret
    place = web_server.Arguments(database.url, free_port())
    address = f"http://127.0.0.1:{place.port}/api/v1"
    server = _serve(crew, place)
    publisher = Publisher(address, token)
    publisher.start()
    readers = [
        start(crew.spawn(consumer.Arguments(database.url, str(crew.journals), batch=3)))
        for _ in range(2)
    ]
    everybody: list[Client] = []
    with ExitStack() as ending:

        def join(command: tuple[str, ...]) -> Client:
            said = crew.journals.parent / f"client-{len(everybody)}"
            client = Client(command, address, token, said)
            ending.callback(client.kill)
            everybody.append(client)
            return client

        clients = [(command, join(command)) for command in CLIENTS for _ in range(2)]
        for number in range(2 * kills):
            _all_go_on(clients, publisher)
            time.sleep(luck.uniform(0.0, 0.3))  # somewhere within whatever they do
            command, victim = clients.pop(0)
            victim.kill()
            clients.append((command, join(command)))
            if number % 2:
                server.kill()
                server = _serve(crew, place)
        _all_go_on(clients, publisher)
        readers.pop().kill()
        publisher.enough.set()
        publisher.join(60)
        publisher.check()
        published = sorted(publisher.published)
        eventually(
            lambda: archived_count(sql) >= len(published) and not live_tokens(sql),
            "all published messages finished",
            within=90,
            every=0.2,
        )
        for _, client in clients:
            client.check_alive()
        finish(readers)

    assert published == sorted(archived_tokens(sql, "done"))
    account = crew.account()
    acked = [each for client in everybody for each in client.acked()]
    by_python = account.tokens("settled", "ack")
    assert [] == repeated(acked + by_python)
    assert set(acked) | set(by_python) <= set(published)
    assert [] == account.check()


def _serve(crew: Crew, place: web_server.Arguments) -> Process:
    server = crew.spawn(place)
    server.expect("ready")
    return server


def _all_go_on(clients: Sequence[tuple[tuple[str, ...], Client]], publisher: Publisher) -> None:
    """Wait until each client has acknowledged one more message."""
    for _, client in clients:
        before = len(client.acked())

        def goes_on(client: Client = client, before: int = before) -> bool:
            publisher.check()
            return len(client.acked()) > before

        eventually(goes_on, "it goes on")


def free_port() -> int:
    """A port that nobody has taken."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
