"""Metrics: their values, their format for Prometheus, and the sums of several processes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import event

from queue_over_sql import ClaimLost, QueueService
from queue_over_sql.observability import counting
from queue_over_sql.observability.counting import Counting, SharedSnapshot
from queue_over_sql.observability.prometheus import (
    DatabaseCollector,
    PrometheusObserver,
    exposition,
)
from queue_over_sql.service import parts_of
from tests.cli.command_line import started, succeed
from tests.waiting import eventually, wait_until

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import MakeService, TestDatabase

ROOT = Path(__file__).parents[2]
LABELS = {"queue", "status", "outcome", "result", "state", "le"}


def samples(text: bytes) -> dict[str, float]:
    """The value of each sample of ours, by its name and labels."""
    lines = text.decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith("queue_over_sql_"))
    return {name.removeprefix("queue_over_sql_"): float(value) for name, _, value in found}


@pytest.fixture
def registry() -> CollectorRegistry:
    """One for the test alone."""
    return CollectorRegistry()


def use(service: QueueService) -> Queue:
    """Do a bit of everything."""
    queue = service.create_queue("jobs", max_attempts=2, archive="all")
    queue.publish_many(range(6))
    done, retried, rejected, released, lost = queue.consume(5)
    done.ack()
    rejected.reject("no good")
    released.release()
    lost.nack("no", delay=60)
    with pytest.raises(ClaimLost):
        lost.ack()
    retried.nack("no", delay=0)
    worker = service.worker(concurrency=1, prefetch=1, ack="each")
    handled = []

    @worker.handle("jobs")
    def handle(message: Message) -> None:
        handled.append(message.id)
        if len(handled) == 3:
            worker.stop()
        if message.id == retried.id:
            raise ValueError(message.payload)

    worker.run()
    service.reap()
    return queue


@pytest.mark.engines("sqlite")
def test_what_is_counted(make_service: MakeService, registry: CollectorRegistry) -> None:
    """By queue and outcome, with times; nothing has a label that grows with the messages."""
    service = make_service(observer=PrometheusObserver(registry))
    use(service)
    service.schedules.add("often", "jobs", {}, every=timedelta(seconds=1))
    wait_until(lambda: service.reap().scheduled)
    text = exposition(registry=registry)
    found = samples(text)
    expected = {
        'claimed_total{queue="jobs"}': 8,
        'redelivered_total{queue="jobs"}': 1,
        'wait_seconds_count{queue="jobs"}': 7,
        'handler_duration_seconds_count{queue="jobs",result="ok"}': 2,
        'handler_duration_seconds_count{queue="jobs",result="error"}': 1,
        'settled_total{outcome="done",queue="jobs"}': 3,
        'settled_total{outcome="retried",queue="jobs"}': 2,
        'settled_total{outcome="failed",queue="jobs"}': 1,
        'settled_total{outcome="rejected",queue="jobs"}': 1,
        'settled_total{outcome="released",queue="jobs"}': 1,
        'dead_lettered_total{queue="jobs"}': 2,
        'claims_lost_total{queue="jobs"}': 1,
    }
    assert expected == {name: found[name] for name in expected}
    assert found['published_total{queue="jobs"}'] >= 7
    assert found['scheduled_total{queue="jobs"}'] >= 1
    assert found["reaper_passes_total"] >= 2
    assert found["reaper_last_pass_timestamp_seconds"] > 1.7e9
    assert LABELS >= {name for names in re.findall(r"{(.*)}", text.decode()) for name in
                      re.findall(r"(\w+)=", names)}  # fmt: skip


def test_what_the_database_holds(make_service: MakeService, registry: CollectorRegistry) -> None:
    """On each engine, of each queue and of the consumers; one look serves many scrapes."""
    # Long enough for a busy machine.
    service = make_service(consumer_timeout=30.0)
    queue = use(service)
    service.create_queue("empty").pause()
    collector = DatabaseCollector(service, seconds=3600)
    found = samples(exposition(collector, registry=registry))
    ages = [found.pop(f'oldest_ready_age_seconds{{queue="{name}"}}') for name in ("jobs", "empty")]
    assert 0.0 <= found.pop("consumer_heartbeat_age_seconds") < 30
    assert 0.0 <= found.pop("counts_age_seconds") < 30
    assert found == {
        "up": 1,
        'messages{queue="jobs",status="ready"}': 0,
        'messages{queue="jobs",status="delayed"}': 1,
        'messages{queue="jobs",status="claimed"}': 0,
        'messages{queue="jobs",status="held"}': 0,
        **{
            f'messages{{queue="empty",status="{status}"}}': 0
            for status in ("ready", "delayed", "claimed", "held")
        },
        'dead_letters{queue="jobs"}': 2,
        'dead_letters{queue="empty"}': 0,
        'paused{queue="jobs"}': 0,
        'paused{queue="empty"}': 1,
        'handlers{queue="jobs"}': 1,
        'handlers{queue="empty"}': 0,
        'blocked_groups{queue="jobs"}': 0,
        'blocked_groups{queue="empty"}': 0,
        'paused_groups{queue="jobs"}': 0,
        'paused_groups{queue="empty"}': 0,
        'throttled_groups{queue="jobs"}': 0,
        'throttled_groups{queue="empty"}': 0,
        'consumers{state="alive"}': 1,
        'consumers{state="expired"}': 0,
    }
    assert [0, 0] == ages
    queue.publish("more")
    again = samples(exposition(collector, registry=registry))
    assert 0 == again['messages{queue="jobs",status="ready"}']
    queue.messages().hold()
    fresh = samples(exposition(DatabaseCollector(service), registry=registry))
    assert 2 == fresh['messages{queue="jobs",status="held"}']


@pytest.mark.engines("sqlite")
def test_a_database_that_is_away(tmp_path: Path, registry: CollectorRegistry) -> None:
    """It is said by a metric, so that the scrape itself does not fail."""
    service = QueueService(f"sqlite:///{tmp_path / 'nowhere' / 'q.db'}")
    assert {"up": 0} == samples(exposition(DatabaseCollector(service), registry=registry))


@pytest.mark.engines("sqlite", "postgresql")
def test_a_scrape_costs_few_statements(
    make_service: MakeService, registry: CollectorRegistry
) -> None:
    """Twenty queues are counted by one, whatever they hold; the next scrape sends none."""
    service = make_service()
    for number in range(41):
        service.create_queue(f"jobs_{number}").publish_many([number] * (number % 3))
    statements: list[str] = []
    engine = parts_of(service).connections.engine
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    collector = DatabaseCollector(service, seconds=3600)
    found = samples(exposition(collector, registry=registry))
    assert 40 == sum(found[f'messages{{queue="jobs_{n}",status="ready"}}'] for n in range(41))
    of_queues = [statement for statement in statements if "queue_jobs_" in statement]
    # What is at hand and what is to be counted: three each for 20, 20 and 1 queues.
    assert 6 == len(of_queues)
    assert len(statements) < 100
    statements.clear()
    exposition(collector, registry=registry)
    assert [] == statements


@pytest.mark.engines("sqlite")
def test_a_scrape_does_not_wait_for_a_long_count(
    make_service: MakeService, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has what is at hand; a later one has the counts, and says how old they are."""
    service = make_service()
    service.create_queue("jobs").publish("x")
    counted, may_go_on = Counting.count, threading.Event()

    def slow(self: Counting, *given: Any) -> Any:
        if len(self.names) > 1:
            may_go_on.wait(30)
        return counted(self, *given)

    monkeypatch.setattr(Counting, "count", slow)
    collector = DatabaseCollector(service, timeout=0.01)
    found = samples(exposition(collector, registry=registry))
    assert 0 == found['messages{queue="jobs",status="claimed"}']
    assert {'messages{queue="jobs",status="ready"}', "counts_age_seconds"}.isdisjoint(found)
    may_go_on.set()
    wait_until(
        lambda: samples(exposition(collector, registry=registry)).get(
            'messages{queue="jobs",status="ready"}'
        )
    )


@pytest.mark.engines("sqlite")
def test_looking_takes_two_percent_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows with what a look takes, after the first one, up to its limit."""
    now = 0.0
    monkeypatch.setattr(counting, "time", SimpleNamespace(monotonic=lambda: now))

    def look(before: int | None) -> int:
        nonlocal now
        now += 3.0
        return (before or 0) + 1

    free, bounded = SharedSnapshot(look, 5.0), SharedSnapshot(look, 5.0, 30.0)
    for shared, pause in ((free, 150.0), (bounded, 30.0)):
        shared.seen()
        assert 5.0 == shared.pause
        now += 5.0
        assert 2 == shared.seen()
        assert pause == shared.pause
        now += pause - 0.1
        assert 2 == shared.seen()
        now += 0.1
        assert 3 == shared.seen()
        assert 3.0 == shared.age


WORK = """
import sys
from queue_over_sql import QueueService
from queue_over_sql.observability.prometheus import PrometheusObserver

with QueueService(sys.argv[1], observer=PrometheusObserver()) as service:
    queue = service.create_queue("jobs")
    queue.publish_many(["x"] * int(sys.argv[2]))
"""
ASK = """
import sys
from queue_over_sql.observability.prometheus import exposition
sys.stdout.buffer.write(exposition())
"""


@pytest.mark.engines("sqlite")
def test_processes_are_added_up(database: TestDatabase, tmp_path: Path) -> None:
    """Those that share PROMETHEUS_MULTIPROC_DIR, also after they have ended."""
    folder = tmp_path / "metrics"
    folder.mkdir()

    def run(code: str, *arguments: str) -> bytes:
        command = [sys.executable, "-c", code, *arguments]
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, timeout=120, check=True
        ).stdout

    for count in (3, 4):
        run(WORK, database.url, str(count))
    assert 7 == samples(run(ASK))['published_total{queue="jobs"}']


@pytest.mark.engines("sqlite")
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_no_complaint(make_service: MakeService, registry: CollectorRegistry) -> None:
    """The checker of Prometheus finds the names, units and texts in order."""
    service = make_service(observer=PrometheusObserver(registry))
    use(service)
    text = exposition(DatabaseCollector(service), registry=registry)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    assert 0 == checked.returncode
    assert b"" == checked.stdout
    assert b"" == checked.stderr


@pytest.mark.engines("sqlite")
def test_two_observers_on_one_registry(registry: CollectorRegistry) -> None:
    """The second one cannot register its metrics."""
    PrometheusObserver(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


MODULE = """
import os
from queue_over_sql import QueueService
from queue_over_sql.observability.prometheus import PrometheusObserver

service = QueueService(os.environ["QUEUE_OVER_SQL_URL"], observer=PrometheusObserver())
worker = service.worker(concurrency=1)

@worker.handle("jobs")
def handle(message):
    if message.payload == "bad":
        raise ValueError
"""
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: queues
    static_configs: [{{targets: [{targets}]}}]
"""


def port_in(log: Path, text: str) -> str:
    """The address that a process names in its log after this text."""
    pattern = text + r"(127[0-9.]+:[1-9][0-9]*)"
    return str(eventually(lambda: re.findall(pattern, log.read_text()), text)[0])


@pytest.mark.chaos
@pytest.mark.default_on("postgresql")
@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb", "h2")
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_scrapes_workers_and_fires_an_alert(
    database: TestDatabase, tmp_path: Path
) -> None:
    """Two worker processes, which are added up, and what the database holds."""
    (tmp_path / "my_jobs.py").write_text(MODULE)
    succeed("create", "jobs", "--max-attempts", "1", url=database.url)
    with contextlib.ExitStack() as stack:

        def serve(name: str, *arguments: str) -> str:
            log = tmp_path / f"{name}.log"
            command = (*arguments, "--http", "0")
            stack.enter_context(started(*command, url=database.url, log=log, cwd=tmp_path))
            return port_in(log, "http://")

        targets = [
            serve("metrics", "metrics"),
            serve("worker", "worker", "my_jobs", "--processes", "2"),
        ]
        rules = ROOT / "examples" / "observability" / "alerts.yml"
        text = CONFIGURATION.format(rules=rules, targets=", ".join(f'"{t}"' for t in targets))
        (tmp_path / "prometheus.yml").write_text(text)
        log = tmp_path / "prometheus.log"
        process = subprocess.Popen(
            [
                *("prometheus", "--config.file", str(tmp_path / "prometheus.yml")),
                *("--storage.tsdb.path", str(tmp_path / "data"), "--web.listen-address"),
                "127.0.0.1:0",
            ],
            stderr=stack.enter_context(log.open("w")),
        )
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        address = port_in(log, "address=")

        def ask(path: str, **query: str) -> Any:
            url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]

        def value(query: str) -> float:
            found = ask("query", query=query)["result"]
            return float(found[0]["value"][1]) if found else 0.0

        eventually(lambda: "ready to receive" in log.read_text(), "it is ready", within=60)
        eventually(lambda: value("queue_over_sql_up"), "it has scraped", within=60)
        # What happens before the first scrape is no increase.
        eventually(
            lambda: ask("query", query='queue_over_sql_dead_letters{queue="jobs"}')["result"],
            "zero",
        )
        succeed("publish", "jobs", url=database.url, stdin='"good"\n' * 20 + '"bad"\n')
        eventually(
            lambda: value('sum(queue_over_sql_settled_total{outcome="done"})') == 20,
            "done",
            within=60,
        )
        eventually(lambda: value("sum(queue_over_sql_dead_lettered_total)") == 1, "dead", within=60)

        def firing() -> set[str]:
            return {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"]}

        eventually(lambda: "QueueDeadLetters" in firing(), "the alert fires", within=60)
