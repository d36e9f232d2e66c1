"""H2 driver: the SQL that queues need, as SQLAlchemy constructs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from sqlalchemy_h2 import H2Dialect
from tests.dialects.h2.driver.fresh_databases import memory_engine

pytestmark = pytest.mark.engines("h2")

METADATA = sa.MetaData()
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("key", sa.String(20), unique=True),
    sa.Column("value", sa.Text),
    sa.Column("state", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Index("jobs_claim_ix", "state", "id"),
)


@pytest.fixture
def engine(engine_name: str) -> Iterator[sa.Engine]:  # noqa: ARG001 - selects H2
    with memory_engine() as engine:
        METADATA.create_all(engine)
        yield engine


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.begin() as connection:
        yield connection


def add(connection: sa.Connection, count: int) -> None:
    connection.execute(JOBS.insert(), [{"value": str(n)} for n in range(count)])


def test_registered_without_installation(engine_name: str) -> None:  # noqa: ARG001
    """Importing the package is enough for both names of the dialect."""
    for url in ("h2:///mem:x", "h2+jaydebeapi:///mem:x"):
        assert make_url(url).get_dialect() is H2Dialect


def test_server_version(engine: sa.Engine, connection: sa.Connection) -> None:
    """The version is known after the first connection and decides on SKIP LOCKED."""
    shown = connection.exec_driver_sql("SELECT H2VERSION()").scalar_one()
    dialect = engine.dialect
    version = dialect.server_version_info or ()
    assert shown == ".".join(map(str, version))
    assert isinstance(dialect, H2Dialect)
    assert (version >= (2, 2, 220)) is dialect.supports_skip_locked


def test_create_if_not_exists(connection: sa.Connection) -> None:
    """Tables and indexes that exist are left alone."""
    add(connection, 1)
    connection.execute(CreateTable(JOBS, if_not_exists=True))
    for index in JOBS.indexes:
        connection.execute(CreateIndex(index, if_not_exists=True))
    assert 1 == connection.execute(sa.select(sa.func.count()).select_from(JOBS)).scalar_one()


def test_inserted_key(connection: sa.Connection) -> None:
    """A single INSERT tells the identity that the database gave."""
    assert (1,) == connection.execute(JOBS.insert().values(value="a")).inserted_primary_key
    assert (2,) == connection.execute(JOBS.insert().values(value="b")).inserted_primary_key


def test_insert_many_returning(connection: sa.Connection) -> None:
    """Many rows come back with their ids and defaults, in the order in which they were given."""
    statement = JOBS.insert().returning(
        JOBS.c.id, JOBS.c.value, JOBS.c.state, sort_by_parameter_order=True
    )
    first = 1
    for count in (1, 7, 1500):
        rows = connection.execute(statement, [{"value": str(n)} for n in range(count)]).all()
        assert [(first + n, str(n), 0) for n in range(count)] == [tuple(row) for row in rows]
        first += count


def test_update_and_delete_return_no_rows(connection: sa.Connection) -> None:
    """RETURNING for them is refused: H2's form of it gives one row to two transactions."""
    update, delete = sa.update(JOBS).values(state=1), sa.delete(JOBS)
    for statement in (update.returning(JOBS.c.id), delete.returning(JOBS.c.id)):
        with pytest.raises(exc.CompileError, match="only for INSERT"):
            connection.execute(statement)


def test_update_limit(connection: sa.Connection) -> None:
    """An UPDATE takes at most h2_limit rows, given as a parameter or as a number."""
    add(connection, 5)
    limited = (
        sa.update(JOBS)
        .where(JOBS.c.state == sa.bindparam("p_state"))
        .values(state=1)
        .with_dialect_options(h2_limit=sa.bindparam("p_count", type_=sa.Integer))
    )
    assert "FETCH FIRST ? ROWS ONLY" in str(limited.compile(connection))
    for count, expected in ((2, 2), (1, 1), (9, 2)):
        assert expected == connection.execute(limited, {"p_state": 0, "p_count": count}).rowcount
    fixed = sa.delete(JOBS).with_dialect_options(h2_limit=4)
    assert 4 == connection.execute(fixed).rowcount


def test_index_hint(connection: sa.Connection) -> None:
    """A hint for H2 names the index; H2 refuses one that does not exist."""
    select = sa.select(JOBS.c.id).where(JOBS.c.state == 0)
    assert [] == connection.execute(select.with_hint(JOBS, "USE INDEX (jobs_claim_ix)", "h2")).all()
    with pytest.raises(exc.DBAPIError, match=r"(?i)nowhere_ix"):
        connection.execute(select.with_hint(JOBS, "USE INDEX (nowhere_ix)", "h2"))


def test_skip_locked(engine: sa.Engine) -> None:
    """Rows that another transaction holds are skipped, or the old server's lack is said."""
    select = sa.select(JOBS.c.id).where(JOBS.c.state == 0).limit(2)
    claim = select.with_hint(JOBS, "USE INDEX (jobs_claim_ix)", "h2").with_for_update(
        skip_locked=True
    )
    with engine.begin() as connection:
        add(connection, 5)
    assert isinstance(engine.dialect, H2Dialect)
    with engine.connect() as one, engine.connect() as two:
        if not engine.dialect.supports_skip_locked:
            with pytest.raises(exc.CompileError, match=r"2\.2\.220"):
                one.execute(claim)
            return
        assert [1, 2] == one.execute(claim).scalars().all()
        assert [3, 4] == two.execute(claim).scalars().all()


def test_for_update(connection: sa.Connection) -> None:
    """A plain locking read works on every version."""
    add(connection, 1)
    assert [1] == connection.execute(sa.select(JOBS.c.id).with_for_update()).scalars().all()


def test_limit_and_offset(connection: sa.Connection) -> None:
    """LIMIT and OFFSET work together and alone."""
    add(connection, 4)
    select = sa.select(JOBS.c.id).order_by(JOBS.c.id)
    assert [2, 3] == connection.execute(select.limit(2).offset(1)).scalars().all()
    assert [4] == connection.execute(select.offset(3)).scalars().all()


def test_expressions(connection: sa.Connection) -> None:
    """Empty IN, modulo, NULL-safe comparison and regular expressions have H2's form."""
    add(connection, 4)
    conditions = [
        (JOBS.c.id.in_([]), []),
        (JOBS.c.id % 2 == 0, [2, 4]),
        (JOBS.c.key.is_not_distinct_from(None) & (JOBS.c.id < 3), [1, 2]),
        (JOBS.c.key.is_distinct_from(None), []),
        (JOBS.c.value.regexp_match("^[01]$"), [1, 2]),
        (~JOBS.c.value.regexp_match("^[01]$", flags="i"), [3, 4]),
        (sa.func.lower(JOBS.c.value) == sa.true().op("||")("x"), []),
    ]
    for condition, expected in conditions:
        select = sa.select(JOBS.c.id).where(condition).order_by(JOBS.c.id)
        assert expected == connection.execute(select).scalars().all(), condition


def test_labels_name_the_columns(connection: sa.Connection) -> None:
    """A column's label is its name in the result, in plain SQL too."""
    row = connection.exec_driver_sql('SELECT 1 AS foo, 2 AS "Bar"').mappings().one()
    assert {"foo": 1, "Bar": 2} == dict(row)


def test_computed_and_default_columns(connection: sa.Connection) -> None:
    """Computed columns, server defaults, sequences and comments are created."""
    table = sa.Table(
        "computed",
        sa.MetaData(),
        sa.Column("id", sa.Integer, sa.Sequence("numbers"), primary_key=True),
        sa.Column("a", sa.Integer, server_default=sa.text("3"), comment="a comment"),
        sa.Column("b", sa.Integer, sa.Computed("a * 2")),
    )
    table.metadata.create_all(connection)
    assert (1,) == connection.execute(table.insert()).inserted_primary_key
    assert (1, 3, 6) == connection.execute(sa.select(table)).one()
