"""Settings of a queue and of a service: what may be asked for, checked at the edge."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from queue_over_sql import retry as retry_policies
from queue_over_sql.durations import MICROSECOND, Duration, to_timedelta
from queue_over_sql.retry import ExponentialBackoff, RetryPolicy

if TYPE_CHECKING:
    from sqlalchemy import Column

_log = logging.getLogger(__name__)

PAYLOAD_TYPES: Final = ("json", "text", "bytes")
ARCHIVES: Final = ("none", "failed", "all")
MAX_PRIORITIES: Final = 100

PayloadType = Literal["json", "text", "bytes"]
ArchivePolicy = Literal["none", "failed", "all"]


class Unset(enum.Enum):
    """The type of ``UNSET``."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Not given: a new queue takes the default, an existing one keeps what it has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """What a queue is asked to be; a field left ``UNSET`` takes the default or stays as it is.

    Args:
        lease: how long a claim holds without being extended (default 300 s).
        max_attempts: deliveries before a message is a dead letter (default 5).
        retry: policy after a failure (default ``ExponentialBackoff()``).
        payload: ``"json"`` (default), ``"text"`` or ``"bytes"``; fixed when the queue is created.
        priorities: number of levels, 1 (default) to 100; 0 is the most urgent.
        archive: which finished messages are kept: ``"none"``, ``"failed"`` (default), ``"all"``.
        archive_ttl: how long the archive keeps them; None (default) for ever.
        max_payload_bytes: largest encoded payload (default 1 MiB).
        columns: SQLAlchemy columns of the queue's own; fixed when the queue is created.

    Raises:
        TypeError, ValueError: a field has no sensible value; the text names it.
    """

    lease: Duration | Unset = UNSET
    max_attempts: int | Unset = UNSET
    retry: RetryPolicy | Unset = UNSET
    payload: PayloadType | Unset = UNSET
    priorities: int | Unset = UNSET
    archive: ArchivePolicy | Unset = UNSET
    archive_ttl: Duration | Unset | None = UNSET
    max_payload_bytes: int | Unset = UNSET
    columns: Sequence[Column[Any]] | Unset = UNSET

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            _CHECKS[name](name, value)

    def given(self) -> dict[str, Any]:
        """The fields that were set, by name."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not UNSET}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EffectiveSettings:
    """The settings that a queue has; the fields are those of ``QueueSettings``, all present."""

    lease: timedelta = timedelta(seconds=300)
    max_attempts: int = 5
    retry: RetryPolicy = dataclasses.field(default_factory=ExponentialBackoff)
    payload: PayloadType = "json"
    priorities: int = 1
    archive: ArchivePolicy = "failed"
    archive_ttl: timedelta | None = None
    max_payload_bytes: int = 1_048_576
    columns: Sequence[Column[Any]] = ()

    @property
    def lease_us(self) -> int:
        """The lease in microseconds."""
        return self.lease // MICROSECOND

    def updated(self, asked: QueueSettings) -> EffectiveSettings:
        """These settings with what was given in ``asked``."""
        given = asked.given()
        for name in ("lease", "archive_ttl"):
            if given.get(name) is not None:
                given[name] = to_timedelta(given[name], name)
        if "columns" in given:
            given["columns"] = tuple(given["columns"])
        return dataclasses.replace(self, **given)

    def to_json(self, column_types: Mapping[str, str]) -> str:
        """Write the settings for the registry.

        Args:
            column_types: names of the queue's own columns and their types as the engine has them.
        """
        ttl = self.archive_ttl
        return json.dumps(
            {
                "lease_us": self.lease_us,
                "max_attempts": self.max_attempts,
                "retry": retry_policies.describe_policy(self.retry),
                "payload": self.payload,
                "priorities": self.priorities,
                "archive": self.archive,
                "archive_ttl_us": None if ttl is None else ttl // MICROSECOND,
                "max_payload_bytes": self.max_payload_bytes,
                "columns": dict(column_types),
            }
        )

    @staticmethod
    def from_json(text: str, columns: Sequence[Column[Any]] = ()) -> EffectiveSettings:
        """Read what ``to_json`` wrote; ``columns`` are the table's own."""
        data = json.loads(text)
        ttl = data["archive_ttl_us"]
        return EffectiveSettings(
            lease=timedelta(microseconds=data["lease_us"]),
            max_attempts=data["max_attempts"],
            retry=_known_policy(data["retry"]),
            payload=data["payload"],
            priorities=data["priorities"],
            archive=data["archive"],
            archive_ttl=None if ttl is None else timedelta(microseconds=ttl),
            max_payload_bytes=data["max_payload_bytes"],
            columns=tuple(columns),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """How one ``QueueService`` behaves.

    Args:
        schema: database schema that holds all tables; None for the connection's default.
        table_prefix: what the table of each queue begins with.
        consumer_name: a name for people, shown by ``service.consumers()``; the host's by default.
        consumer_timeout: how long a consumer without a heartbeat counts as alive.
        reaper_interval: how often the embedded reaper looks for messages to give back.
    """

    schema: str | None = None
    table_prefix: str = "queue_"
    consumer_name: str | None = None
    consumer_timeout: Duration = 30.0
    reaper_interval: Duration = 1.0

    def __post_init__(self) -> None:
        for name in ("schema", "consumer_name"):
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


def stored_columns(text: str) -> dict[str, str]:
    """The names and types of a queue's own columns, from what ``to_json`` wrote."""
    columns: dict[str, str] = json.loads(text)["columns"]
    return columns


def _known_policy(description: Mapping[str, Any]) -> RetryPolicy:
    """The stored policy, or the default one where this server lacks its class."""
    try:
        return retry_policies.build_policy(description)
    except Exception as error:  # noqa: BLE001 - any failure of a user's module must not stop consuming
        _log.warning(
            "The retry policy %s cannot be built on this server (%s); "
            "ExponentialBackoff() is used until it can.",
            description.get("policy"),
            error,
        )
        return ExponentialBackoff()


def _check_duration(name: str, value: Any) -> None:
    to_timedelta(value, name)


def _check_optional_duration(name: str, value: Any) -> None:
    if value is not None:
        to_timedelta(value, name)


def check_whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Read a whole number between ``least`` and ``most``.

    Raises:
        TypeError, ValueError: it is none; the text names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be a whole number, not {type(value).__name__}"
        raise TypeError(msg)
    if value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"between {least} and {most:,}"
        msg = f"{name} must be {allowed}, not {value}"
        raise ValueError(msg)
    return int(value)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of ``choices``.

    Raises:
        ValueError: the text names the argument and lists the choices.
    """
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        msg = f"{name} must be one of {listed}, not {value!r}"
        raise ValueError(msg)


def _check_columns(name: str, value: Any) -> None:
    from sqlalchemy import Column  # noqa: PLC0415 - settings stay cheap to import

    if not isinstance(value, Sequence) or not all(isinstance(item, Column) for item in value):
        msg = f"{name} must be a list of SQLAlchemy Column objects"
        raise TypeError(msg)


def _check_retry(name: str, value: Any) -> None:
    del name
    retry_policies.describe_policy(value)


_CHECKS = {
    "lease": _check_duration,
    "max_attempts": lambda name, value: check_whole(name, value, 1, 2**31 - 1),
    "retry": _check_retry,
    "payload": lambda name, value: check_choice(name, value, PAYLOAD_TYPES),
    "priorities": lambda name, value: check_whole(name, value, 1, MAX_PRIORITIES),
    "archive": lambda name, value: check_choice(name, value, ARCHIVES),
    "archive_ttl": _check_optional_duration,
    "max_payload_bytes": lambda name, value: check_whole(name, value, 1, 2**30),
    "columns": _check_columns,
}
