"""The statements that operations send are reviewed as files of SQL, one for each engine."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import pytest

from tests.dialects.plans.hot_statements import old_queue
from tests.dialects.plans.sql_files import COMMAND, FOLDER, rendered

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("sqlite", "postgresql", "mariadb", "mysql", "h2")


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
    file = FOLDER / f"{database.engine}.sql"
    if request.config.getoption("--write-sql"):
        file.write_text(text)
    diff = difflib.unified_diff(
        file.read_text().splitlines(), text.splitlines(), "the file", "what is sent", lineterm=""
    )
    changes = "\n".join(diff)
    assert not changes, f"if that is meant, run {COMMAND.format(engine=database.engine)}\n{changes}"
