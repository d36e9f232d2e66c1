"""Examples of bodies and answers, for the document."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import UNSET

_CLAIMS: Final = ["1041.3f0e2a.1"]
_CHOSEN: Final = {"ids": ["1041", "1042"]}
_MESSAGE: Final = {"payload": {"order": 17}, "kind": "order", "headers": {"source": "shop"}}

BODIES: Final[Mapping[str, Any]] = {
    "add_token": {"name": "ada", "role": "operator", "expires": 7_776_000},
    "ack": {"claims": _CLAIMS},
    "cancel": {"ids": ["1041"], "reason": "ordered twice"},
    "claim": {"count": 10, "lease": 30, "wait": 20},
    "configure_group": {"group": "customer-7", "limit": 2},
    "count_archive": {"status": "failed"},
    "count_messages": {"status": "ready", "payload": {"customer.id": 7}},
    "create_queue": {"lease": 30, "max_attempts": 5, "archive": "failed"},
    "delete_archive": _CHOSEN,
    "delete_messages": {"filter": {"kind": "order"}, "at_most": 20},
    "extend": {"claims": _CLAIMS, "lease": 60},
    "hold": _CHOSEN,
    "nack": {"claims": _CLAIMS, "error": "the shop did not answer", "delay": 60},
    "pause_group": {"group": "customer-7"},
    "prioritize": {**_CHOSEN, "priority": 0},
    "publish": _MESSAGE,
    "publish_many": [_MESSAGE, {"payload": {"order": 18}, "delay": 60}],
    "publish_stream": '{"payload": {"order": 17}}\n{"payload": {"order": 18}}\n',
    "publish_to_topic": {"payload": {"order": 17}, "routing_key": "orders.new"},
    "purge_queue": {"confirm": "orders"},
    "reject": {"claims": _CLAIMS, "reason": "there is no such customer"},
    "release": {"claims": _CLAIMS},
    "requeue": {"filter": {"status": "failed"}, "at_most": 20},
    "reschedule": {**_CHOSEN, "delay": 3600},
    "resume_group": {"group": "customer-7"},
    "set_max_attempts": {**_CHOSEN, "max_attempts": 8},
    "try_route": {"routing_key": "orders.new", "payload": {"order": 17}},
    "unblock_group": {"group": "customer-7"},
    "unhold": _CHOSEN,
}
"""A body for each operation that takes one, by its id."""

_VALUES: Final[Mapping[str, Any]] = {
    "id": "1041",
    "message_id": "1041",
    "queue": "orders",
    "queues": ["orders"],
    "topics": ["events"],
    "payload": {"order": 17},
    "headers": {"source": "shop"},
    "kind": "order",
    "claim": _CLAIMS[0],
    "attempt": 1,
    "max_attempts": 5,
    "published_at": "2026-01-05T09:30:00Z",
    "retry": {"policy": "exponential"},
    "lease": 30.0,
    "archive": "failed",
    "reason": "not-due",
    "text": "It is due at 09:30 UTC.",
    "pattern": "orders.#",
    "token": "qos_…",
    "host": "worker-1",
}
_AN_INSTANT: Final = "2026-01-05T09:30:00Z"


def of_answer(kind: Any, name: str = "") -> Any:
    """An example of an answer of this type.

    Args:
        kind: the type.
        name: the name of its field.
    """
    if get_origin(kind) is Annotated:
        return of_answer(get_args(kind)[0], name)
    if _is_struct(kind):
        fields = msgspec.structs.fields(kind)
        shown = (each for each in fields if each.default is not UNSET)
        return {each.encode_name: of_answer(each.type, each.name) for each in shown}
    if _fits(name, kind):
        return _VALUES[name]
    inner = get_args(kind)
    if get_origin(kind) is list:
        return [of_answer(inner[0])]
    if get_origin(kind) is Literal:
        return inner[0]
    return None if type(None) in inner else _plain(kind)


def _fits(name: str, kind: Any) -> bool:
    try:
        return name in _VALUES and msgspec.convert(_VALUES[name], kind) is not UNSET
    except msgspec.ValidationError:
        return False


def _plain(kind: Any) -> Any:
    if kind is datetime:
        return _AN_INSTANT
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    empty: Any = {str: "orders", int: 3, float: 30.0, bool: False}.get(kind, UNSET)
    return (get_origin(kind) or dict)() if empty is UNSET else empty


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
