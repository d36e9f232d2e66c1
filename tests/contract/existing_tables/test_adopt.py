"""Adopting a table: what it adds, what it refuses, and that it can be repeated."""

from __future__ import annotations

import json
import threading
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Uuid,
    create_engine,
    insert,
    inspect,
    select,
    text,
    update,
)

from queue_over_sql import (
    AdoptedQueue,
    DatabaseRefused,
    DatabaseUnavailable,
    FixedDelay,
    InvalidQueueName,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
)
from queue_over_sql.observability import diagnose
from queue_over_sql.schema.existing import ADDED_COLUMNS
from tests.contract.existing_tables.users_tables import (
    Invoice,
    create_invoices,
    index_names,
    lose_columns,
    own_row,
    statuses,
)
from tests.contract.queue_state import ARGUMENT_ERRORS, ids
from tests.refusals import refused

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService
    from queue_over_sql.testing.plugin import MakeService, TestDatabase


def column_names(engine: Engine, table: str = "invoices") -> set[str]:
    """The columns that a table has now."""
    return {column["name"] for column in inspect(engine).get_columns(table)}


def create(engine: Engine, *columns: Column[Any], name: str = "orders") -> Table:
    """A table of the user's own with these columns."""
    table = Table(name, MetaData(), *columns)
    table.create(engine)
    return table


def test_adopting_adds_columns_and_indexes(service: QueueService, engine: Engine) -> None:
    """The table keeps its columns and rows; no row is a message yet."""
    create_invoices(engine, 3)
    before = column_names(engine)
    queue = service.adopt_queue("billing", Invoice)
    assert isinstance(queue, AdoptedQueue)
    assert before | set(ADDED_COLUMNS) == column_names(engine)
    assert "queue_billing_claim_ix" in index_names(engine)
    assert {1: None, 2: None, 3: None} == statuses(engine, queue)
    stats = queue.stats()
    assert 0 == stats.ready
    assert 0 == stats.delayed
    assert 0 == stats.claimed
    assert 0 == stats.held
    assert 0 == stats.archived
    assert [] == queue.consume()
    assert [] == queue.messages().list()


@pytest.mark.engines("sqlite")
def test_a_table_is_adopted_by_object_class_or_name(
    make_service: MakeService, engine: Engine
) -> None:
    """All three name the same table, and adopting again changes nothing."""
    create_invoices(engine, 1)
    columns: set[str] = set()
    for given in (Invoice, Invoice.__table__, "invoices"):
        queue = make_service().adopt_queue("billing", given)
        columns = columns or column_names(engine)
        assert columns == column_names(engine)
        assert 1 == queue.enqueue() + queue.stats().ready - (1 if given is Invoice else 0)
    assert {"billing"} == {found.name for found in make_service().queues()}


@pytest.mark.default_on("sqlite", "postgresql")
def test_another_service_opens_the_queue_by_its_name(
    make_service: MakeService, engine: Engine
) -> None:
    """The registry says where the queue lives; another server needs no definition."""
    create_invoices(engine, 2)
    make_service().adopt_queue("billing", Invoice, max_attempts=7, retry=FixedDelay(3)).enqueue()
    queue = make_service().queue("billing")
    assert isinstance(queue, AdoptedQueue)
    assert 7 == queue.settings.max_attempts
    assert FixedDelay(3) == queue.settings.retry
    (first, second) = queue.consume(2)
    assert [1, 2] == [own_row(first)["number"], own_row(second)["number"]]
    queue.ack([first, second])
    assert 2 == queue.stats().done


@pytest.mark.engines("sqlite")
def test_settings_of_an_existing_table_change_like_others(
    make_service: MakeService, engine: Engine
) -> None:
    """By adopting again, or by create_queue; what is not given stays."""
    create_invoices(engine, 0)
    make_service().adopt_queue("billing", Invoice, max_attempts=7, lease=10)
    make_service().adopt_queue("billing", Invoice, max_attempts=8)
    queue = make_service().create_queue("billing", priorities=2)
    settings = queue.settings
    found = settings.lease.total_seconds(), settings.max_attempts, settings.priorities
    assert (10, 8, 2) == found


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses it")
def test_what_has_no_place_in_an_existing_table_is_refused(
    service: QueueService, engine: Engine
) -> None:
    """Rows are the messages and they stay, so there is no payload type and no archive to set."""
    create_invoices(engine, 0)
    service.adopt_queue("billing", Invoice)
    settings: dict[str, Any] = {
        "payload": "json",
        "archive": "none",
        "archive_ttl": 5,
        "columns": [Column("tenant", Integer)],
        "max_payload_bytes": 10,
        "expires": 60,
        "group_limit": 1,
    }
    for name, value in settings.items():
        with refused(name, QueueSchemaMismatch, match=name):
            service.create_queue("billing", **{name: value})


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_name_has_one_meaning(make_service: MakeService, engine: Engine) -> None:
    """An ordinary queue is not adopted over, nor another table or prefix under the same name."""
    create_invoices(engine, 0)
    create(engine, Column("id", Integer, primary_key=True))
    service = make_service()
    service.create_queue("jobs")
    with pytest.raises(QueueSchemaMismatch, match="ordinary"):
        service.adopt_queue("jobs", Invoice)
    service.adopt_queue("billing", Invoice)
    for other in (service, make_service()):
        with pytest.raises(QueueSchemaMismatch, match="orders"):
            other.adopt_queue("billing", "orders")
        with pytest.raises(QueueSchemaMismatch, match="column_prefix"):
            other.adopt_queue("billing", Invoice, column_prefix="q_")
    assert {"id"} == column_names(engine, "orders")


def test_a_clash_of_names_changes_nothing(service: QueueService, engine: Engine) -> None:
    """A column of ours in the user's table is refused by its name; a prefix evades it."""
    table = create(
        engine, Column("id", Integer, primary_key=True), Column("Status", String(5)), name="orders"
    )
    with engine.begin() as connection:
        connection.execute(insert(table).values(Status="open"))
    with pytest.raises(QueueSchemaMismatch, match=r"Status.*column_prefix"):
        service.adopt_queue("orders", table)
    assert {"id", "Status"} == column_names(engine, "orders")
    with pytest.raises(QueueNotFound):
        service.queue("orders")
    queue = service.adopt_queue("orders", table, column_prefix="q_")
    assert {"id", "Status", *(f"q_{name}" for name in ADDED_COLUMNS)} == column_names(
        engine, "orders"
    )
    assert 1 == queue.enqueue()
    (message,) = queue.consume()
    assert {"id": 1, "Status": "open"} == own_row(message)


@pytest.mark.engines("sqlite")
def test_a_definition_that_names_a_column_of_ours_clashes(
    service: QueueService, engine: Engine
) -> None:
    """Even where the database lacks it, the user's own model would collide with it."""
    create(engine, Column("id", Integer, primary_key=True))
    model = Table(
        "orders", MetaData(), Column("id", Integer, primary_key=True), Column("outcome", String(5))
    )
    with pytest.raises(QueueSchemaMismatch, match="outcome"):
        service.adopt_queue("orders", model)
    service.adopt_queue("orders", "orders")
    assert "orders" == service.adopt_queue("orders", model).name


@pytest.mark.engines("sqlite")
def test_two_queues_may_share_a_table(service: QueueService, engine: Engine) -> None:
    """With prefixes of their own they do not touch each other."""
    create_invoices(engine, 2)
    mail = service.adopt_queue("mail", Invoice, column_prefix="mail_")
    post = service.adopt_queue("post", Invoice, column_prefix="post_")
    assert [2, 1] == [mail.enqueue(), post.enqueue(Invoice.company_id == 0)]
    mail.ack(mail.consume(2))
    assert [1] == ids(post.consume(2))
    assert "mail_status" not in own_row(mail.archive.messages().list()[0])


def test_a_message_needs_a_whole_number_as_key(service: QueueService, engine: Engine) -> None:
    """Other primary keys are refused, and the table stays as it is."""
    keys: dict[str, list[Column[Any]]] = {
        "a_text": [Column("name", String(20), primary_key=True)],
        "two": [Column(name, Integer, primary_key=True) for name in ("a", "b")],
        "none": [Column("a", Integer)],
    }
    for name, columns in keys.items():
        create(engine, *columns, name=name)
        before = column_names(engine, name)
        with refused(name, QueueSchemaMismatch, match="Make an integer column the primary key"):
            service.adopt_queue("orders", name)
        assert before == column_names(engine, name)
    assert [] == service.queues()


ANOTHER_KEY = {
    # As docs/adopted-tables.md has it.
    "postgresql": [
        """ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD UNIQUE (uuid),
        ADD COLUMN number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"""
    ],
    "sqlite": [
        "CREATE TABLE fresh (number INTEGER PRIMARY KEY, uuid CHAR(32) NOT NULL UNIQUE)",
        "INSERT INTO fresh (uuid) SELECT uuid FROM orders ORDER BY rowid",
        "DROP TABLE orders",
        "ALTER TABLE fresh RENAME TO orders",
    ],
}


@pytest.mark.engines("sqlite", "postgresql")
def test_a_table_with_uuids_is_adopted_by_another_key(
    service: QueueService, engine: Engine, engine_name: str
) -> None:
    """The refusal's advice works: the UUID stays, and the order is kept."""
    orders = create(engine, Column("uuid", Uuid, primary_key=True))
    given = [{"uuid": uuid.UUID(int=n)} for n in (3, 1, 2)]
    with engine.begin() as connection:
        for each in given:
            connection.execute(insert(orders), each)
    with refused("uuid", QueueSchemaMismatch, match="primary key is: uuid"):
        service.adopt_queue("orders", "orders")
    with engine.begin() as connection:
        for statement in ANOTHER_KEY[engine_name]:
            connection.execute(text(statement))
    number = Column("number", Integer, primary_key=True)
    queue = service.adopt_queue("orders", Table("orders", MetaData(), number, Column("uuid", Uuid)))
    assert 3 == queue.enqueue()
    queue.publish({"uuid": uuid.UUID(int=0)})
    found = queue.consume(9)
    assert [1, 2, 3, 4] == ids(found)
    assert [3, 1, 2, 0] == [own_row(each)["uuid"].int for each in found]
    queue.ack(found)
    assert 4 == queue.archive.messages().count()


@pytest.mark.empty_database
def test_only_a_table_that_is_there_is_adopted(service: QueueService, engine: Engine) -> None:
    """A missing table, a view and what is no table at all are named."""
    create_invoices(engine, 0)
    with engine.begin() as connection:
        connection.execute(text("CREATE VIEW bills AS SELECT number FROM invoices"))
    with pytest.raises(QueueSchemaMismatch, match="no table 'missing'"):
        service.adopt_queue("billing", "missing")
    with pytest.raises(QueueSchemaMismatch, match="view"):
        service.adopt_queue("billing", "bills")
    with pytest.raises(TypeError, match=r"the name of a table$"):
        service.adopt_queue("billing", 5)
    django_model = type("Invoice", (), {"_meta": SimpleNamespace(db_table="invoices")})
    with pytest.raises(TypeError, match=r"for a Django model pass Model\._meta\.db_table"):
        service.adopt_queue("billing", django_model)
    with pytest.raises(InvalidQueueName):
        service.adopt_queue("", Invoice)
    for prefix in ("Q", "q-", 5, "q" * 21):
        with pytest.raises(ARGUMENT_ERRORS, match="column_prefix"):
            service.adopt_queue("billing", Invoice, column_prefix=prefix)  # type: ignore[arg-type]
    assert [] == service.queues()


def test_dropping_leaves_the_table(make_service: MakeService, engine: Engine) -> None:
    """The added columns and indexes go, the rows and their columns stay; then it can go on anew."""
    create_invoices(engine, 3)
    before = column_names(engine)
    service, other = make_service(), make_service()
    queue = service.adopt_queue("billing", Invoice)
    queue.enqueue()
    elsewhere = other.queue("billing")
    assert service.drop_queue("billing")
    assert not service.drop_queue("billing")
    assert before == column_names(engine)
    assert set() == index_names(engine)
    with engine.connect() as connection:
        assert 3 == len(connection.execute(select(Invoice.number)).all())
    with pytest.raises(QueueNotFound):
        elsewhere.consume()
    assert 3 == make_service().adopt_queue("billing", Invoice).enqueue()


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_table_that_is_gone_keeps_no_other_queue_from_work(
    make_service: MakeService, engine: Engine
) -> None:
    """The user may drop the table; what is left of the queue can be dropped."""
    create_invoices(engine, 0)
    make_service().adopt_queue("billing", Invoice)
    make_service().create_queue("jobs")
    Invoice.__table__.drop(engine)  # type: ignore[attr-defined]
    service = make_service()
    assert ["jobs"] == [queue.name for queue in service.queues()]
    service.reap()
    with pytest.raises(QueueSchemaMismatch, match="invoices"):
        service.queue("billing")
    assert service.drop_queue("billing")
    with pytest.raises(QueueNotFound):
        service.queue("billing")


def test_many_servers_adopt_at_once(make_service: MakeService, engine: Engine) -> None:
    """Eight boot together; each has the queue, and the table is changed once."""
    create_invoices(engine, 8)
    services = [make_service() for _ in range(8)]
    barrier = threading.Barrier(len(services))
    failures: list[BaseException] = []
    found: list[int] = []

    def boot(service: QueueService) -> None:
        try:
            barrier.wait(30)
            queue = service.adopt_queue("billing", Invoice)
            queue.enqueue()
            found.extend(ids(queue.consume()))
        except BaseException as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    threads = [threading.Thread(target=boot, args=(service,)) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == failures
    assert list(range(1, 9)) == sorted(found)


def test_an_adoption_that_was_cut_off_is_completed(
    make_service: MakeService, engine: Engine
) -> None:
    """The record comes first, so the next call knows the columns that are there as its own."""
    create_invoices(engine, 2)
    make_service().adopt_queue("billing", Invoice)
    for kept in (0, 1, 9):
        lose_columns(engine, kept)
        if not kept:
            # So it is where DDL commits, and the process died before it added a column.
            with engine.begin() as connection:
                stored = connection.scalar(text("SELECT settings FROM queue_over_sql_queues"))
                begun = {"settings": json.dumps(json.loads(str(stored)) | {"adopting": True})}
                change = "UPDATE queue_over_sql_queues SET settings = :settings"
                connection.execute(text(change), begun)
        queue = make_service().adopt_queue("billing", Invoice)
        assert set(ADDED_COLUMNS) <= column_names(engine)
        assert index_names(engine)
        assert 2 == queue.enqueue(), kept
        queue.ack(queue.consume(2))
        assert 2 == queue.stats().done, kept
        queue.archive.messages().remove()


MOST_COLUMNS = {
    "sqlite": 1_990,
    "postgresql": 1_590,
    "mysql": 1_010,
    "mariadb": 1_010,
    "h2": 16_380,
}


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb")
def test_an_adoption_that_is_refused_leaves_nothing(
    make_service: MakeService, engine: Engine, database: TestDatabase
) -> None:
    """Where DDL commits, too: no record, no column, and the name serves for another table."""
    create_invoices(engine, 1)
    count = MOST_COLUMNS[database.engine]
    wide = ", ".join(f"c{n} SMALLINT" for n in range(count))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {wide})"))
    service = make_service()
    with pytest.raises(DatabaseRefused):
        service.adopt_queue("billing", "wide")
    assert count + 1 == len(column_names(engine, "wide"))
    with engine.connect() as connection:
        assert [] == connection.execute(text("SELECT name FROM queue_over_sql_queues")).all()
    assert 1 == service.adopt_queue("billing", Invoice).enqueue()


@pytest.mark.default_on("sqlite", "mysql")
def test_what_a_refused_adoption_left_before_is_no_queue(
    make_service: MakeService, engine: Engine
) -> None:
    """Earlier releases left a record: no list breaks on it, and it is in nobody's way."""
    create_invoices(engine, 1)
    create(engine, Column("id", Integer, primary_key=True))
    make_service().adopt_queue("ghost", Invoice)
    lose_columns(engine)
    with engine.begin() as connection:
        stored = connection.scalar(text("SELECT settings FROM queue_over_sql_queues"))
        begun = {"settings": json.dumps(json.loads(str(stored)) | {"adopting": True})}
        connection.execute(text("UPDATE queue_over_sql_queues SET settings = :settings"), begun)
    service = make_service()
    assert [] == service.queues()
    with pytest.raises(QueueSchemaMismatch, match=r"interrupted.*adopt_queue.*again.*drop_queue"):
        service.queue("ghost")
    service.reap()
    # The same table under another name, and then the same name with another table.
    assert 1 == service.adopt_queue("billing", Invoice).enqueue()
    assert "ghost" == service.adopt_queue("ghost", "orders").name
    assert ["billing", "ghost"] == [queue.name for queue in make_service().queues()]


@pytest.mark.engines("mysql", "mariadb")
@pytest.mark.threads("the doctor looks from outside, by a service of its own")
def test_a_table_without_transactions_is_refused(
    make_service: MakeService, engine: Engine, database: TestDatabase
) -> None:
    """At the adoption; after a later ALTER, when a service opens the queue; and by the doctor."""
    create_invoices(engine, 1)
    service = make_service()
    for storage in ("MyISAM", "Aria") if database.engine == "mariadb" else ("MyISAM",):
        alter(engine, f"ENGINE={storage}")
        before = column_names(engine)
        with pytest.raises(QueueSchemaMismatch, match=rf"{storage}.*ENGINE=InnoDB"):
            service.adopt_queue("billing", Invoice)
        assert before == column_names(engine)
    assert [] == service.queues()
    alter(engine, "ENGINE=InnoDB")
    service.adopt_queue("billing", Invoice)
    service.create_queue("jobs")
    assert "invoices" not in " ".join(advice_of(make_service()))
    alter(engine, "ENGINE=MyISAM")
    alter(engine, "ENGINE=MyISAM", "queue_jobs")
    late = make_service()
    with pytest.raises(QueueSchemaMismatch, match=r"MyISAM.*ENGINE=InnoDB"):
        late.queue("billing")
    assert ["jobs"] == [queue.name for queue in late.queues()]
    advice = " ".join(advice_of(late))
    assert "ALTER TABLE invoices ENGINE=InnoDB" in advice
    assert "ALTER TABLE queue_jobs ENGINE=InnoDB" in advice
    assert late.drop_queue("billing")


@pytest.mark.engines("postgresql")
@pytest.mark.threads("the doctor looks from outside, by a service of its own")
def test_an_unlogged_table_needs_consent(make_service: MakeService, engine: Engine) -> None:
    """A crash of the server empties it; a foreign or temporary table is none of ours at all."""
    create_invoices(engine, 1)
    alter(engine, "SET UNLOGGED")
    service = make_service()
    with pytest.raises(QueueSchemaMismatch, match=r"UNLOGGED.*SET LOGGED.*unlogged=True"):
        service.adopt_queue("billing", Invoice)
    assert [] == service.queues()
    assert 1 == service.adopt_queue("billing", Invoice, unlogged=True).enqueue()
    assert "billing" == make_service().queue("billing").name
    assert "ALTER TABLE invoices SET LOGGED" in " ".join(advice_of(service))
    alter(engine, "SET LOGGED")
    assert "billing" == make_service().adopt_queue("billing", Invoice).name


def alter(engine: Engine, how: str, table: str = "invoices") -> None:
    """Change a table as its owner would."""
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} {how}"))


def advice_of(service: QueueService) -> list[str]:
    """What the doctor says and advises."""
    return [f"{finding.text} {finding.advice}" for finding in diagnose(service)]


UNUSUAL: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {
        "st": ("CREATE TABLE st (id INTEGER PRIMARY KEY, x INTEGER) STRICT",),
        "wr": ("CREATE TABLE wr (id INTEGER PRIMARY KEY, x INTEGER) WITHOUT ROWID",),
    },
    "postgresql": {
        "dm": (
            "CREATE DOMAIN number AS bigint CHECK (VALUE > 0)",
            "CREATE TABLE dm (id number PRIMARY KEY, x number)",
        ),
        "od": (
            "CREATE TYPE pair AS (a integer, b text)",
            "CREATE TABLE od (id integer PRIMARY KEY, x integer, p pair, g point, i int4range)",
        ),
    },
    "mysql": {"un": ("CREATE TABLE un (id BIGINT UNSIGNED PRIMARY KEY, x BIGINT, g POINT)",)},
    "mariadb": {"un": ("CREATE TABLE un (id BIGINT UNSIGNED PRIMARY KEY, x BIGINT, g POINT)",)},
    "h2": {"ar": ("CREATE TABLE ar (id INTEGER PRIMARY KEY, x INTEGER, a INTEGER ARRAY)",)},
}
LARGEST_ID = {"mysql": 2**64 - 1, "mariadb": 2**64 - 1}


def test_unusual_tables_are_served(
    make_service: MakeService, engine: Engine, database: TestDatabase
) -> None:
    """Types that SQLAlchemy does not know, domains, ids beyond 2⁶³, and names with a point."""
    quoted = engine.dialect.identifier_preparer.quote_identifier
    pointed = f"CREATE TABLE {quoted('a.b')} (id INTEGER PRIMARY KEY, x INTEGER)"
    tables = {**UNUSUAL[database.engine], "a.b": (pointed,)}
    if database.engine in {"postgresql", "h2"}:
        # And two names that differ by case.
        tables["Ab"] = tuple(
            f"CREATE TABLE {quoted(name)} (id INTEGER PRIMARY KEY, x INTEGER)"
            for name in ("Ab", "AB", "ab")
        )
    service = make_service()
    for name, statements in tables.items():
        largest = LARGEST_ID.get(database.engine, 7) if name == "un" else 7
        with engine.begin() as connection:
            options = {"no_parameters": True}
            for statement in statements:
                connection.exec_driver_sql(statement, execution_options=options).close()
            table = engine.dialect.identifier_preparer.quote(name)
            rows = f"INSERT INTO {table} (id, x) VALUES (1, 11), ({largest}, 12)"
            connection.exec_driver_sql(rows, execution_options=options).close()
        queue = service.adopt_queue("unusual", name, max_attempts=2, retry=FixedDelay(0))
        assert 2 == queue.enqueue(progress=lambda _: None), name
        first, last = queue.consume(2)
        assert 1 == first.id, name
        assert 11 == own_row(first)["x"], name
        assert largest == last.id, name
        assert 12 == own_row(last)["x"], name
        queue.ack(first)
        last.reject("no")
        assert 2 == queue.archive.messages().requeue(), name
        assert [1, largest] == ids(queue.consume(2))
        assert service.drop_queue("unusual")


@pytest.mark.engines("mysql")
def test_a_column_that_sqlalchemy_cannot_read_is_refused(
    service: QueueService, engine: Engine
) -> None:
    """In our words; the table stays as it is."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ve (id INTEGER PRIMARY KEY, v VECTOR(3))"))
    with pytest.raises(QueueSchemaMismatch, match=r"'ve'.*cannot read the type"):
        service.adopt_queue("vectors", "ve")
    assert [] == service.queues()


def test_a_rebuilt_table_is_not_taken_for_one_without_finished_rows(
    make_service: MakeService, engine: Engine
) -> None:
    """A bare enqueue() would take what is done; whoever drops the queue first has decided."""
    create_invoices(engine, 2)
    queue = make_service().adopt_queue("billing", Invoice)
    assert 2 == queue.enqueue()
    queue.ack(queue.consume(1))
    lose_columns(engine)
    before = column_names(engine)
    for _ in range(2):
        with pytest.raises(QueueSchemaMismatch, match=r"lost all columns.*drop the queue.*where="):
            make_service().adopt_queue("billing", Invoice)
        assert before == column_names(engine)
    assert make_service().drop_queue("billing")
    queue = make_service().adopt_queue("billing", Invoice)
    assert 1 == queue.enqueue(Invoice.number == 2)
    assert [2] == ids(queue.consume(2))


@pytest.mark.default_on("sqlite", "mysql")
def test_a_rebuilt_table_without_rows_has_lost_nothing(
    make_service: MakeService, engine: Engine
) -> None:
    """Its columns are added again; so it is after the user has dropped and created the table."""
    create_invoices(engine, 0)
    make_service().adopt_queue("billing", Invoice)
    lose_columns(engine)
    queue = make_service().adopt_queue("billing", Invoice)
    assert set(ADDED_COLUMNS) <= column_names(engine)
    assert [] == queue.consume()


def test_adopting_again_waits_for_no_writer(make_service: MakeService, engine: Engine) -> None:
    """A server that starts beside a long transaction of writes has its queue at once."""
    create_invoices(engine, 2)
    make_service().adopt_queue("billing", Invoice)
    starting, named = make_service(), make_service()
    with engine.connect() as writer:
        writer.execute(update(Invoice).values(paid=True))
        # Who waits for the writer gives up with an error.
        starting.adopt_queue("billing", Invoice)
        named.adopt_queue("billing", "invoices", max_attempts=5)
    assert 2 == starting.queue("billing").enqueue()  # type: ignore[attr-defined]


@pytest.mark.engines("sqlite")
def test_an_index_on_an_expression_is_no_reason_for_a_warning(
    make_service: MakeService, engine: Engine
) -> None:
    """SQLAlchemy warns where it cannot describe an index of the user's; here a warning fails."""
    create_invoices(engine, 1)
    with engine.begin() as connection:
        connection.execute(text("CREATE INDEX by_title ON invoices (lower(title))"))
    for _ in range(2):
        make_service().adopt_queue("billing", Invoice)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a transaction of the test's own thread")
def test_a_first_adoption_inside_of_a_transaction_says_what_to_do(
    service: QueueService, engine: Engine
) -> None:
    """It would wait for the caller's own transaction; there is no connection= to pass."""
    create_invoices(engine, 1)
    service.queues()
    with engine.connect() as caller:
        caller.execute(update(Invoice).values(paid=True))
        with pytest.raises(DatabaseUnavailable, match=r"adopt_queue\(\) before it begins") as error:
            service.adopt_queue("billing", Invoice)
    assert "connection=" not in str(error.value)


@pytest.mark.engines("sqlite")
def test_a_borrowed_engine_adopts_too(make_service: MakeService, database: TestDatabase) -> None:
    """A service on the user's own engine needs no connection of another kind."""
    own = create_engine(database.url)
    create_invoices(own, 1)
    try:
        from queue_over_sql import QueueService

        with QueueService(own) as service:
            queue = service.adopt_queue("billing", Invoice)
            assert 1 == queue.enqueue()
            with queue.receive() as message:
                assert message is not None
        assert 1 == make_service().queue("billing").stats().done
    finally:
        own.dispose()


@pytest.mark.default_on("sqlite", "postgresql")
def test_errors_are_ours(service: QueueService, engine: Engine) -> None:
    """A row that the user's own constraint refuses is our error, with the driver's as cause."""
    create_invoices(engine, 1)
    queue = service.adopt_queue("billing", Invoice)
    with pytest.raises(QueueError) as refused:
        queue.publish({"company_id": 1, "title": "no 1"})
    assert refused.value.__cause__ is not None
    assert 0 == queue.stats().ready


# -- two queues over one table


def test_two_queues_over_one_table_do_not_see_each_other(
    make_service: MakeService, engine: Engine
) -> None:
    """The columns of the one are no facts of the other's rows, and may go while it works."""
    create_invoices(engine, 1)
    first = make_service().adopt_queue("first", "invoices")
    second = make_service().adopt_queue("second", "invoices", column_prefix="b_")
    reader = make_service().queue("first")
    first.publish({"company_id": 1, "paid": False})
    assert 2 == second.enqueue()
    [message] = reader.consume()
    assert message.row is not None
    assert not [name for name in message.row if name.startswith("b_")]
    assert make_service().drop_queue("second")
    reader.ack(message)
    first.publish({"company_id": 2, "paid": False})
    assert 1 == len(reader.consume())


@pytest.mark.engines("sqlite")
def test_one_table_is_adopted_once_under_one_prefix(
    make_service: MakeService, engine: Engine
) -> None:
    """The other queue is named."""
    create_invoices(engine, 1)
    make_service().adopt_queue("first", "invoices")
    with pytest.raises(QueueSchemaMismatch, match="first"):
        make_service().adopt_queue("second", "invoices")
