"""Payload types for the tests of kinds: plain ones, and difficult ones."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import math
import typing
import uuid
from typing import Annotated, Any, NamedTuple, NotRequired, Optional

import pydantic
import pydantic.dataclasses
import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field, field_validator
from pydantic_core import core_schema

from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.payloads.types import Kinds

NOW = dt.datetime(2026, 3, 1, 12, 30, 0, 250, tzinfo=dt.UTC)
ONE = uuid.UUID(int=1)


class Colour(enum.Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    price: decimal.Decimal = decimal.Decimal("0.00")


class Gift(Line):
    wish: str = ""


class Order(BaseModel):
    id: int
    at: dt.datetime = NOW
    lines: list[Line] = []
    colour: Colour | None = None


class Refund(BaseModel):
    id: int


class Rush(Order):
    """An order with one field more."""

    minutes: int


class Courteous(Order):
    """An order with another behaviour, and no field more."""

    def greet(self) -> str:
        return f"Dear customer of {self.id}"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass
class Point3(Point):
    z: float = 0.0


@dataclasses.dataclass(eq=False)
class Odd:
    """A dataclass that is equal to nothing but itself."""

    n: int
    inner: list[Point] = dataclasses.field(default_factory=list)


@pydantic.dataclasses.dataclass
class Checked:
    n: Annotated[int, Field(gt=0)]
    twice: int = dataclasses.field(init=False, default=2)


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="allow"))
class Roomy:
    n: int


class Sku(typing.TypedDict):
    code: str
    at: NotRequired[dt.date]


class Basket(typing.TypedDict, total=False):
    first: typing.Required[Sku]
    rest: list[Sku]
    maybe: Optional[Sku]  # noqa: UP045 - one spelling of several
    other: Sku | None
    named: Annotated[dict[str, Sku], Field(max_length=1)]
    within: list[Basket]


class Parcel(typing_extensions.TypedDict):
    weight: int
    note: NotRequired[str]


class Sealed(typing.TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    n: int


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Aliased(BaseModel):
    company_id: int = Field(alias="companyId")
    day: dt.date = Field(
        dt.date(2026, 1, 1), validation_alias="theDay", serialization_alias="theDay"
    )


class OneWay(BaseModel):
    company_id: int = Field(serialization_alias="companyId")


class Forgetful(BaseModel):
    name: str
    password: str = Field("", exclude=True)


class Counted(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int
    _seen: float = PrivateAttr(default_factory=lambda: math.pi)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.n

    @functools.cached_property  # noqa: TID251 - a class of a user
    def slow(self) -> int:
        return self.n


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Growing(BaseModel):
    """Its validator changes what is valid already."""

    n: int

    @field_validator("n")
    @classmethod
    def grow(cls, value: int) -> int:
        return value + 1


class Fussy(BaseModel):
    """Its validator fails in a way of its own."""

    n: int

    @field_validator("n")
    @classmethod
    def look(cls, value: int) -> int:
        return {1: 1}[value]


class Measured(BaseModel):
    value: float | None


class Same(BaseModel):
    """It takes every other of its kind for equal."""

    id: int
    hidden: str = Field("", exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same)

    __hash__ = None  # type: ignore[assignment]


class Opaque:
    """An object of the user's own, without an equality."""

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        del source
        written = core_schema.plain_serializer_function_ser_schema(lambda value: value.n)
        return core_schema.no_info_after_validator_function(
            cls, handler(int), serialization=written
        )


class WithOpaque(BaseModel):
    inner: Opaque


def came_back(kinds: Kinds, payload: Any, kind: str | None = None) -> Any:
    """What a consumer gets, by way of text as in a table."""
    name, value = kinds.encode(kind, payload)
    return kinds.decode(name, json.loads(json.dumps(value, allow_nan=False)))


def refusal(kinds: Kinds, payload: Any, kind: str | None = None) -> str:
    """The text with which a payload is refused at publish."""
    with pytest.raises(PayloadInvalid) as caught:
        kinds.encode(kind, payload)
    assert "\n" not in str(caught.value)
    return str(caught.value)
