"""Processes that publish and settle messages with the same keys at once."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from queue_over_sql.settings import ArchivePolicy
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.processes import Crew
from tests.chaos.roles import keyed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.mark.full
@pytest.mark.engines("postgresql")
@pytest.mark.parametrize("archive", ["all", "none"])
def test_sorted_batches_beside_settles_are_no_deadlocks(
    archive: ArchivePolicy,
    make_service: MakeService,
    database: TestDatabase,
    sql: Engine,
    crew: Crew,
) -> None:
    """The server ends none, by its own count, and each message that was new is there or done."""
    queue = make_service().create_queue("jobs", archive=archive, max_attempts=10_000)
    modes = ("skip", "replace", "settle", "settle")
    roles = [
        crew.spawn(keyed.Arguments(database.url, mode, seed)) for seed, mode in enumerate(modes)
    ]
    for role in roles:
        role.expect("ready")
    with sql.connect() as connection:
        before = connection.scalar(text(_DEADLOCKS))
    for role in roles:
        role.tell("go")
    created = sum(role.expect("done")["created"] for role in roles[:2])
    for role in roles[2:]:
        role.tell("stop")
        role.expect("done")
    for role in roles:
        # A session tells its numbers at its end.
        role.join()
    with sql.connect() as connection:
        assert before == connection.scalar(text(_DEADLOCKS))
    if archive == "all":
        assert created == queue.messages().count() + queue.archive.messages().count()
