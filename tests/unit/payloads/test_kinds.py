"""Kinds: accepted types, the kind of a payload, and what a consumer reads."""

from __future__ import annotations

import subprocess
import sys
import threading
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pydantic
import pydantic.dataclasses
import pytest
from pydantic import BaseModel, Field

from queue_over_sql.errors import PayloadInvalid
from queue_over_sql.payloads.types import Kinds, UnfitPayload
from queue_over_sql.values.limits import KIND_LENGTH
from tests.refusals import refused
from tests.unit.payloads.kind_types import (
    NOW,
    Counted,
    Courteous,
    Forgetful,
    Fussy,
    Gift,
    Growing,
    Line,
    Open,
    Order,
    Point,
    Point3,
    Refund,
    Roomy,
    Rush,
    Same,
    Sealed,
    Sku,
    came_back,
    refusal,
)

# -- what is given as kinds


def test_types_are_named_for_themselves_or_by_a_mapping() -> None:
    """Names are sorted; a ``Kinds`` is taken as it is."""
    kinds = Kinds.of([Refund, Order, Sku, Point])
    assert ("Order", "Point", "Refund", "Sku") == kinds.names
    assert ("order.created", "ping") == Kinds.of({"ping": dict, "order.created": Order}).names
    assert Kinds.of(kinds) is kinds
    assert "<Kinds Order, Point, Refund, Sku>" == repr(kinds)


def test_a_kind_is_known_or_not() -> None:
    """A message without a kind is of no known kind."""
    kinds = Kinds.of([Order])
    assert kinds.knows("Order")
    assert not kinds.knows("Refund")
    assert not kinds.knows(None)


NO_TYPES: list[tuple[Any, str]] = [
    (Order, "list of types or a mapping of names to types, not Order"),
    ("Order", "list of types"),
    (None, "list of types"),
    (["Order"], "'Order' cannot be a kind, because it is not a type"),
    ([5], "5 cannot be a kind"),
    ([Refund(id=1)], "not a type"),
    ([Point(1)], "not a type"),
    ([len], "not a type"),
    ([lambda: 1], "not a type"),
    ([threading.Thread], "Thread cannot be a kind"),
    ({"x": "Order"}, "'Order' cannot be a kind, because it is not a type"),
    ([Annotated[int, Field(gt=0)]], "no name of its own; give a mapping"),
    ([int | str], "no name of its own"),
    ([Union[int, str]], "no name of its own"),  # noqa: UP007 - one spelling of several
    ([list[int]], "no name of its own"),
    ([None], "no name of its own"),
    ([Any], "no name of its own"),
    ([Literal["a"]], "no name of its own"),
    ({1: Order}, "names of kinds must be str, not int"),
]
ODD_NAMES: list[tuple[Any, str]] = [
    ([], "kinds is empty"),
    ({}, "kinds is empty"),
    ([Order, Order], "two of the kinds are named 'Order'"),
    ({"": Order}, "1 to 100 characters"),
    ({"x" * 101: Order}, "1 to 100 characters"),
    ({"a\0b": Order}, "without NUL"),
    ({"\ud800": Order}, "characters of text"),
]


def test_what_is_no_type_is_refused() -> None:
    """The text names what is wrong, and what to do."""
    for kinds, said in NO_TYPES:
        with refused(kinds, TypeError, match=said):
            Kinds.of(kinds)


def test_odd_names_are_refused() -> None:
    """A name must fit the table's column, and mean one type."""
    for kinds, said in ODD_NAMES:
        with refused(kinds, ValueError, match=said):
            Kinds.of(kinds)
    assert ("x" * KIND_LENGTH,) == Kinds.of({"x" * KIND_LENGTH: Order}).names


def test_a_type_that_names_what_is_not_there_is_refused() -> None:
    """At once, not at the first message."""

    class Unfinished(BaseModel):
        later: Later  # type: ignore[name-defined]  # noqa: F821

    class Unwritten(typing.TypedDict):
        later: Later  # type: ignore[name-defined]  # noqa: F821

    for broken in (Unfinished, Unwritten):
        with pytest.raises(TypeError, match=f"{broken.__name__} cannot be a kind"):
            Kinds.of([broken])


# -- which kind it is


def test_the_nearest_registered_base_is_the_kind() -> None:
    """An exact type comes first; a derived class without more fields is its base's kind."""
    both = Kinds.of([Order, Rush])
    assert "Rush" == both.encode(None, Rush(id=1, minutes=5))[0]
    assert "Order" == both.encode(None, Order(id=1))[0]
    assert Order(id=1) == came_back(both, Courteous(id=1))


CHANGED: list[tuple[Any, str]] = [
    (Rush(id=1, minutes=5), "minutes"),
    (Order(id=1, lines=[Line(sku="a"), Gift(sku="b", wish="joy")]), "lines.1.wish"),
    (Point3(1, z=3), "z"),
    (Roomy(n=1, more=5), "more"),  # type: ignore[call-arg]
    (Forgetful(name="a", password="p"), "password"),
    (Same(id=1, hidden="h"), "hidden"),
    (Growing.model_construct(n=1), "n"),
    (Order.model_construct(id=1, at=NOW, lines=(Line(sku="a"),), colour=None), "lines"),
]


def test_what_would_be_lost_or_changed_is_refused() -> None:
    """Fields of a derived class, excluded ones, and what a validator changes again."""
    kinds = Kinds.of([Order, Point, Roomy, Forgetful, Same, Growing])
    for payload, field in CHANGED:
        with refused(payload, PayloadInvalid, match=rf"would not come back equal: {field}\."):
            kinds.encode(None, payload)


def test_a_kind_that_contradicts_the_instance_is_refused() -> None:
    """The type says what it is; another name for it is a mistake."""
    kinds = Kinds.of({"order": Order, "rush": Rush, "plain": dict, "any": Any})
    for other in ("order", "plain", "any"):
        text = f"is of kind rush by its type Rush, not of kind {other!r}"
        assert text in refusal(kinds, Rush(id=1, minutes=1), other)


def test_a_type_of_two_kinds_needs_the_kind() -> None:
    """Both names are accepted for it, and told when neither is given."""
    kinds = Kinds.of({"created": Order, "changed": Order, "gone": Refund})
    assert "changed" == kinds.encode("changed", Order(id=1))[0]
    assert "give kind= one of: changed, created." in refusal(kinds, Order(id=1))


def test_unknown_and_missing_kinds_are_refused() -> None:
    """The text names what is known."""
    kinds = Kinds.of([Order, Refund])
    unknown = "'Ordr' is unknown to this process, which knows: Order, Refund"
    assert unknown in refusal(kinds, Order(id=1), "Ordr")
    assert unknown in refusal(kinds, {"id": 1}, "Ordr")
    assert "give kind= one of: Order, Refund" in refusal(kinds, {"id": 1})
    assert "of type Point does not say its kind" in refusal(kinds, Point(1))
    assert "unknown" in refusal(kinds, {"id": 1}, ["Order"])  # type: ignore[arg-type]


# -- decoding


def test_what_does_not_fit_here_is_deferred() -> None:
    """One line that names the kind and the fields, with the cause."""
    kinds = Kinds.of([Order])
    with pytest.raises(
        UnfitPayload, match=r"^the payload does not fit kind 'Order': id: "
    ) as caught:
        kinds.decode("Order", {"id": "5"})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_is_deferred() -> None:
    """The text says what is known."""
    with pytest.raises(UnfitPayload, match="'Refund' is unknown to this process"):
        Kinds.of([Order]).decode("Refund", {"id": 1})


def test_a_validator_that_fails_in_its_own_way_defers_it() -> None:
    """A KeyError of the user's code is a reason, not the end of a consumer."""
    kinds = Kinds.of([Fussy])
    assert Fussy(n=1) == kinds.decode("Fussy", {"n": 1})
    with pytest.raises(UnfitPayload, match="does not fit kind 'Fussy': KeyError: 2"):
        kinds.decode("Fussy", {"n": 2})
    assert "KeyError: 2" in refusal(kinds, {"n": 2}, "Fussy")


def test_unknown_fields_are_tolerated_as_the_type_says() -> None:
    """Ignored, forbidden or kept: each type has its own word on it."""
    kinds = Kinds.of([Order, Counted, Open, Sku, Sealed])
    assert Order(id=1) == kinds.decode("Order", {"id": 1, "more": 2})
    assert {"code": "a"} == kinds.decode("Sku", {"code": "a", "more": 2})
    assert {"more": 2} == kinds.decode("Open", {"n": 1, "more": 2}).model_extra
    for strict in ("Counted", "Sealed"):
        with pytest.raises(UnfitPayload, match="more: Extra inputs are not permitted"):
            kinds.decode(strict, {"n": 1, "more": 2})


def test_a_new_optional_field_is_read_from_an_old_payload() -> None:
    """So servers of two versions work side by side."""
    old = pydantic.create_model("Order", id=(int, ...))
    new = pydantic.create_model("Order", id=(int, ...), note=(str, "none"))
    name, value = Kinds.of([old]).encode(None, old(id=1))
    assert new(id=1, note="none") == Kinds.of([new]).decode(name, value)


# -- threads, and what is imported when


def test_many_threads_use_the_same_kinds() -> None:
    """What is built once is only read afterwards."""
    kinds = Kinds.of([Order, Point])
    results: list[Any] = []

    def work(number: int) -> None:
        results.extend(came_back(kinds, Order(id=number)) for _ in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [50] * 4 == [results.count(Order(id=number)) for number in range(4)]


def in_a_new_process(code: str) -> str:
    """What a fresh interpreter prints."""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stdout.strip()


def test_pydantic_is_imported_only_for_kinds() -> None:
    """Who uses no kinds does not pay for it."""
    code = "import sys, queue_over_sql.payloads.types; print('pydantic' in sys.modules)"
    assert "False" == in_a_new_process(code)


def test_what_is_missing_names_its_extra() -> None:
    """The package is on no index, so that no command of pip would be right everywhere."""
    told = {
        (
            "pydantic",
            "from queue_over_sql.payloads.types import Kinds; Kinds.of([dict])",
        ): "extra kinds",
        ("greenlet", "import queue_over_sql.aio"): "extra asyncio",
        ("pyspark", "from queue_over_sql.spark import session"): "extra spark",
        ("jaydebeapi", "from queue_over_sql import QueueService as Q; Q('h2:///./x')"): "extra h2",
        ("pymysql", "from queue_over_sql import QueueService as Q; Q('mysql://h/d')"): (
            "extra mysql"
        ),
        ("aiosqlite", "from queue_over_sql.aio import *; AsyncQueueService('sqlite:///x')"): (
            "extra asyncio"
        ),
    }
    for (missing, act), extra in told.items():
        code = (
            f"import sys; sys.modules[{missing!r}] = None\n"
            f"try:\n    {act}\nexcept Exception as error:\n    print(error)"
        )
        said = in_a_new_process(code)
        assert f"{missing}" in said.lower() or "driver" in said, said
        assert f"the {extra}" in said, said
        assert "pip install" not in said, said


def test_threads_need_no_greenlet(tmp_path: Path) -> None:
    """It is in the extra asyncio, so the module of a synchronous service must not import it."""
    code = (
        "import sys; sys.modules['greenlet'] = None\n"
        "from queue_over_sql import QueueService\n"
        f"with QueueService('sqlite:///{tmp_path}/queue.db') as service:\n"
        "    queue = service.create_queue('jobs')\n"
        "    queue.publish('x')\n"
        "    with queue.receive() as message:\n"
        "        print(message.payload)"
    )
    assert "x" == in_a_new_process(code)


def test_a_mapping_of_any_sort_is_a_mapping() -> None:
    """Names to types, however they are kept."""

    class Own(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return {"o": Order}[name]

        def __iter__(self) -> Any:
            return iter(["o"])

        def __len__(self) -> int:
            return 1

    assert ("o",) == Kinds.of(Own()).names
