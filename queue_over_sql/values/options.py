"""Names, types and defaults of options that several interfaces offer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar

from queue_over_sql.values.durations import Duration

F = TypeVar("F", bound=Callable[..., Any])


class OptionsOfAll(TypedDict, total=False):
    """The options of a message that each way to publish takes; ``Publication`` describes them."""

    kind: str | None
    group: str | None
    headers: Mapping[str, Any] | None
    priority: int
    max_attempts: int | None
    lease: Duration | None
    expires: Duration | None


class TopicOptions(OptionsOfAll, total=False):
    """The options of a message to a topic, which knows no columns."""

    key: str | None
    delay: Duration | None
    at: datetime | None


class PublishOptions(TopicOptions, total=False):
    """All options of a message."""

    columns: Mapping[str, Any] | None


class RequestOptions(OptionsOfAll, total=False):
    """The options of a request, which nobody could answer before it is due."""

    key: str | None
    columns: Mapping[str, Any] | None


class ScheduleOptions(OptionsOfAll, total=False):
    """The options of a schedule, which gives each message its key, and says when."""

    delay: Duration | None
    columns: Mapping[str, Any] | None


PUBLISH_OPTIONS: Final = tuple(PublishOptions.__annotations__)
"""The names of all options of a message."""

PUBLISH_DEFAULTS: Final[Mapping[str, Any]] = {**dict.fromkeys(PUBLISH_OPTIONS), "priority": 0}
"""What an option is if it is not given."""

DURATIONS: Final = frozenset({"delay", "lease", "expires"})
"""The options of a message that are durations."""

GROUP_KEY: Final = "group_key"
"""The column of a message's group; only queues with groups have it, as one of their own."""

DEFAULT_PREFIX: Final = "queue_over_sql_"
"""The beginning of the names of database roles."""


def names_of(options: type) -> tuple[str, ...]:
    """The names of options that a ``TypedDict`` declares."""
    return tuple(options.__annotations__)


def spelled_out(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Give a function that ends with ``**options`` a signature that names each of them.

    ``help()`` and the generated documentation show it. Type checkers read ``Unpack``.

    Args:
        options: the ``TypedDict`` of the options.
        defaults: what each of them is if it is not given.
    """

    def decorate(function: F) -> F:
        found = inspect.signature(function)
        *own, _ = found.parameters.values()
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=getattr(kind, "__forward_arg__", kind),
            )
            for name, kind in options.__annotations__.items()
        ]
        made: Any = function
        made.__signature__ = found.replace(parameters=[*own, *more])
        return function

    return decorate


def check_known(verb: str, given: Iterable[str], options: type) -> None:
    """Refuse an unknown option, as Python does for functions that name theirs.

    Raises:
        TypeError: the message names the verb and the option.
    """
    for name in given:
        if name not in options.__annotations__:
            msg = f"{verb}() got an unexpected keyword argument {name!r}"
            raise TypeError(msg)
