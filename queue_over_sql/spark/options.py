"""Options of the format: how their texts are read, and what `.option(name, value)` may say."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from queue_over_sql.durations import parse_seconds, to_timedelta
from queue_over_sql.settings import check_choice, check_whole


def nearest(name: str, known: Sequence[str]) -> str:
    """What to say of a name that is unknown: the nearest known one, and all of them."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    hint = f": did you mean {spelled[near[0]]}?" if near else "."
    return f"{hint} There are: {', '.join(known)}."


def chosen_names(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known names of the option ``columns``, in the order that the user wrote them.

    Raises:
        ValueError: there is no such column, or it is named twice.
    """
    spelled = {name.lower(): name for name in known}
    found: list[str] = []
    for name in wanted:
        column = spelled.get(name.lower())
        if column is None:
            msg = f"option columns: there is no column {name}{nearest(name, known)}"
            raise ValueError(msg)
        if column in found:
            msg = f"option columns names {column} twice"
            raise ValueError(msg)
        found.append(column)
    return found


def a_text(name: str, text: str) -> str:
    """Any text but an empty one.

    Raises:
        ValueError: it is empty.
    """
    if not text.strip():
        msg = f"option {name} is empty"
        raise ValueError(msg)
    return text.strip()


def a_flag(name: str, text: str) -> bool:
    """``true`` or ``false``.

    Raises:
        ValueError: it is neither.
    """
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        msg = f"option {name} must be true or false, not {text!r}"
        raise ValueError(msg)
    return found


def a_count(name: str, text: str) -> int:
    """A whole number from 1 on; ``_`` may group its digits.

    Raises:
        ValueError: it is none.
    """
    try:
        number = int(text.strip())
    except ValueError:
        msg = f"option {name} must be a whole number, not {text!r}"
        raise ValueError(msg) from None
    return check_whole(f"option {name}", number)


_BYTE_UNITS: Final = {"b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30}


def some_bytes(name: str, text: str) -> int:
    """A number of bytes, with or without a unit: ``4MB``, ``512k``, ``65536``.

    Raises:
        ValueError: it is none, or zero.
    """
    plain = text.strip().lower().replace("ib", "b")
    digits = plain.rstrip("bkmg").strip()
    unit = _BYTE_UNITS.get(plain[len(digits) :].strip() or "b")
    if not digits.isdecimal() or unit is None or int(digits) == 0:
        msg = f"option {name} must be a number of bytes such as 4MB, not {text!r}"
        raise ValueError(msg)
    return int(digits) * unit


def some_seconds(name: str, text: str) -> float:
    """A duration in seconds, with or without a unit: ``200ms``, ``1.5``, ``30s``, ``7d``.

    Raises:
        ValueError: it is none, or zero.
    """
    plain = text.strip().lower()
    try:
        seconds = float(plain) if plain[-1:].isdigit() else parse_seconds(plain)
        return to_timedelta(seconds, f"option {name}").total_seconds()
    except ValueError:
        msg = f"option {name} must be a duration such as 200ms, 30s or 7d, not {text!r}"
        raise ValueError(msg) from None


def one_of(*choices: str) -> Callable[[str, str], str]:
    """One of some words, in any case; what it returns raises ``ValueError`` for others."""

    def read(name: str, text: str) -> str:
        word = text.strip().lower()
        check_choice(f"option {name}", word, choices)
        return word

    return read


def names(name: str, text: str) -> tuple[str, ...]:
    """Names with commas between them.

    Raises:
        ValueError: there is none.
    """
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        msg = f"option {name} names nothing"
        raise ValueError(msg)
    return found


ALIASES: Final = {
    "topic": "queue",
    "subscribe": "queue",
    "maxoffsetspertrigger": "maxmessagespertrigger",
    "maxrecordsperpartition": "messagesperpartition",
}
"""Other names of options, lower-case: those of Kafka's connector."""

_KAFKAS: Final = frozenset(
    {"startingoffsets", "endingoffsets", "minpartitions", "groupidprefix", "assign"}
)
"""Options of Kafka's connector that mean nothing here."""

_SPARKS_OWN: Final = frozenset(
    {"checkpointlocation", "path", "outputmode", "queryname", "querytimeout"}
)
"""Options that Spark itself adds or reads."""

_PLACES_OF_FILES: Final = frozenset("/\\:.")
"""What stands in the path of a folder, and in no name of a queue."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Location:
    """Where a queue's database is, without looking at it yet.

    A password that stands in ``url`` travels to the executors with the query; one that is named
    by ``url_env`` or ``url_file`` is read where it is used, and must be there.

    Attributes:
        url: an SQLAlchemy URL.
        url_env: name of the environment variable that holds it.
        url_file: path of the file that holds it.
        schema: database schema of the tables; None for the connection's default.
        table_prefix: what the names of the queues' tables begin with.
    """

    url: str | None = dataclasses.field(default=None, repr=False)
    url_env: str | None = None
    url_file: str | None = None
    schema: str | None = None
    table_prefix: str = "queue_"

    def resolve(self) -> str:
        """The URL.

        Raises:
            ValueError: the variable is not set, or the file cannot be read, on this host.
        """
        if self.url is not None:
            return self.url
        if self.url_env is not None:
            found = os.environ.get(self.url_env)
            if not found:
                msg = (
                    f"option urlEnv: the environment variable {self.url_env} is not set in this "
                    "process; executors need it as well as the driver "
                    "(spark.executorEnv.<NAME>)"
                )
                raise ValueError(msg)
            return found
        try:
            return Path(str(self.url_file)).read_text(encoding="utf-8").strip()
        except OSError as error:
            msg = f"option urlFile: {self.url_file} cannot be read on this host: {error.strerror}"
            raise ValueError(msg) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """What every use of the format needs.

    Attributes:
        locations: one for each database, by its label; a single one has the label "".
        queue: name of the queue, the same in each.
        used_by: which use of the format it is, for people.
    """

    used_by: ClassVar[str] = "every use"

    locations: Mapping[str, Location]
    queue: str

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        others: Sequence[type[QueueOptions]] = (),
        foreign: Sequence[type[QueueOptions]] = (),
    ) -> Self:
        """Read what Spark hands over.

        Args:
            options: names in any case, and texts.
            others: other uses of the format, whose options may be among them.
            foreign: uses whose options may not; such a one is told where it belongs.

        Raises:
            ValueError: an option is unknown, missing or has no sensible value; the text names it
                as the user writes it.
        """
        given = _canonical(options, cls, others=others, foreign=foreign)
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
        """The only database.

        Raises:
            ValueError: there are several, and this use of the format takes one.
        """
        if len(self.locations) != 1:
            msg = (
                "option urls names several databases, which only a stream can read at once: "
                "unite one DataFrame for each instead"
            )
            raise ValueError(msg)
        return next(iter(self.locations.values()))


def option(read: Callable[[str, str], Any], *, default: Any) -> Any:
    """A field of an options class: how its text is read, and what holds without it."""
    return dataclasses.field(default=default, metadata={"read": read})


SchemaStyle = Literal["native", "kafka"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageOptions(QueueOptions):
    """What decides which columns a message has.

    Attributes:
        schema_style: ``native``, or ``kafka`` for the columns of Kafka's connector.
        include_headers: whether there is a column ``headers``.
        columns: only these columns, since Spark does not tell a source which ones it needs.
        batch_bytes: how large an Arrow batch becomes, about.
    """

    schema_style: SchemaStyle = option(one_of("native", "kafka"), default="native")
    include_headers: bool = option(a_flag, default=True)
    columns: tuple[str, ...] = option(names, default=())
    batch_bytes: int = option(some_bytes, default=4 * 2**20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions(MessageOptions):
    """What ``spark.read`` reads.

    Attributes:
        table: the ``live`` messages or those in the ``archive``.
        num_partitions: into how many ranges of ids the messages are cut; None for one per about
            250,000 messages.
        pushdown: let the database filter. Spark's setting
            ``spark.sql.python.filterPushdown.enabled`` must then be true.
    """

    used_by: ClassVar[str] = "batch reads (spark.read)"

    table: Literal["live", "archive"] = option(one_of("live", "archive"), default="live")
    num_partitions: int | None = option(a_count, default=None)
    pushdown: bool = option(a_flag, default=False)

    @property
    def archived(self) -> bool:
        """Whether the archive is meant."""
        return self.table == "archive"


def camel(name: str) -> str:
    """A field's name as an option is written: ``maxMessagesPerTrigger``."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


_PLACES: Final = ("url", "urls", "urlEnv", "urlFile", "schema", "tablePrefix", "queue")


def known_names(options: type[QueueOptions]) -> list[str]:
    """The options of a use of the format as they are written."""
    own = [camel(f.name) for f in dataclasses.fields(options) if "read" in f.metadata]
    return [*_PLACES, *own]


def gives_any_of(options: Mapping[str, str], use: type[QueueOptions]) -> bool:
    """Whether there are options that only this use of the format has, under any of their names."""
    given = {ALIASES.get(name.lower(), name.lower()) for name in options}
    return not given.isdisjoint(_own_names(use))


def _own_names(use: type[QueueOptions]) -> dict[str, str]:
    common = {name.lower() for name in known_names(MessageOptions)}
    return {name.lower(): name for name in known_names(use) if name.lower() not in common}


def _canonical(
    options: Mapping[str, str],
    use: type[QueueOptions],
    *,
    others: Sequence[type[QueueOptions]],
    foreign: Sequence[type[QueueOptions]],
) -> dict[str, str]:
    spelled = {name.lower(): name for each in (use, *others) for name in known_names(each)}
    given: dict[str, str] = {}
    for name, text in options.items():
        lower = ALIASES.get(name.lower(), name.lower())
        if lower in _SPARKS_OWN:
            continue
        if lower not in spelled:
            raise ValueError(_misplaced(lower, use, foreign) or _unknown(name, lower, use, others))
        if given.get(lower, text) != text:
            msg = f"option {spelled[lower]} is given twice, under two names"
            raise ValueError(msg)
        given[lower] = text
    return _with_path(options, given)


def _with_path(options: Mapping[str, str], given: dict[str, str]) -> dict[str, str]:
    """Take what stands in ``load(…)``, ``save(…)`` and ``start(…)`` for the queue's name.

    Spark gives a path to each table of its catalog, too: that of a folder, which is no name.
    """
    path = next((text.strip() for name, text in options.items() if name.lower() == "path"), "")
    if not path or not _PLACES_OF_FILES.isdisjoint(path):
        return given
    if given.get("queue", path).strip() != path:
        msg = (
            f"option queue is {given['queue']!r}, and load, save or start says {path!r}: "
            "name the queue once"
        )
        raise ValueError(msg)
    return {**given, "queue": path}


def _misplaced(
    lower: str, use: type[QueueOptions], foreign: Sequence[type[QueueOptions]]
) -> str | None:
    for other in foreign:
        if lower in (own := _own_names(other)):
            return f"option {own[lower]} is of {other.used_by}, not of {use.used_by}: leave it out"
    return None


def _unknown(
    name: str, lower: str, use: type[QueueOptions], others: Sequence[type[QueueOptions]]
) -> str:
    spelled = {name.lower(): name for each in (use, *others) for name in known_names(each)}
    near = difflib.get_close_matches(lower, [*spelled, *ALIASES], n=1, cutoff=0.7)
    hint = f": did you mean {spelled.get(near[0], near[0])}?" if near else "."
    if lower in _KAFKAS or lower.startswith("kafka."):
        hint = ", which is of Kafka's connector: a queue has no offsets or brokers; leave it out."
    lists = [f"There are: {', '.join(sorted(known_names(use)))}."]
    # What an option might belong to is only known when Spark reads or writes.
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
            "name the database by exactly one of the options url (an SQLAlchemy URL), urlEnv, "
            "urlFile, or urls (a JSON list or object of URLs)"
        )
        raise ValueError(msg)
    base = Location(schema=given.get("schema"), table_prefix=given.get("tableprefix", "queue_"))
    text = given[places[0]].strip()
    if places[0] == "urls":
        return {label: dataclasses.replace(base, url=url) for label, url in _several(text).items()}
    field = {"url": "url", "urlenv": "url_env", "urlfile": "url_file"}[places[0]]
    return {"": dataclasses.replace(base, **{field: text})}


def labels_of(urls: Sequence[str]) -> dict[str, str]:
    """Databases by what tells them apart: host, port and database, without user and password.

    Raises:
        ValueError: one is there twice, or is no URL.
    """
    from queue_over_sql.dialects.engines import read_url, shown_place

    labels = {shown_place(read_url(url)): url for url in urls}
    if len(labels) != len(urls):
        msg = "option urls names a database twice; give each a name by a JSON object, or a mapping"
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
