"""Payload types for the tests of kinds, and services that know them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import typing
import uuid
from typing import TYPE_CHECKING, Any

import typing_extensions
from pydantic import BaseModel
from pydantic import dataclasses as checked

if TYPE_CHECKING:
    from queue_over_sql import Queue
    from queue_over_sql.testing.plugin import MakeService

LONG_AGO = dt.timedelta(hours=1)
"""How long a back-dated message has been due."""


class Order(BaseModel):
    id: int


class Refund(BaseModel):
    id: int
    reason: str = ""


class Rush(Order):
    """An order with one field more."""

    minutes: int


@dataclasses.dataclass
class Parcel:
    id: uuid.UUID
    weight: decimal.Decimal
    sent_at: dt.datetime


@checked.dataclass
class Address:
    city: str
    zip: str = "10000"


class Ping(typing.TypedDict):
    host: str
    at: typing.NotRequired[dt.date]


class Pong(typing_extensions.TypedDict):
    host: str


class NewerOrder(typing_extensions.TypedDict):
    total: float


ORDERS: list[type] = [Order]
BOTH: list[type] = [Order, Refund]

# What another version of the code means by the same names.
NEWER_ORDER: dict[str, Any] = {"Order": NewerOrder}
EITHER_ORDER: dict[str, Any] = {"Order": dict[str, Any]}


def long_ago() -> dt.datetime:
    """An instant at which a message was due an hour ago."""
    return dt.datetime.now(dt.UTC) - LONG_AGO


def knowing(make_service: MakeService, kinds: Any, **settings: Any) -> Queue:
    """The queue ``jobs`` as a service of its own sees it, which knows these kinds."""
    return make_service().create_queue("jobs", kinds=kinds, **settings)
