"""Options of the Spark format: parsed from text; errors use the user's spelling."""

from __future__ import annotations

import pytest

from queue_over_sql.spark.options import (
    ColumnOptions,
    Location,
    ReadOptions,
    StreamOptions,
    gives_any_of,
    some_bytes,
    some_seconds,
)
from tests.refusals import refused

PLACE = {"url": "sqlite:///queues.db", "queue": "orders"}


def test_names_are_read_in_any_case_and_by_their_aliases() -> None:
    """Spark lower-cases names, and users of Kafka's connector write ``subscribe``."""
    found = ColumnOptions.parse(
        {
            "URL": PLACE["url"],
            "subscribe": "orders",
            "includeheaders": "FALSE",
            "columns": "id, key",
        }
    )
    assert "orders" == found.queue
    assert "sqlite:///queues.db" == found.location.resolve()
    assert not found.include_headers
    assert ("id", "key") == found.columns


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    """A slip of the pen must not be silently without effect."""
    with pytest.raises(ValueError, match=r"unknown option batchByte: did you mean batchBytes\?"):
        ColumnOptions.parse({**PLACE, "batchByte": "4MB"})


def test_a_slip_is_told_before_what_is_missing_for_it() -> None:
    """Spark asks for the columns first, when it does not say yet what the format is used for."""
    for wrong, meant in (("queu", "queue"), ("maxMessagePerTrigger", "max")):
        given = {"url": PLACE["url"], wrong: "5"}
        with pytest.raises(ValueError, match=f"unknown option {wrong}: did you mean {meant}"):
            ReadOptions.parse(given, others=(StreamOptions,))


def test_options_of_kafka_that_mean_nothing_here() -> None:
    """A job for Kafka's connector is told what to leave out."""
    for name in ("startingOffsets", "kafka.bootstrap.servers"):
        with pytest.raises(ValueError, match=r"the Kafka connector: .* leave it out"):
            ReadOptions.parse({**PLACE, name: "x"})


def test_a_name_that_is_only_somewhat_alike_is_not_proposed() -> None:
    """A wrong proposal leads astray: `tableName` is no slip for `tablePrefix`."""
    with pytest.raises(ValueError, match=r"unknown option tableName. Valid options"):
        StreamOptions.parse({**PLACE, "tableName": "x", "consumerId": "a"})
    with pytest.raises(ValueError, match=r"unknown option consumerName. Valid options"):
        ReadOptions.parse({**PLACE, "consumerName": "x"})


def test_an_option_of_another_use_is_told_where_it_belongs() -> None:
    """As it is written: Spark hands it over in lower case."""
    with pytest.raises(ValueError, match=r"option consumerId is for streams \(spark.readStream\)"):
        ReadOptions.parse({**PLACE, "consumerid": "a"})
    with pytest.raises(ValueError, match=r"option numPartitions is for batch reads \(spark.read\)"):
        StreamOptions.parse({**PLACE, "consumerid": "a", "numpartitions": "2"})
    with pytest.raises(ValueError, match=r"option onConflict is for sinks \(write, writeStream\)"):
        StreamOptions.parse({**PLACE, "consumerid": "a", "onconflict": "skip"})


def test_the_list_of_options_says_which_are_for_streams() -> None:
    """Where Spark does not say yet what it will do, both are named, and told apart."""
    with pytest.raises(ValueError, match="unknown option nonsense") as refused:
        ReadOptions.parse({**PLACE, "nonsense": "1"}, others=(StreamOptions,))
    always, streams = str(refused.value).split("Only for streams (spark.readStream): ")
    assert "numPartitions" in always
    assert "consumerId" not in always
    assert "consumerId" in streams
    assert "batchBytes" not in streams


def test_options_of_streams_are_known_by_all_their_names() -> None:
    """Also by those of Kafka's connector; what any read takes is none of them."""
    assert gives_any_of({**PLACE, "maxoffsetspertrigger": "5"}, StreamOptions)
    assert gives_any_of({**PLACE, "consumerId": "a"}, StreamOptions)
    assert not gives_any_of({**PLACE, "batchBytes": "4MB", "table": "archive"}, StreamOptions)


def test_a_name_in_load_is_the_queue() -> None:
    """Spark hands it over as a path, which would be silently without effect."""
    found = ReadOptions.parse({"url": "sqlite:///queues.db", "path": "orders"})
    assert "orders" == found.queue
    with pytest.raises(ValueError, match=r"option queue is 'orders', but .*load.* is 'others'"):
        ReadOptions.parse({**PLACE, "path": "others"})


def test_options_of_spark_itself_pass() -> None:
    """Spark hands its own options to the source, too; they change nothing there."""
    with_sparks = ColumnOptions.parse({**PLACE, "checkpointlocation": "/x", "path": "file:/y"})
    assert ColumnOptions.parse(PLACE) == with_sparks


SENSELESS = [
    ({"queue": "orders"}, "exactly one of the options url"),
    ({**PLACE, "urlEnv": "X"}, "exactly one of the options url"),
    ({"url": "sqlite://"}, "option queue is missing"),
    ({**PLACE, "topic": "others"}, "given twice"),
    ({**PLACE, "batchBytes": "many"}, "option batchBytes must be a number of bytes"),
    ({**PLACE, "includeHeaders": "yes"}, "option includeHeaders must be true or false"),
    ({**PLACE, "schemaStyle": "avro"}, "option schemaStyle must be one of 'native', 'kafka'"),
    ({"urls": "a,b", "queue": "orders"}, "option urls must be a JSON list"),
    ({"urls": '["a b"]', "queue": "orders"}, "database is not an SQLAlchemy URL"),
    ({"urls": '["jdbc:h2:x"]', "queue": "orders"}, "JDBC URL"),
]


def test_what_makes_no_sense_is_refused_by_name() -> None:
    """The text says which option, as the user writes it."""
    for options, said in SENSELESS:
        with refused(options, ValueError, match=said):
            ColumnOptions.parse(options)


def test_several_databases_have_labels_without_secrets() -> None:
    """Labels stand in checkpoints and in progress."""
    urls = '["postgresql+psycopg://u:secret@a:5432/q", "postgresql+psycopg://u:secret@b/q"]'
    found = ColumnOptions.parse({"urls": urls, "queue": "orders"})
    assert ["a:5432/q", "b/q"] == list(found.locations)
    assert "secret" not in repr(found)


def test_a_label_has_nothing_of_a_password_with_an_at_sign() -> None:
    """However far that goes on behind it."""
    urls = '["postgresql+psycopg://u:sec@ret/x@b/q", "postgresql+psycopg://u@a/my@q"]'
    found = ColumnOptions.parse({"urls": urls, "queue": "orders"})
    assert ["b/q", "a/my@q"] == list(found.locations)


def test_a_url_is_read_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels to the executors is the name of the variable."""
    place = Location(url_env="ORDERS_URL")
    with pytest.raises(ValueError, match=r"ORDERS_URL is not set in this process"):
        place.resolve()
    monkeypatch.setenv("ORDERS_URL", "sqlite:///x.db")
    assert "sqlite:///x.db" == place.resolve()


def test_durations_may_have_units() -> None:
    """As at the command line."""
    seconds = {"200ms": 0.2, "1.5": 1.5, "30 S": 30, "7d": 7 * 86_400, ".5s": 0.5, "1e3": 1000}
    assert seconds == {text: some_seconds("pollInterval", text) for text in seconds}


def test_sizes_may_have_units() -> None:
    """As in Spark's own options."""
    sizes = {"4MB": 4 << 20, "512k": 512 << 10, "65536": 65536}
    assert sizes == {text: some_bytes("batchBytes", text) for text in sizes}
