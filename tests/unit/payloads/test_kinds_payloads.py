"""Payloads of kinds: they come back equal or are refused, and are never changed."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.payloads.types import Kinds
from tests.refusals import refused
from tests.unit.payloads.kind_types import (
    NOW,
    ONE,
    Aliased,
    Basket,
    Checked,
    Colour,
    Counted,
    Forgetful,
    Line,
    Measured,
    Odd,
    OneWay,
    Opaque,
    Open,
    Order,
    Pair,
    Parcel,
    Point,
    Refund,
    Sealed,
    Sku,
    WithOpaque,
    came_back,
    refusal,
)

# -- what comes back


INSTANCES: list[Any] = [
    Order(id=1),
    Order(id=1, lines=[Line(sku="a", price=decimal.Decimal("1.10"))], colour=Colour.RED),
    Refund(id=2**80),
    Point(1.5, tags=frozenset("ab")),
    Point(1),
    Checked(3),
    Aliased.model_validate({"companyId": 3345, "theDay": "2026-02-03"}),
    Counted(n=2),
    Open(n=1, more={"a": [1, None]}),  # type: ignore[call-arg]
    Forgetful(name="a", password=""),
    Colour.RED,
    Pair(1, "x"),
    ONE,
    NOW,
    b"bytes",
]


def test_an_instance_implies_its_kind_and_comes_back_equal() -> None:
    """Models, dataclasses, and whatever else Pydantic can write as JSON."""
    for payload in INSTANCES:
        kind = type(payload).__name__
        kinds = Kinds.of([type(payload), Sku])
        name, value = kinds.encode(None, payload)
        assert kind == name
        assert value == json.loads(json.dumps(value)), payload
        back = kinds.decode(name, value)
        assert payload == back
        assert type(payload) is type(back)
        assert (name, value) == kinds.encode(kind, payload), payload


NAMED: list[tuple[Any, Any]] = [
    (Sku, {"code": "a"}),
    (Sku, {"code": "a", "at": dt.date(2026, 1, 2)}),
    (Parcel, {"weight": 1, "note": "x"}),
    (
        Basket,
        {
            "first": {"code": "a"},
            "rest": [{"code": "b", "at": dt.date(2026, 1, 2)}],
            "maybe": None,
            "other": {"code": "d"},
            "named": {"c": {"code": "c"}},
            "within": [{"first": {"code": "e"}}],
        },
    ),
    (dict, {"a": [1, 2.5, None, True, "x"]}),
    (list, [1, {"a": 2}]),
    (str, "text"),
    (int, 5),
    (float, 1.5),
    (bool, True),
    (None, None),
    (Any, {"a": 1}),
    (object, "x"),
    (list[int], [1, 2]),
    (dict[str, int], {"a": 1}),
    (dict[int, str], {1: "a"}),
    (set[int], {3, 1, 2}),
    (tuple[int, str], (1, "a")),
    (Order | Point, Point(1)),
    (list[Order], [Order(id=1), Order(id=2)]),
    (dict[uuid.UUID, dt.timedelta], {ONE: dt.timedelta(seconds=1, microseconds=5)}),
    (Annotated[int, Field(gt=3)], 4),
    (Literal["a", "b"], "b"),
]


def test_a_payload_of_a_named_kind_comes_back_equal() -> None:
    """Typed dictionaries, plain JSON and generic types, whose instances do not say their kind."""
    for kind, payload in NAMED:
        kinds = Kinds.of({"it": kind})
        back = came_back(kinds, payload, "it")
        assert payload == back, kind
        assert type(payload) is type(back), kind
        unsaid = refusal(kinds, payload)
        assert "does not say its kind; give kind= one of: it" in unsaid, kind


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@settings(deadline=None)  # a busy machine is no fault
@given(JSON)
def test_any_json_comes_back_equal_or_is_refused(payload: Any) -> None:
    """NaN, lone surrogates and keys that are not strings are refused, nothing is bent."""
    kinds = Kinds.of({"any": Any})
    try:
        back = came_back(kinds, payload, "any")
    except PayloadInvalid:
        return
    assert repr(payload) == repr(back)


@settings(deadline=None)
@given(
    st.builds(
        Order,
        id=st.integers(),
        at=st.datetimes(timezones=st.just(dt.UTC)),
        lines=st.lists(
            st.builds(Line, sku=st.text(), price=st.decimals(allow_nan=False, allow_infinity=False))
        ),
    )
)
def test_any_model_comes_back_equal_or_is_refused(order: Order) -> None:
    """Whatever its fields hold."""
    kinds = Kinds.of([Order])
    try:
        back = came_back(kinds, order)
    except PayloadInvalid:
        return
    assert order == back


def test_plain_json_is_kept_as_it_is() -> None:
    """Validated, not rewritten: no defaults are added, and what the type ignores stays stored."""
    given = {"id": 1, "at": "2026-01-01T00:00:00+00:00", "more": [1.0]}
    kinds = Kinds.of([Order])
    assert ("Order", given) == kinds.encode("Order", given)
    back = kinds.decode("Order", given)
    assert Order(id=1, at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)) == back


def test_what_is_stored_does_not_follow_the_payload() -> None:
    """The publisher may change its own object afterwards."""
    given = {"id": 1, "lines": []}
    value = Kinds.of([Order]).encode("Order", given)[1]
    given["lines"] = [{"sku": "late"}]
    assert {"id": 1, "lines": []} == value


def test_aliases_are_written_as_they_are_read() -> None:
    """Other programs see the alias, and so does a consumer."""
    kinds = Kinds.of([Aliased])
    stored = {"companyId": 1, "theDay": "2026-01-01"}
    assert ("Aliased", stored) == kinds.encode(None, Aliased.model_validate({"companyId": 1}))


def test_computed_and_private_values_are_no_part_of_the_payload() -> None:
    """They are made anew, also by a type that forbids what it does not know."""
    given = Counted(n=3)
    given._seen = 0.0
    assert 3 == given.slow
    assert ("Counted", {"n": 3}) == Kinds.of([Counted]).encode(None, given)


def test_objects_without_an_equality_are_compared_by_what_they_hold() -> None:
    """Such a dataclass and such an object are accepted, and really compared."""
    kinds = Kinds.of([Odd, WithOpaque])
    back = came_back(kinds, Odd(1, [Point(2)]))
    assert 1 == back.n
    assert [Point(2)] == back.inner
    assert 5 == came_back(kinds, WithOpaque.model_construct(inner=Opaque(5))).inner.n


# -- what does not fit


UNFIT: list[tuple[Any, Any]] = [
    (Order, {"id": "5"}),
    (Order, {"id": True}),
    (Order, {"id": 5.5}),
    (Order, {"id": 1, "at": 1700000000}),
    (Order, {"id": 1, "colour": "blue"}),
    (Order, []),
    (Order, None),
    (Order, Refund(id=1)),
    (Order, Opaque(1)),
    (Order | Refund, Refund(id=1)),
    (Checked, {"n": 0}),
    (Counted, {"n": 1, "more": 2}),
    (Sku, {}),
    (Sku, {"code": "a", "at": "today"}),
    (Sealed, {"n": 1, "more": 2}),
    (Basket, {"rest": []}),
    (Basket, {"first": {"code": "a"}, "named": {"a": {"code": "a"}, "b": {"code": "b"}}}),
    (Basket, {"first": {"code": "a"}, "within": [{}]}),
    (int, "5"),
    (int, True),
    (int, 1.0),
    (str, 5),
    (bool, 1),
    (float, "1"),
    (None, 0),
    (list[int], [1, "2"]),
    (list[int], (1, 2)),
    (dict, {1: "a"}),
    (Any, NOW),
    (Any, {1, 2}),
    (Any, math.nan),
    (float, math.nan),
    (float, math.inf),
    (dict, {"a": [math.inf]}),
    (str, "\ud800"),
    (bytes, b"\xff"),
    (pydantic.SecretStr, pydantic.SecretStr("s")),
    (Callable[[], int], len),
]


def test_what_does_not_fit_is_refused() -> None:
    """Nothing is coerced, guessed or bent; the text names the kind, in one line."""
    for kind, payload in UNFIT:
        with refused((kind, payload), PayloadInvalid, match=r"^.*kind 'it'.*\Z"):
            Kinds.of({"it": kind}).encode("it", payload)


def test_a_valid_object_that_json_cannot_keep_is_refused() -> None:
    """Not a number, infinity, and a name that is written but not read."""
    for payload in (Measured(value=math.nan), Measured(value=-math.inf), OneWay(company_id=1)):
        assert type(payload).__name__ in refusal(Kinds.of([type(payload)]), payload)


def test_an_object_that_was_made_invalid_is_refused() -> None:
    """An instance is validated when it is published, whatever it was when it was made."""
    order = Order(id=1)
    order.id = "x"  # type: ignore[assignment]
    assert "id: Input should be a valid integer" in refusal(Kinds.of([Order]), order)
    point = Point(1)
    point.x = "1"  # type: ignore[assignment]
    assert "x: Input should be a valid number" in refusal(Kinds.of([Point]), point)
    checked = Checked(1)
    checked.n = -1
    assert "n: Input should be greater than 0" in refusal(Kinds.of([Checked]), checked)


def test_the_error_names_fields_and_keeps_its_cause() -> None:
    """The first few fields in one line; all of it is the cause."""
    kinds = Kinds.of([Order])
    given = {"at": 1, "lines": [{"sku": n} for n in range(8)]}
    with pytest.raises(PayloadInvalid) as caught:
        kinds.encode("Order", given)
    text = str(caught.value)
    assert text.startswith("The payload does not fit kind 'Order': id: Field required; at: ")
    assert "lines.0.sku: Input should be a valid string; " in text
    assert text.endswith("and 5 more.")
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)


def test_too_deep_a_payload_is_refused() -> None:
    """It ends in an error of ours, not in a RecursionError."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "kind 'deep'" in refusal(Kinds.of({"deep": list}), deep, "deep")
