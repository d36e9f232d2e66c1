"""The subscriptions of a topic are found by primary keys, among thousands of others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import insert

from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.topics import store as topics
from tests.dialects.plans.explain import EXPLAIN, analyze, explain_by_tables

if TYPE_CHECKING:
    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import TestDatabase

TOPICS, QUEUES = 400, 10
IN_JSON = r'"TABLE_NAME": "{}"((?!"TABLE_NAME").)*"KEY": "PRIMARY"'
BY_PRIMARY_KEY = {
    "sqlite": "USING .*INDEX SQLITE_AUTOINDEX_{}_1",
    "postgresql": "INDEX( ONLY)? SCAN (USING|ON) {}_PKEY",
    "mariadb": IN_JSON,
    "mysql": IN_JSON,
    "h2": r"{}[^*]*/\* [\w.]*PRIMARY_KEY",
}


def test_a_publish_reads_the_subscriptions_of_its_topic(
    database: TestDatabase, service: QueueService
) -> None:
    """Neither of the two tables is read as a whole."""
    service.create_topic("events")
    system, engine = service._parts.system(), service._parts.connections.engine
    names = [f"topic_{number}" for number in range(TOPICS)]
    base = {"table_prefix": "queue_", "created_at": 1}
    bound = [
        base | {"topic": name, "queue": f"queue_{n}", "pattern": "#"}
        for name in names
        for n in range(QUEUES)
    ]
    with engine.connect() as connection:
        connection.execute(insert(system.topics), [base | {"name": name} for name in names])
        connection.execute(insert(system.subscriptions), bound)
        analyze(connection, database.engine, system.topics.name, system.subscriptions.name)
        explain_by_tables(connection, database.engine)
        statement = StatementCache(system, engine.dialect).get(topics.subscriptions_of_topic)
        statement.text = EXPLAIN[database.engine] + statement.text
        rows = statement.run(connection, {"p_prefix": "queue_", "p_topic": "topic_7"}).all()
        connection.rollback()
    plan = "\n".join(" ".join(map(str, row)) for row in rows).upper().replace('"PUBLIC".', "")
    for table in (system.topics, system.subscriptions):
        wanted = BY_PRIMARY_KEY[database.engine].format(table.name.upper())
        assert re.search(wanted, plan, re.DOTALL), plan
