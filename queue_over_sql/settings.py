"""Settings of a queue and of a service, and their checks."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from queue_over_sql.errors import UNREADABLE, QueueSchemaMismatch, shown
from queue_over_sql.retry import ExponentialBackoff, RetryPolicies, RetryPolicy, check_policy
from queue_over_sql.values.cached import cached_property
from queue_over_sql.values.checks import (
    check_choice,
    check_flag,
    check_whole,
)
from queue_over_sql.values.durations import MICROSECOND, Duration, to_timedelta
from queue_over_sql.values.limits import MAX_PRIORITIES, MOST_IN_HAND, TITLE_LENGTH
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.rates import rate_text
from queue_over_sql.values.states import Outcome
from queue_over_sql.values.texts import is_storable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Column
    from sqlalchemy.types import TypeEngine

PAYLOAD_TYPES: Final = ("json", "text", "bytes")
ARCHIVES: Final = ("none", "failed", "all")
PayloadType = Literal["json", "text", "bytes"]
ArchivePolicy = Literal["none", "failed", "all"]
GROUP_ORDERS: Final = ("fifo", "any")
GroupOrder = Literal["fifo", "any"]
WHENS_FULL: Final = ("wait", "reject", "replace")
WhenFull = Literal["wait", "reject", "replace"]
MOST_SLOTS: Final = 1_000
"""The largest ``queue_limit``: each claim may look at as many slots."""
LONGEST_QUEUE: Final = 10_000_000
"""The largest ``max_length``: a publish may count as many messages."""
UNIQUES: Final = ("live", "waiting")
Unique = Literal["live", "waiting"]

_NUMBER: Final = ("precision", "asdecimal", "decimal_return_scale")
_DECIMAL: Final = ("precision", "scale", "asdecimal", "decimal_return_scale")
_TEXT: Final = ("length", "collation")
_DESCRIBED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("Boolean", "BOOLEAN", "Date", "DATE"), ()),
    **dict.fromkeys(("SmallInteger", "Integer", "BigInteger", "SMALLINT", "INTEGER", "BIGINT"), ()),
    **dict.fromkeys(("Float", "Double", "FLOAT", "DOUBLE", "DOUBLE_PRECISION", "REAL"), _NUMBER),
    **dict.fromkeys(("Numeric", "NUMERIC", "DECIMAL"), _DECIMAL),
    **dict.fromkeys(("String", "Text", "Unicode", "UnicodeText", "TEXT", "CLOB"), _TEXT),
    **dict.fromkeys(("CHAR", "VARCHAR", "NCHAR", "NVARCHAR"), _TEXT),
    **dict.fromkeys(("LargeBinary", "BLOB", "BINARY", "VARBINARY"), ("length",)),
    **dict.fromkeys(("DateTime", "Time", "DATETIME", "TIMESTAMP", "TIME"), ("timezone",)),
    "Interval": ("native", "second_precision", "day_precision"),
    "Uuid": ("as_uuid", "native_uuid"),
    "UUID": ("as_uuid",),
    "JSON": ("none_as_null",),
}
"""The SQLAlchemy types that are stored with a queue, and their arguments."""
_COLLATION = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


class Unset(enum.Enum):
    """The type of ``UNSET``."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""A setting that is not given: a new queue gets the default, an existing one keeps its value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """The settings to give a queue; a field left ``UNSET`` gets its default or stays unchanged.

    The fields are the arguments of ``QueueService.create_queue``.

    Raises:
        TypeError, ValueError: a field has an invalid value; the message names it.
    """

    lease: Duration | Unset = UNSET
    max_attempts: int | Unset = UNSET
    retry: RetryPolicy | Unset = UNSET
    payload: PayloadType | Unset = UNSET
    priorities: int | Unset = UNSET
    archive: ArchivePolicy | Unset = UNSET
    archive_ttl: Duration | Mapping[str, Duration | None] | Unset | None = UNSET
    archive_limit: int | Mapping[str, int | None] | Unset | None = UNSET
    unique: Unique | Unset = UNSET
    dedup_window: Duration | Unset | None = UNSET
    expires: Duration | Unset | None = UNSET
    dead_letter_queue: str | Unset | None = UNSET
    unused_for: Duration | Unset | None = UNSET
    group_limit: int | Unset | None = UNSET
    group_order: GroupOrder | Unset = UNSET
    group_rate: str | Unset | None = UNSET
    group_fair: bool | Unset = UNSET
    block_on_failure: bool | Unset = UNSET
    queue_limit: int | Unset | None = UNSET
    queue_rate: str | Unset | None = UNSET
    max_length: int | Unset | None = UNSET
    when_full: WhenFull | Unset = UNSET
    max_payload_bytes: int | Unset = UNSET
    columns: Sequence[Column[Any]] | Unset = UNSET
    kinds: Sequence[Any] | Mapping[str, Any] | Unset = UNSET
    kind_timeout: Duration | Unset = UNSET
    warn_age: Duration | Unset | None = UNSET
    critical_age: Duration | Unset | None = UNSET

    def __post_init__(self) -> None:
        for name, value in given_of(self).items():
            _KINDS[name].check(name, value)


class OptionsOfAdopted(TypedDict, total=False):
    """The settings that ``adopt_queue`` takes, and an adopted queue can change."""

    lease: Duration | Unset
    max_attempts: int | Unset
    retry: RetryPolicy | Unset
    priorities: int | Unset
    group_limit: int | Unset | None
    group_order: GroupOrder | Unset
    group_rate: str | Unset | None
    group_fair: bool | Unset
    block_on_failure: bool | Unset
    queue_limit: int | Unset | None
    queue_rate: str | Unset | None
    warn_age: Duration | Unset | None
    critical_age: Duration | Unset | None


class QueueOptions(OptionsOfAdopted, total=False):
    """The arguments of ``create_queue`` beside ``kinds``, which says the type of the queue."""

    payload: PayloadType | Unset
    archive: ArchivePolicy | Unset
    archive_ttl: Duration | Mapping[str, Duration | None] | Unset | None
    archive_limit: int | Mapping[str, int | None] | Unset | None
    unique: Unique | Unset
    dedup_window: Duration | Unset | None
    expires: Duration | Unset | None
    dead_letter_queue: str | Unset | None
    unused_for: Duration | Unset | None
    max_length: int | Unset | None
    when_full: WhenFull | Unset
    max_payload_bytes: int | Unset
    columns: Sequence[Column[Any]] | Unset
    kind_timeout: Duration | Unset


NOT_GIVEN: Final = dict.fromkeys(QueueOptions.__annotations__, UNSET)
"""What an option of a queue is if it is not given."""


@dataclasses.dataclass(frozen=True)
class Adoption:
    """The table of an adopted queue; without a schema, that of the connection.

    Attributes:
        group: the column that names the group of a row; None: messages have no groups.
    """

    table: str
    schema: str | None
    column_prefix: str
    primary_key: str
    group: str | None = None

    @property
    def where(self) -> str:
        """The table's name with its schema, for messages to people."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def columns(self) -> tuple[str, str]:
        """Where the columns are that the queue added; no other queue may have the same."""
        return self.where, self.column_prefix

    def stored(self) -> dict[str, Any]:
        """The fields for the registry; earlier releases know those without a group."""
        fields = dataclasses.asdict(self)
        if self.group is None:
            del fields["group"]
        return fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class EffectiveSettings:
    """The settings of a queue; the fields are those of ``QueueSettings``, all set.

    Attributes:
        adoption: the adopted table of the queue; None for an ordinary queue.
    """

    lease: timedelta = timedelta(seconds=300)
    max_attempts: int = 5
    retry: RetryPolicy = dataclasses.field(default_factory=ExponentialBackoff)
    payload: PayloadType = "json"
    priorities: int = 1
    archive: ArchivePolicy = "failed"
    archive_ttl: timedelta | Mapping[str, timedelta] | None = None
    archive_limit: int | Mapping[str, int] | None = None
    unique: Unique = "live"
    dedup_window: timedelta | None = None
    expires: timedelta | None = None
    dead_letter_queue: str | None = None
    unused_for: timedelta | None = None
    group_limit: int | None = None
    group_order: GroupOrder = "fifo"
    group_rate: str | None = None
    group_fair: bool = False
    block_on_failure: bool = False
    queue_limit: int | None = None
    queue_rate: str | None = None
    max_length: int | None = None
    when_full: WhenFull = "wait"
    max_payload_bytes: int = 1_048_576
    columns: Sequence[Column[Any]] = ()
    kind_timeout: timedelta = timedelta(days=1)
    warn_age: timedelta | None = None
    critical_age: timedelta | None = None
    adoption: Adoption | None = None

    @cached_property
    def lease_us(self) -> int:
        """The lease in microseconds."""
        return self.lease // MICROSECOND

    @property
    def grouped(self) -> bool:
        """Whether messages of the queue may have a group."""
        return self.group_limit is not None

    @property
    def limited(self) -> bool:
        """Whether only so many messages of the whole queue may be in hand."""
        return self.queue_limit is not None

    @property
    def rated(self) -> bool:
        """Whether messages of the whole queue may start only so fast."""
        return self.queue_rate is not None

    @property
    def bounds(self) -> tuple[bool, bool]:
        """Whether the whole queue has a limit, and a rate."""
        return self.limited, self.rated

    @property
    def has_rules(self) -> bool:
        """Whether claims keep rules that earlier releases do not know: of groups, or limits."""
        return self.grouped or any(self.bounds)

    @property
    def blocks_groups(self) -> bool:
        """Whether a message that fails for the last time blocks its group."""
        return self.grouped and self.group_order == "fifo" and self.block_on_failure

    @property
    def dedup_us(self) -> int | None:
        """The dedup window in microseconds."""
        return None if self.dedup_window is None else self.dedup_window // MICROSECOND

    @property
    def unused_us(self) -> int | None:
        """After how long without a consumer the queue is dropped, in microseconds; None: never."""
        return None if self.unused_for is None else self.unused_for // MICROSECOND

    @property
    def expires_us(self) -> int | None:
        """How long a message may wait for its first start, in microseconds; None: for ever."""
        return None if self.expires is None else self.expires // MICROSECOND

    def kept_for(self, outcome: str) -> timedelta | None:
        """How long the archive keeps messages of an outcome; None: forever."""
        ttl = self.archive_ttl
        return ttl.get(outcome) if isinstance(ttl, Mapping) else ttl

    def kept_count(self, outcome: str) -> int | None:
        """How many messages of an outcome the archive keeps; None: any number."""
        limit = self.archive_limit
        return limit.get(outcome) if isinstance(limit, Mapping) else limit


def given_of(settings: QueueSettings) -> dict[str, Any]:
    """The fields that are set, by name."""
    pairs = ((field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings))
    return {name: value for name, value in pairs if value is not UNSET}


def updated(present: EffectiveSettings, requested: QueueSettings) -> EffectiveSettings:
    """The current settings, updated with the fields set in ``requested``.

    Raises:
        ValueError: they do not fit each other.
    """
    given = given_of(requested)
    given.pop("kinds", None)
    plain = {name: _KINDS[name].plain(value) for name, value in given.items()}
    wanted = _with_groups(present, plain, dataclasses.replace(present, **plain))
    if wanted.unique == "waiting" and wanted.dedup_window is not None:
        msg = (
            "unique='waiting' frees a key when a consumer claims its message, and dedup_window "
            "keeps it taken after the end: a queue can have one of them"
        )
        raise ValueError(msg)
    ages = wanted.warn_age, wanted.critical_age
    if ages[0] is not None and ages[1] is not None and ages[0] > ages[1]:
        msg = f"warn_age ({ages[0]}) must not be longer than critical_age ({ages[1]})"
        raise ValueError(msg)
    if wanted.dead_letter_queue is not None and wanted.archive == "none":
        msg = (
            "dead_letter_queue needs an archive, which keeps the dead letters that the other queue "
            "cannot have: give archive='failed', too, or dead_letter_queue=None"
        )
        raise ValueError(msg)
    wanted = _with_length(present, plain, wanted)
    limits = (wanted.group_limit, wanted.queue_limit, wanted.max_length)
    if wanted.when_full != "wait" and limits == (None, None, None):
        msg = (
            f"when_full={wanted.when_full!r} says what a publish does when a limit is reached, "
            "but the queue has none: give it a max_length, a group_limit or a queue_limit, too"
        )
        raise ValueError(msg)
    return wanted


def _with_length(
    present: EffectiveSettings, given: Mapping[str, Any], wanted: EffectiveSettings
) -> EffectiveSettings:
    """With the ``when_full`` that a largest length brings along, or takes away with it."""
    if wanted.max_length is None:
        if present.max_length is not None and "when_full" not in given:
            return dataclasses.replace(wanted, when_full="wait")
        return wanted
    if wanted.when_full == "wait":
        if "when_full" in given:
            msg = (
                "a queue with a max_length has no room for messages that wait: use "
                "when_full='reject' or 'replace', or give max_length=None, too"
            )
            raise ValueError(msg)
        wanted = dataclasses.replace(wanted, when_full="reject")
    if wanted.when_full == "replace" and wanted.grouped:
        msg = (
            "when_full='replace' and max_length do not go together in a queue with groups, because "
            "the replaced message may be of another group: use when_full='reject'"
        )
        raise ValueError(msg)
    return wanted


def _with_groups(
    present: EffectiveSettings, given: Mapping[str, Any], wanted: EffectiveSettings
) -> EffectiveSettings:
    """With the settings of groups that a rate or fair shares bring along."""
    off = {"group_rate": None, "group_fair": False}
    bringing = [name for name, value in off.items() if getattr(wanted, name) != value]
    order: GroupOrder = given.get("group_order", "any")
    if bringing and not wanted.grouped:
        if "group_limit" in given:
            name = bringing[0]
            msg = f"{name} needs groups: give {name}={off[name]}, too, or a group_limit"
            raise ValueError(msg)
        # Nothing else holds them up.
        wanted = dataclasses.replace(wanted, group_limit=MOST_IN_HAND, group_order=order)
    if wanted.group_fair and not present.grouped:
        wanted = dataclasses.replace(wanted, group_order=order)
    if wanted.group_fair and wanted.group_order == "fifo":
        msg = (
            "group_fair=True needs group_order='any': with group_order='fifo' the order of each "
            "group says which message is next, and groups take turns anyway; group_fair goes with "
            "group_limit and group_rate"
        )
        raise ValueError(msg)
    return wanted


def settings_json(
    settings: EffectiveSettings, columns: Mapping[str, Any], policies: RetryPolicies
) -> str:
    """Encode the settings for the registry.

    ``columns`` has the SQL type of each of the user's columns, alone or as ``sql`` beside the
    result of ``described_type``.
    """
    if settings.grouped:
        # An earlier release, which would not keep the order, sees that it has other columns.
        columns = {**columns, GROUP_KEY: "VARCHAR"}
    if any(settings.bounds):
        columns = {**columns, _OF_LIMITS: "BIGINT"}
    adopted = {} if settings.adoption is None else {"adoption": settings.adoption.stored()}
    stored = {
        kind.stored(name): kind.write(getattr(settings, name)) for name, kind in _STORED.items()
    }
    policy = policies.describe(settings.retry)
    return json.dumps({**adopted, **stored, "retry": policy, "columns": dict(columns)})


# No column of a user can have this name.
_OF_LIMITS: Final = "queue limit"
# On some engines the row is committed before the columns are there.
_UNFINISHED: Final = "adopting"


def as_unfinished(text: str) -> str:
    """Mark the settings of an adopted table whose columns are still to be added."""
    return json.dumps({**json.loads(text), _UNFINISHED: True})


@dataclasses.dataclass(frozen=True)
class StoredSettings:
    """A queue's row of the registry. It is checked when it is read, because anybody may change it.

    Attributes:
        queue: its name.
        data: the settings as ``settings_json`` wrote them.
        adoption: the adopted table; None for an ordinary queue.
        columns: the SQL types of the user's columns, by name.
        types: the declared types, if they could be stored.
    """

    queue: str
    data: Mapping[str, Any]
    adoption: Adoption | None
    columns: Mapping[str, str]
    types: Mapping[str, TypeEngine[Any]]

    @staticmethod
    def read(queue: str, text: str) -> StoredSettings:
        """Read a row; QueueSchemaMismatch if ``settings_json`` did not write it."""
        with _readable(queue):
            data = json.loads(text)
            check_choice("payload", data["payload"], PAYLOAD_TYPES)
            adoption, written = data.get("adoption"), data["columns"].items()
            columns = {
                name: kind["sql"] if isinstance(kind, dict) else kind for name, kind in written
            }
            if data.get("group_limit") is not None:
                columns.pop(GROUP_KEY, None)
            columns.pop(_OF_LIMITS, None)
            if not all(isinstance(sql, str) for sql in columns.values()):
                msg = "the type of a column must be text"
                raise TypeError(msg)
            types = {
                name: restored_type({key: kind[key] for key in kind if key != "sql"})
                for name, kind in written
                if isinstance(kind, dict)
            }
            adopted = None if adoption is None else Adoption(**adoption)
            return StoredSettings(queue, data, adopted, columns, types)

    @property
    def grouped(self) -> bool:
        """Whether messages of the queue may have a group."""
        return self.data.get("group_limit") is not None

    @property
    def unfinished(self) -> bool:
        """Whether an adoption has written this row, and not yet added all columns."""
        return bool(self.data.get(_UNFINISHED))

    def finished(self) -> str:
        """The row without the mark of ``as_unfinished``."""
        return json.dumps({name: self.data[name] for name in self.data if name != _UNFINISHED})

    def effective(
        self, policies: RetryPolicies, columns: Sequence[Column[Any]] = ()
    ) -> EffectiveSettings:
        """Check the settings and add the queue's own columns; raises as ``read`` does."""
        data = self.data
        with _readable(self.queue):
            # Settings that a later release added are missing in older rows; they get their
            # defaults.
            stored = {
                name: kind.read(data[kind.stored(name)])
                for name, kind in _STORED.items()
                if name in _FIRST or kind.stored(name) in data
            }
            settings = EffectiveSettings(
                **stored,
                retry=policies.restore(data["retry"]),
                columns=tuple(columns),
                adoption=self.adoption,
            )
            for name in (*_STORED, "retry"):
                _KINDS[name].check(name, getattr(settings, name))
        return settings


@contextlib.contextmanager
def _readable(queue: str) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        msg = (
            f"The settings of queue {queue!r} in queue_over_sql_queues cannot be read: {error}. "
            "Restore the row, or delete it and drop the queue's tables."
        )
        raise QueueSchemaMismatch(msg) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The arguments of a ``QueueService``, which documents them."""

    schema: str | None = None
    table_prefix: str = "queue_"
    consumer_name: str | None = None
    consumer_timeout: Duration = 30.0
    reaper_interval: Duration = 1.0
    notify: bool = True
    auto_migrate: bool = True
    retry_policies: RetryPolicies = dataclasses.field(default_factory=RetryPolicies)
    reply_queue: str | None = None

    def __post_init__(self) -> None:
        if self.schema == "":
            msg = "schema must be the name of a schema, or None for the default of the connection"
            raise ValueError(msg)
        check_flag("notify", self.notify)
        check_flag("auto_migrate", self.auto_migrate)
        for name in ("schema", "consumer_name", "reply_queue"):
            if not isinstance(getattr(self, name), str | None):
                msg = f"{name} must be a str or None"
                raise TypeError(msg)
        to_timedelta(self.consumer_timeout, "consumer_timeout")
        to_timedelta(self.reaper_interval, "reaper_interval")

    @property
    def consumer_timeout_us(self) -> int:
        """The consumer timeout in microseconds."""
        return to_timedelta(self.consumer_timeout, "consumer_timeout") // MICROSECOND

    @property
    def reaper_seconds(self) -> float:
        """The reaper's interval in seconds."""
        return to_timedelta(self.reaper_interval, "reaper_interval").total_seconds()


def described_type(kind: TypeEngine[Any]) -> dict[str, Any] | None:
    """Describe a type as data; None for a type that cannot be rebuilt from data."""
    import sqlalchemy  # noqa: PLC0415 - settings stay cheap to import

    name = type(kind).__name__
    if getattr(sqlalchemy, name, None) is not type(kind) or name not in _DESCRIBED:
        return None
    if kind._variant_mapping:  # noqa: SLF001 - there is no other way to tell
        return None
    arguments = {argument: getattr(kind, argument) for argument in _DESCRIBED[name]}
    return {"type": name, **arguments} if all(map(_is_plain, arguments.values())) else None


def restored_type(description: Mapping[str, Any]) -> TypeEngine[Any]:
    """Rebuild the type that ``described_type`` described; else raise TypeError or ValueError."""
    import sqlalchemy  # noqa: PLC0415 - settings stay cheap to import

    arguments = dict(description)
    name = arguments.pop("type", None)
    known = name in _DESCRIBED and arguments.keys() <= set(_DESCRIBED[name])
    if not known or not all(map(_is_plain, arguments.values())):
        msg = f"{shown(dict(description))} is not a column type"
        raise ValueError(msg)
    kind: TypeEngine[Any] = getattr(sqlalchemy, name)(**arguments)
    return kind


def _is_plain(argument: Any) -> bool:
    """Whether a value can be used in SQL unchanged: a number, a choice, or a collation's name."""
    if isinstance(argument, str):
        return _COLLATION.fullmatch(argument) is not None
    return argument is None or isinstance(argument, int)


def each_outcome(value: Any, read: Callable[[Any], Any]) -> Any:
    """Read a setting that is one value for all outcomes, or a mapping by outcome."""
    if isinstance(value, Mapping):
        return {str.__str__(name): read(each) for name, each in value.items() if each is not None}
    return None if value is None else read(value)


def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What a setting holds.

    Attributes:
        check: raises TypeError or ValueError, which names the setting, for an invalid value.
        plain: converts what was given to what ``EffectiveSettings`` has.
        write: converts this to JSON data for the registry; ``read`` converts it back.
        suffix: of its name in the registry.
    """

    check: Callable[[str, Any], object]
    plain: Callable[[Any], Any] = _same
    write: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same
    suffix: str = ""

    def stored(self, name: str) -> str:
        """The name of the setting in the registry."""
        return name + self.suffix

    def or_none(self) -> _Kind:
        """As this one, or None."""

        def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda value: None if value is None else read(value)

        def check(name: str, value: Any) -> None:
            if value is not None:
                self.check(name, value)

        return _Kind(
            check, optional(self.plain), optional(self.write), optional(self.read), self.suffix
        )

    def by_outcome(self) -> _Kind:
        """One value, a mapping of outcomes to values, or None."""

        def for_each(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda value: each_outcome(value, read)

        def check(name: str, value: Any) -> None:
            for outcome in value if isinstance(value, Mapping) else ():
                check_choice(f"the outcome in {name}", outcome, [each.value for each in Outcome])
            each_outcome(value, lambda one: self.check(name, one))

        return _Kind(
            check, for_each(self.plain), for_each(self.write), for_each(self.read), self.suffix
        )


def _whole(least: int, most: int) -> _Kind:
    return _Kind(lambda name, value: check_whole(name, value, least, most), int)


def _one_of(choices: Sequence[str]) -> _Kind:
    return _Kind(lambda name, value: check_choice(name, value, choices))


def _check_kinds(name: str, value: Any) -> None:
    del name
    from queue_over_sql.payloads.types import Kinds  # noqa: PLC0415 - only where there are kinds

    Kinds.of(value)


def _check_queue(name: str, value: Any) -> None:
    if not isinstance(value, str):
        msg = f"{name} must be the name of a queue, or None, not {type(value).__name__}"
        raise TypeError(msg)
    if not 0 < len(value) <= TITLE_LENGTH or not is_storable(value):
        msg = f"{name} must be the name of a queue, or None, not {shown(value)}"
        raise ValueError(msg)


def _check_columns(name: str, value: Any) -> None:
    from sqlalchemy import Column  # noqa: PLC0415 - settings stay cheap to import

    if not isinstance(value, Sequence) or not all(isinstance(item, Column) for item in value):
        msg = f"{name} must be a list of SQLAlchemy Column objects"
        raise TypeError(msg)


_DURATION: Final = _Kind(
    lambda name, value: to_timedelta(value, name),
    lambda value: to_timedelta(value, "a setting"),
    lambda value: value // MICROSECOND,
    lambda value: timedelta(microseconds=value),
    "_us",
)
_RATE: Final = _Kind(
    lambda name, value: rate_text(value, name), lambda value: rate_text(value, "a setting")
)
_STORED: Final[Mapping[str, _Kind]] = {
    "lease": _DURATION,
    "max_attempts": _whole(1, 2**31 - 1),
    "payload": _one_of(PAYLOAD_TYPES),
    "priorities": _whole(1, MAX_PRIORITIES),
    "archive": _one_of(ARCHIVES),
    "archive_ttl": _DURATION.by_outcome(),
    "archive_limit": _whole(0, 2**62).by_outcome(),
    "unique": _one_of(UNIQUES),
    "dedup_window": _DURATION.or_none(),
    "expires": _DURATION.or_none(),
    "dead_letter_queue": _Kind(_check_queue, str.__str__).or_none(),
    "unused_for": _DURATION.or_none(),
    "group_limit": _whole(1, MOST_IN_HAND).or_none(),
    "group_order": _one_of(GROUP_ORDERS),
    "group_rate": _RATE.or_none(),
    "group_fair": _Kind(check_flag),
    "block_on_failure": _Kind(check_flag),
    "queue_limit": _whole(1, MOST_SLOTS).or_none(),
    "queue_rate": _RATE.or_none(),
    "max_length": _whole(1, LONGEST_QUEUE).or_none(),
    "when_full": _one_of(WHENS_FULL),
    "kind_timeout": _DURATION,
    "warn_age": _DURATION.or_none(),
    "critical_age": _DURATION.or_none(),
    "max_payload_bytes": _whole(1, 2**30),
}
"""The settings whose values are plain data."""
_FIRST: Final = frozenset(
    {"lease", "max_attempts", "payload", "priorities", "archive", "archive_ttl"}
    | {"max_payload_bytes"}
)
"""Those that each row has. A setting that is added later does not belong to them."""
_KINDS: Final[Mapping[str, _Kind]] = {
    **_STORED,
    "retry": _Kind(lambda _, value: check_policy(value)),
    "kinds": _Kind(_check_kinds),
    "columns": _Kind(_check_columns, tuple),
}
