"""``archive.export``: finished messages as JSON Lines, completely or not at all."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer

from queue_over_sql import FixedDelay
from tests.contract.queue_state import archived, counts, finished, ids

if TYPE_CHECKING:
    from pathlib import Path

    from queue_over_sql import Message, Queue, QueueService

INSTANTS = (
    "published_at",
    "scheduled_at",
    "available_at",
    "expires_at",
    "claimed_at",
    "lease_expires_at",
    "last_attempt_at",
    "finished_at",
)
PLAIN = (
    "id",
    "queue",
    "key",
    "kind",
    "group",
    "headers",
    "priority",
    "max_attempts",
    "attempt",
    "consumer_id",
    "consumer_round",
    "last_error",
    "status",
    "outcome",
    "payload",
)


@pytest.fixture
def jobs(service: QueueService) -> Queue:
    """A queue that keeps all, with a column of its own."""
    return service.create_queue(
        "jobs",
        archive="all",
        max_attempts=1,
        retry=FixedDelay(0),
        columns=[Column("tenant", Integer)],
    )


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file that is not there yet, in a folder of its own."""
    folder = tmp_path / "exports"
    folder.mkdir()
    return folder / "archive.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    """Each line of a file as JSON; the last one ends like the others."""
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def facts(message: Message) -> dict[str, Any]:
    """All that is known of a message, as one line of JSON tells it."""
    fields = {name: getattr(message, name) for name in PLAIN}
    for name in INSTANTS:
        instant = getattr(message, name)
        fields[name] = None if instant is None else instant.isoformat()
    return {**fields, "columns": dict(message.columns)}


def test_each_line_tells_all_of_a_message(jobs: Queue, target: Path) -> None:
    """Every fact, as it is; one message in one line, by id."""
    odd = {"text": 'Žižkov\n\u2028\u0085 "x" \\ 😀', "n": [1, 2.5, None, True]}
    jobs.publish(
        odd, key="k", kind="order", headers={"h": [1]}, max_attempts=3, columns={"tenant": 7}
    )
    jobs.publish(None)
    jobs.publish("x", lease=77)
    finished(jobs, "rejected", reason="cannot\nparse")
    finished(jobs, "failed")
    finished(jobs, "done")
    expected = [facts(message) for message in archived(jobs)]
    assert 3 == jobs.archive.export(target)
    assert expected == lines(target)
    assert odd == lines(target)[0]["payload"]
    for name in ("outcome", "status"):
        assert ["rejected", "failed", "done"] == [line[name] for line in lines(target)], name
    assert [target] == list(target.parent.iterdir())


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python writes the file")
def test_texts_and_bytes(service: QueueService, target: Path) -> None:
    """Text is text; bytes are Base64 and marked so."""
    text, raw = "Žižkov\n", bytes(range(256))
    for queue, payload in (
        (service.create_queue("texts", payload="text"), text),
        (service.create_queue("raw", payload="bytes"), raw),
    ):
        queue.publish(payload)
        finished(queue, "rejected")
        assert 1 == queue.archive.export(target)
        (line,) = lines(target)
        if payload == raw:
            assert "base64" == line["payload_encoding"]
            assert raw == base64.b64decode(line["payload"], validate=True)
        else:
            assert text == line["payload"]
            assert "payload_encoding" not in line


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python writes the file")
def test_filters_choose(jobs: Queue, target: Path) -> None:
    """The same as those of messages()."""
    for number in range(6):
        jobs.publish(
            {"n": number}, key=f"k{number}", kind=f"t{number % 2}", columns={"tenant": number}
        )
    finished(jobs, "rejected", 2)
    finished(jobs, "done", 4)

    def exported(**filters: Any) -> list[int]:
        count = jobs.archive.export(target, **filters)
        found = [line["payload"]["n"] for line in lines(target)]
        assert count == len(found)
        return found

    table = jobs.archive.table
    assert [0, 1] == exported(status="rejected")
    assert [0, 2, 4] == exported(kind="t0")
    assert [3] == exported(key="k3")
    assert [4, 5] == exported(where=table.c.tenant > 3)
    assert [4] == exported(status="done", kind="t0", where=table.c.tenant > 2)
    assert [] == exported(status="failed")
    assert [2] == exported(payload={"n": 2})


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python writes the file")
def test_many_are_exported_page_by_page(jobs: Queue, target: Path) -> None:
    """Progress goes up to the whole number; all are there once, in order; the archive stays."""
    jobs.load(range(2500))
    finished(jobs, "done", 2500)
    told: list[int] = []
    assert 2500 == jobs.archive.export(str(target), progress=told.append)
    assert 2500 == told[-1]
    assert sorted(set(told)) == told
    assert list(range(2500)) == [line["payload"] for line in lines(target)]
    assert (0, 0, 2500) == counts(jobs)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python writes the file")
def test_an_export_replaces_the_file_before(jobs: Queue, target: Path) -> None:
    """Whole: nothing of the old content is left; an empty archive is an empty file."""
    assert 0 == jobs.archive.export(target)
    assert [] == lines(target)
    jobs.publish("x")
    for expected in ([], ["x"]):
        target.write_text("old\n" * 1000)
        assert len(expected) == jobs.archive.export(target)
        assert expected == [line["payload"] for line in lines(target)]
        if not expected:
            finished(jobs, "done")
    with pytest.raises(FileNotFoundError, match="missing"):
        jobs.archive.export(target.parent / "missing" / "archive.jsonl")


class Interrupted(Exception):
    """What a progress callback raises."""


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python writes the file")
def test_an_export_that_fails_leaves_what_was_there(jobs: Queue, target: Path) -> None:
    """The old file, or none; and nothing half-written beside it."""
    jobs.load(range(2500))
    finished(jobs, "done", 2500)
    seen: list[str | None] = []

    def content() -> str | None:
        return target.read_text() if target.exists() else None

    def interrupt(_: int) -> None:
        seen.append(content())
        raise Interrupted

    for before in (None, "old\n"):
        if before is not None:
            target.write_text(before)
        with pytest.raises(Interrupted):
            jobs.archive.export(target, progress=interrupt)
        assert before == seen.pop()
        assert ([] if before is None else [target]) == list(target.parent.iterdir())
        assert before == content()


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("its progress callback blocks")
def test_what_happens_meanwhile_does_not_break_it(jobs: Queue, target: Path) -> None:
    """Messages that are archived or removed during the export: each line is one that was there."""
    jobs.load(range(2500))
    finished(jobs, "done", 2500)
    jobs.publish_many(range(2500, 2600))
    there = ids(jobs.archive.messages().list(3000))
    removed: list[int] = []

    def meanwhile(_: int) -> None:
        finished(jobs, "done")
        if not removed:
            first_and_last = (there[0], there[-1])
            table = jobs.archive.table
            removed.append(jobs.archive.messages(where=table.c.id.in_(first_and_last)).remove())

    count = jobs.archive.export(target, progress=meanwhile)
    exported = [line["id"] for line in lines(target)]
    assert [2] == removed
    assert count == len(exported)
    assert sorted(set(exported)) == exported
    assert set(there[1:-1]) <= set(exported)
    assert len(exported) <= 2600
