"""H2 driver: the inspector sees what was created."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tests.dialects.h2.driver.fresh_databases import memory_engine

pytestmark = pytest.mark.engines("h2")

METADATA = sa.MetaData()
PARENT = sa.Table("parent", METADATA, sa.Column("id", sa.BigInteger, primary_key=True))
CHILD = sa.Table(
    "child",
    METADATA,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True, start=5), primary_key=True),
    sa.Column("parent_id", sa.ForeignKey("parent.id", name="child_fk", ondelete="CASCADE")),
    sa.Column("key", sa.String(200), nullable=False, comment="unique name"),
    sa.Column("body", sa.Text),
    sa.Column("data", sa.LargeBinary),
    sa.Column("price", sa.Numeric(10, 2), server_default="0"),
    sa.Column("at", sa.DateTime(timezone=True)),
    sa.Column("double", sa.Integer, sa.Computed("id * 2")),
    sa.UniqueConstraint("key", "parent_id", name="child_key_uq"),
    sa.CheckConstraint("price >= 0", name="child_price_ck"),
    sa.Index("child_ix", "parent_id", sa.text("price DESC")),
    comment="a table",
)


@pytest.fixture
def inspector(engine_name: str) -> Iterator[sa.Inspector]:  # noqa: ARG001 - selects H2
    with memory_engine() as engine:
        METADATA.create_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE VIEW v AS SELECT id FROM child")
            connection.exec_driver_sql("CREATE SEQUENCE numbers")
            connection.exec_driver_sql("CREATE SCHEMA other")
            connection.exec_driver_sql('CREATE TABLE other."Mixed" (a INT)')
            yield sa.inspect(connection)


def test_names(inspector: sa.Inspector) -> None:
    """Tables, views, sequences and schemas are listed; unquoted names in lower case."""
    assert ["child", "parent"] == inspector.get_table_names()
    assert ["v"] == inspector.get_view_names()
    assert ["numbers"] == inspector.get_sequence_names()
    assert {"public", "other", "information_schema"} <= set(inspector.get_schema_names())
    assert ["Mixed"] == inspector.get_table_names("other")
    assert "child" in inspector.get_view_definition("v").lower()


def test_existence(inspector: sa.Inspector) -> None:
    """has_table knows tables and views, by schema; a missing table is NoSuchTableError."""
    assert [True, True, False] == [inspector.has_table(name) for name in ("child", "v", "no")]
    assert inspector.has_table("Mixed", "other")
    assert not inspector.has_table("mixed", "other")
    assert inspector.has_sequence("numbers")
    with pytest.raises(exc.NoSuchTableError):
        inspector.get_columns("no")


def test_columns(inspector: sa.Inspector) -> None:
    """Types, nullability, defaults, comments, identity and computed columns are told."""
    columns = {column["name"]: column for column in inspector.get_columns("child")}
    types = {name: str(column["type"]) for name, column in columns.items()}
    assert {
        "id": "BIGINT",
        "parent_id": "BIGINT",
        "key": "VARCHAR(200)",
        "body": "TEXT",
        "data": "BLOB",
        "price": "NUMERIC(10, 2)",
        "at": "TIMESTAMP",
        "double": "INTEGER",
    } == types
    assert not columns["key"]["nullable"]
    assert "unique name" == columns["key"]["comment"]
    assert "0" in str(columns["price"]["default"])
    assert (True, 5) == tuple(columns["id"]["identity"][key] for key in ("always", "start"))
    assert "computed" in columns["double"]


def test_constraints_and_indexes(inspector: sa.Inspector) -> None:
    """Keys, unique and check constraints, foreign keys and indexes are told."""
    assert ["id"] == inspector.get_pk_constraint("child")["constrained_columns"]
    assert [{"name": "child_key_uq", "column_names": ["key", "parent_id"]}] == (
        inspector.get_unique_constraints("child")
    )
    assert ["child_price_ck"] == [c["name"] for c in inspector.get_check_constraints("child")]
    (key,) = inspector.get_foreign_keys("child")
    assert "child_fk" == key["name"]
    assert ["parent_id"] == key["constrained_columns"]
    assert "parent" == key["referred_table"]
    assert ["id"] == key["referred_columns"]
    assert {"ondelete": "CASCADE"} == key["options"]
    (index,) = inspector.get_indexes("child")
    assert "child_ix" == index["name"]
    assert ["parent_id", "price"] == index["column_names"]
    assert index["unique"] is False
    assert {"price": ("desc",)} == index["column_sorting"]
    assert {"text": "a table"} == inspector.get_table_comment("child")


def test_autoload(inspector: sa.Inspector) -> None:
    """A table loads whole, foreign keys included."""
    table = sa.Table("child", sa.MetaData(), autoload_with=inspector.bind)
    assert [column.name for column in CHILD.columns] == table.columns.keys()
    assert {"parent.id"} == {key.target_fullname for key in table.foreign_keys}
