"""The statements that operations send are reviewed as files of SQL, one for each engine."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import pytest
import sqlalchemy

from queue_over_sql.sql_listing import formatted, statements_of
from tests.dialects.plans.hot_statements import old_queue
from tests.dialects.plans.sql_files import COMMAND, FOLDER, rendered

if TYPE_CHECKING:
    from pathlib import Path

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("sqlite", "postgresql", "mariadb", "mysql", "h2")

_BY_RULES = (
    *("publish", "claim", "take", "exchange", "ack", "nack", "release"),
    *("groups", "limit", "rate"),
)


def test_the_file_shows_what_queues_with_groups_and_limits_send(
    service: QueueService, request: pytest.FixtureRequest, engine_name: str
) -> None:
    """What only they send, for one message; `test_groups.py` shows which indexes that uses."""
    plain = {each.text for each in statements_of(service.create_queue("jobs"))}
    service.drop_queue("jobs")
    queue = service.create_queue("jobs", group_limit=2, queue_limit=20, queue_rate="100/min")
    new = [
        each
        for each in statements_of(queue)
        if each.operation.startswith(_BY_RULES)
        and "batch" not in each.operation
        and each.text not in plain
        and each.same_as is None
    ]
    parts = [f"{each.title}\n{formatted(each.text)};" for each in new]
    _compare(request, FOLDER / "rules" / f"{engine_name}.sql", "\n\n".join(parts) + "\n")


@pytest.mark.timeout(300)
def test_the_file_shows_what_operations_send(
    database: TestDatabase, request: pytest.FixtureRequest
) -> None:
    """A changed statement, or another index, is a diff of the file that a reviewer reads.

    Whatever operations really send is in the file, and whatever is in the file is really sent.
    """
    with old_queue(database) as old:
        text, heard = rendered(old)
        sent = dict.fromkeys(text for text in heard.patterns if text not in heard.reads)
    assert not heard.unknown, "no operation of queue_over_sql/sql_listing names: " + "\n".join(
        f"{name}: {text}" for text, name in heard.unknown.items()
    )
    assert not sent, "nothing has sent: " + "\n".join(sent)
    _compare(request, FOLDER / f"{database.engine}.sql", text)


def _compare(request: pytest.FixtureRequest, file: Path, text: str) -> None:
    if request.config.getoption("--write-sql"):
        file.write_text(text)
    if "mysql" == file.stem and sqlalchemy.__version__.startswith("2.0."):
        # It knows only the older words, which mean the same.
        text = text.replace("LOCK IN SHARE MODE", "FOR SHARE")
    diff = difflib.unified_diff(
        file.read_text().splitlines(), text.splitlines(), "the file", "what is sent", lineterm=""
    )
    changes = "\n".join(diff)
    command = COMMAND.format(engine=file.stem)
    assert not changes, f"if that is meant, run {command}\n{changes}"
