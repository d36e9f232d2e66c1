"""How statements are broken into lines."""

from __future__ import annotations

import re
from pathlib import Path

from queue_over_sql.sql_listing import formatted
from queue_over_sql.sql_listing.formatting import tokens

FILES = Path(__file__).parents[2] / "dialects" / "sql"

NESTED = (
    "WITH picked AS MATERIALIZED (SELECT jobs.id FROM jobs WHERE jobs.key = 'FROM x AND (y' AND "
    "jobs.due <= CAST(EXTRACT(EPOCH FROM now()) AS BIGINT) ORDER BY jobs.due LIMIT "
    ':p_count::INTEGER FOR UPDATE SKIP LOCKED) UPDATE jobs SET "set"=CASE WHEN (a AND b) THEN 1 '
    "END, round=:p_round WHERE jobs.id IN (SELECT picked.id FROM picked) RETURNING id, "
    "payload ->> '$.a'"
)
LINES = """\
WITH picked AS MATERIALIZED (
  SELECT jobs.id
  FROM jobs
  WHERE jobs.key = 'FROM x AND (y'
    AND jobs.due <= CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)
  ORDER BY jobs.due
  LIMIT :p_count::INTEGER
  FOR UPDATE SKIP LOCKED
)
UPDATE jobs
SET "set"=CASE WHEN (a AND b) THEN 1 END,
    round=:p_round
WHERE jobs.id IN (
  SELECT picked.id
  FROM picked
)
RETURNING id, payload ->> '$.a'"""


def test_clauses_and_subqueries_have_their_lines() -> None:
    """Words inside of texts, names, functions and CASE break nothing."""
    assert LINES == formatted(NESTED)


def test_only_white_space_changes() -> None:
    """All statements of the files have the same tokens on one line and on several."""
    for file in sorted(FILES.glob("*.sql")):
        without = re.sub(r"^--.*\n", "", file.read_text(), flags=re.MULTILINE)
        statements = [text for text in without.split(";\n") if text.strip()]
        assert statements, file
        for statement in statements:
            line = " ".join(statement.split())
            assert tokens(formatted(line)) == tokens(line) == tokens(statement), statement
            assert formatted(formatted(line)) == formatted(line), statement
