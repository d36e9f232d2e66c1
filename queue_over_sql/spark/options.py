"""The options of the format: names, and how their texts are read."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from queue_over_sql.inside.columns import STAGE_TTL
from queue_over_sql.inside.streams import DEFAULT_TIMEOUT, check_consumer_id
from queue_over_sql.values.checks import check_choice, check_whole
from queue_over_sql.values.durations import parse_seconds, to_timedelta
from queue_over_sql.values.limits import CONSUMER_LENGTH, WRITER_LENGTH


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name: the nearest known name, or all of them."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    hint = f": did you mean {spelled[near[0]]}?" if near else "."
    return f"{hint} Valid values: {', '.join(known)}."


def chosen_names(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names in the option ``columns``, in the user's order."""
    spelled = {name.lower(): name for name in known}
    found: list[str] = []
    for name in wanted:
        column = spelled.get(name.lower())
        if column is None:
            msg = f"option columns: there is no column {name}{nearest(name, known)}"
            raise ValueError(msg)
        if column in found:
            msg = f"option columns contains {column} twice"
            raise ValueError(msg)
        found.append(column)
    return found


# -- readers: each gets an option's name and text, and raises ValueError


def a_text(name: str, text: str) -> str:
    """Any text but an empty one."""
    if not text.strip():
        msg = f"option {name} is empty"
        raise ValueError(msg)
    return text.strip()


def a_flag(name: str, text: str) -> bool:
    """``true`` or ``false``."""
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        msg = f"option {name} must be true or false, not {text!r}"
        raise ValueError(msg)
    return found


def a_count(name: str, text: str) -> int:
    """A whole number of 1 or more; ``_`` may group its digits."""
    try:
        number = int(text.strip())
    except ValueError:
        msg = f"option {name} must be a whole number, not {text!r}"
        raise ValueError(msg) from None
    return check_whole(f"option {name}", number)


def a_number(name: str, text: str) -> int:
    """A whole number of 0 or more."""
    try:
        return check_whole(f"option {name}", int(text.strip()), 0, 2**62)
    except ValueError:
        msg = f"option {name} must be a whole number of 0 or more, not {text!r}"
        raise ValueError(msg) from None


_BYTE_UNITS: Final = {"b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30}


def some_bytes(name: str, text: str) -> int:
    """A number of bytes above zero, with or without a unit: ``4MB``, ``512k``, ``65536``."""
    plain = text.strip().lower().replace("ib", "b")
    digits = plain.rstrip("bkmg").strip()
    unit = _BYTE_UNITS.get(plain[len(digits) :].strip() or "b")
    if not digits.isdecimal() or unit is None or int(digits) == 0:
        msg = f"option {name} must be a number of bytes such as 4MB, not {text!r}"
        raise ValueError(msg)
    return int(digits) * unit


def some_seconds(name: str, text: str) -> float:
    """A duration above zero, with or without a unit: ``200ms``, ``1.5``, ``30s``, ``7d``."""
    plain = text.strip().lower()
    try:
        seconds = float(plain) if plain[-1:].isdigit() else parse_seconds(plain)
        return to_timedelta(seconds, f"option {name}").total_seconds()
    except ValueError:
        msg = f"option {name} must be a duration such as 200ms, 30s or 7d, not {text!r}"
        raise ValueError(msg) from None


def a_timeout(name: str, text: str) -> float | None:
    """A duration in seconds, or ``never``."""
    return None if text.strip().lower() == "never" else some_seconds(name, text)


def a_consumer(name: str, text: str) -> str:
    """The id of a durable consumer."""
    try:
        return check_consumer_id(text.strip())
    except ValueError:
        msg = f"option {name} must be 1 to {CONSUMER_LENGTH} of A-Z a-z 0-9 . _ -, not {text!r}"
        raise ValueError(msg) from None


def a_writer(name: str, text: str) -> str:
    """The name of a writer."""
    found = a_text(name, text)
    if len(found) > WRITER_LENGTH:
        msg = f"option {name} must be at most {WRITER_LENGTH} characters long"
        raise ValueError(msg)
    return found


def one_of(*choices: str) -> Callable[[str, str], str]:
    """One of some words, in any case."""

    def read(name: str, text: str) -> str:
        word = text.strip().lower()
        check_choice(f"option {name}", word, choices)
        return word

    return read


def names(name: str, text: str) -> tuple[str, ...]:
    """One or more names, separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        msg = f"option {name} is empty"
        raise ValueError(msg)
    return found


# -- options


ALIASES: Final = {
    "topic": "queue",
    "subscribe": "queue",
    "maxoffsetspertrigger": "maxmessagespertrigger",
    "maxrecordsperpartition": "messagesperpartition",
}
"""Alternative names of options in lower case: those of Kafka's connector."""

_KAFKAS: Final = frozenset(
    {"startingoffsets", "endingoffsets", "minpartitions", "groupidprefix", "assign"}
)
"""Options of Kafka's connector that have no meaning here."""

_SPARKS_OWN: Final = frozenset(
    {"checkpointlocation", "path", "outputmode", "queryname", "querytimeout"}
)
"""Options that Spark itself adds or reads."""

_PLACES_OF_FILES: Final = frozenset("/\\:.")
"""Characters of folder paths that no queue name has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Location:
    """The location of a queue's database; nothing is read yet.

    A password in ``url`` is sent to the executors with the query. With ``url_env`` or ``url_file``
    each executor reads it, so it must exist there.
    """

    url: str | None = dataclasses.field(default=None, repr=False)
    url_env: str | None = None
    url_file: str | None = None
    schema: str | None = None
    table_prefix: str = "queue_"

    def resolve(self) -> str:
        """The URL; raises ValueError if this host does not have the variable or the file."""
        if self.url is not None:
            return self.url
        if self.url_env is not None:
            found = os.environ.get(self.url_env)
            if not found:
                msg = (
                    f"option urlEnv: the environment variable {self.url_env} is not set in this "
                    "process; the driver and the executors need it (spark.executorEnv.<NAME>)"
                )
                raise ValueError(msg)
            return found
        try:
            return Path(str(self.url_file)).read_text(encoding="utf-8").strip()
        except OSError as error:
            msg = f"option urlFile: {self.url_file} cannot be read on this host: {error.strerror}"
            raise ValueError(msg) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """The options of every use of the format: databases by their labels, and the queue.

    A single database has the label "".
    """

    used_by: ClassVar[str] = "every use"

    locations: Mapping[str, Location]
    queue: str

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        others: Sequence[type[FormatOptions]] = (),
    ) -> Self:
        """Read the options from Spark, which may include options of other uses of the format.

        Raises:
            ValueError: an option is unknown, missing or invalid; the message uses the user's
                spelling.
        """
        given = _canonical(options, cls, others)
        values: dict[str, Any] = {"locations": _locations(given), "queue": _queue(given)}
        for field in dataclasses.fields(cls):
            text = given.get(camel(field.name).lower())
            if field.name in values or text is None:
                continue
            read: Callable[[str, str], Any] = field.metadata["read"]
            values[field.name] = read(camel(field.name), text)
        return cls(**values)

    @property
    def location(self) -> Location:
        """The only database; raises ValueError if there are several."""
        if len(self.locations) != 1:
            msg = (
                "option urls names several databases, but only a stream can read several: make a "
                "DataFrame for each, and unite them"
            )
            raise ValueError(msg)
        return next(iter(self.locations.values()))


def option(read: Callable[[str, str], Any], *, default: Any) -> Any:
    """A field of an options class, with its reader and its default."""
    return dataclasses.field(default=default, metadata={"read": read})


SchemaStyle = Literal["native", "kafka"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnOptions(FormatOptions):
    """The columns of messages, and the approximate size of an Arrow batch.

    ``columns`` selects columns, because Spark does not tell a source which ones it needs.
    """

    schema_style: SchemaStyle = option(one_of("native", "kafka"), default="native")
    include_headers: bool = option(a_flag, default=True)
    columns: tuple[str, ...] = option(names, default=())
    batch_bytes: int = option(some_bytes, default=4 * 2**20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions(ColumnOptions):
    """The options of ``spark.read``.

    Attributes:
        num_partitions: the number of ranges of ids; None: one for about each 250,000 messages.
        pushdown: whether the database filters. This needs Spark's setting
            ``spark.sql.python.filterPushdown.enabled``.
    """

    used_by: ClassVar[str] = "batch reads (spark.read)"

    table: Literal["live", "archive"] = option(one_of("live", "archive"), default="live")
    num_partitions: int | None = option(a_count, default=None)
    pushdown: bool = option(a_flag, default=False)

    @property
    def archived(self) -> bool:
        """Whether to read the archive."""
        return self.table == "archive"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(ColumnOptions):
    """The options of a stream.

    Attributes:
        consumer_id: the consumer; the same at each start of one query, and different for others.
        max_messages_per_trigger: the largest number of messages of a micro-batch, from all
            databases together. A driver claims and acknowledges them in one transaction each.
        claim_mode: ``executor``: the tasks claim in parallel. ``driver``: the driver claims before
            the batch starts, strictly oldest first. ``auto``: executors if the database can skip
            locked rows.
        poll_interval: how long an empty answer is valid, in seconds.
        on_ack: ``delete`` or ``archive`` finished messages; ``queue``: as the queue's setting says.
        consumer_timeout: how long claims are kept for a query that does not run, in seconds; None:
            forever.
        fail_on_data_loss: whether to fail if the checkpoint and the queue do not match, instead of
            continuing with the queue.
        include_epoch: whether to add the column ``consumer_epoch``, which ``settle`` needs. It
            identifies the run of the query that read a row, so a replay has another one.
        reconnect_timeout: how long a database may be unavailable before the query fails, in
            seconds.
    """

    used_by: ClassVar[str] = "streams (spark.readStream)"

    consumer_id: str = option(a_consumer, default="")
    max_messages_per_trigger: int = option(a_count, default=500_000)
    messages_per_partition: int = option(a_count, default=25_000)
    claim_mode: Literal["auto", "executor", "driver"] = option(
        one_of("auto", "executor", "driver"), default="auto"
    )
    poll_interval: float = option(some_seconds, default=0.2)
    on_ack: Literal["queue", "delete", "archive"] = option(
        one_of("queue", "delete", "archive"), default="queue"
    )
    consumer_timeout: float | None = option(a_timeout, default=DEFAULT_TIMEOUT)
    fail_on_data_loss: bool = option(a_flag, default=True)
    include_epoch: bool = option(a_flag, default=False)
    reconnect_timeout: float = option(some_seconds, default=120.0)

    def __post_init__(self) -> None:
        if not self.consumer_id:
            msg = (
                "option consumerId is missing: a stream needs its own name to claim messages, and "
                "to continue after a restart"
            )
            raise ValueError(msg)

    @property
    def ending(self) -> str | None:
        """The argument ``on_ack`` of ``DurableConsumer``; None for the queue's setting."""
        return None if self.on_ack == "queue" else self.on_ack


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteOptions(FormatOptions):
    """The options of a write.

    Attributes:
        commit_mode: ``atomic``: a batch is published as a whole and once. ``task``: each task
            publishes its part, which is faster but may publish parts of a repeated batch again.
        on_conflict: what to do if a key is taken, as in ``publish``.
        writer_id: the writer. A ``batch_id`` that it has written is not written again. Default: the
            query's id in a stream; otherwise each job is a writer of its own.
        batch_id: the number of the batch in ``foreachBatch``.
        stage_ttl: how long staged messages wait for the driver, in seconds.
    """

    used_by: ClassVar[str] = "sinks (write, writeStream)"

    commit_mode: str = option(one_of("atomic", "task"), default="atomic")
    on_conflict: str = option(one_of("raise", "skip", "replace"), default="raise")
    writer_id: str | None = option(a_writer, default=None)
    batch_id: int | None = option(a_number, default=None)
    stage_ttl: float = option(some_seconds, default=STAGE_TTL)

    @property
    def atomic(self) -> bool:
        """Whether a batch is published as a whole."""
        return self.commit_mode == "atomic"


_USES: Final = (ReadOptions, StreamOptions, WriteOptions)


def camel(name: str) -> str:
    """A field's name in the spelling of options: ``maxMessagesPerTrigger``."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


_PLACES: Final = ("url", "urls", "urlEnv", "urlFile", "schema", "tablePrefix", "queue")


def known_names(options: type[FormatOptions]) -> list[str]:
    """The options of a use of the format, in their spelling."""
    own = [camel(f.name) for f in dataclasses.fields(options) if "read" in f.metadata]
    return [*_PLACES, *own]


def gives_any_of(options: Mapping[str, str], use: type[FormatOptions]) -> bool:
    """Whether an option is given that only this use of the format has, under any of its names."""
    given = {ALIASES.get(name.lower(), name.lower()) for name in options}
    return not given.isdisjoint(_own_names(use))


def _own_names(use: type[FormatOptions]) -> dict[str, str]:
    common = {name.lower() for name in known_names(ColumnOptions)}
    return {name.lower(): name for name in known_names(use) if name.lower() not in common}


def _canonical(
    options: Mapping[str, str], use: type[FormatOptions], others: Sequence[type[FormatOptions]]
) -> dict[str, str]:
    spelled = {name.lower(): name for each in (use, *others) for name in known_names(each)}
    given: dict[str, str] = {}
    for name, text in options.items():
        lower = ALIASES.get(name.lower(), name.lower())
        if lower in _SPARKS_OWN:
            continue
        if lower not in spelled:
            raise ValueError(_misplaced(lower, use, others) or _unknown(name, lower, use, others))
        if given.get(lower, text) != text:
            msg = f"option {spelled[lower]} is given twice, with two names"
            raise ValueError(msg)
        given[lower] = text
    return _with_path(options, given)


def _with_path(options: Mapping[str, str], given: dict[str, str]) -> dict[str, str]:
    """Use the argument of ``load(…)``, ``save(…)`` and ``start(…)`` as the queue's name.

    Spark also gives a path to each table of its catalog: that of a folder, which is ignored.
    """
    path = next((text.strip() for name, text in options.items() if name.lower() == "path"), "")
    if not path or not _PLACES_OF_FILES.isdisjoint(path):
        return given
    if given.get("queue", path).strip() != path:
        msg = (
            f"option queue is {given['queue']!r}, but the argument of load, save or start is "
            f"{path!r}: name the queue once"
        )
        raise ValueError(msg)
    return {**given, "queue": path}


def _misplaced(
    lower: str, use: type[FormatOptions], others: Sequence[type[FormatOptions]]
) -> str | None:
    for other in _USES:
        if other not in {use, *others} and lower in (own := _own_names(other)):
            return (
                f"option {own[lower]} is for {other.used_by}, not for {use.used_by}: leave it out"
            )
    return None


def _unknown(
    name: str, lower: str, use: type[FormatOptions], others: Sequence[type[FormatOptions]]
) -> str:
    spelled = {name.lower(): name for each in (use, *others) for name in known_names(each)}
    near = difflib.get_close_matches(lower, [*spelled, *ALIASES], n=1, cutoff=0.7)
    hint = f": did you mean {spelled.get(near[0], near[0])}?" if near else "."
    if lower in _KAFKAS or lower.startswith("kafka."):
        hint = (
            ", which belongs to the Kafka connector: a queue has no offsets or brokers; leave "
            "it out."
        )
    lists = [f"Valid options: {', '.join(sorted(known_names(use)))}."]
    # Which option it belongs to is known only when Spark reads or writes.
    for other in others:
        more = sorted({*known_names(other)} - {*known_names(use)})
        lists.append(f"Only for {other.used_by}: {', '.join(more)}.")
    return f"unknown option {name}{hint} {' '.join(lists)}"


def _queue(given: Mapping[str, str]) -> str:
    if not given.get("queue", "").strip():
        msg = "option queue is missing: name the queue to read or write"
        raise ValueError(msg)
    return given["queue"].strip()


def _locations(given: Mapping[str, str]) -> dict[str, Location]:
    places = [name for name in ("url", "urls", "urlenv", "urlfile") if given.get(name)]
    if len(places) != 1:
        msg = (
            "set exactly one of the options url (an SQLAlchemy URL), urlEnv, urlFile, and urls (a "
            "JSON list or object of URLs)"
        )
        raise ValueError(msg)
    base = Location(schema=given.get("schema"), table_prefix=given.get("tableprefix", "queue_"))
    text = given[places[0]].strip()
    if places[0] == "urls":
        return {label: dataclasses.replace(base, url=url) for label, url in _several(text).items()}
    field = {"url": "url", "urlenv": "url_env", "urlfile": "url_file"}[places[0]]
    return {"": dataclasses.replace(base, **{field: text})}


def labels_of(urls: Sequence[str]) -> dict[str, str]:
    """Labels for databases: host, port and database, without user and password."""
    from queue_over_sql.inside.databases import read_url, shown_place

    labels = {shown_place(read_url(url)): url for url in urls}
    if len(labels) != len(urls):
        msg = (
            "option urls contains a database twice; use a JSON object, or a mapping, of names "
            "to URLs"
        )
        raise ValueError(msg)
    return labels


def _several(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and all(isinstance(url, str) for url in found.values()) and found:
        return dict(found)
    if not isinstance(found, list) or not found or not all(isinstance(u, str) for u in found):
        msg = "option urls must be a JSON list of URLs, or a JSON object of names and URLs"
        raise ValueError(msg)
    return labels_of(found)
