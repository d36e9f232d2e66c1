"""Types of payloads that a server's code knows: how they become JSON and are read again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import json
import operator
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from queue_over_sql.errors import PayloadInvalid, shown
from queue_over_sql.values.texts import is_storable

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_KEPT = (
    "__doc__",
    "__module__",
    "__optional_keys__",
    "__pydantic_config__",
    "__qualname__",
    "__required_keys__",
    "__total__",
)


def understood(given: Any) -> Any:
    """The same type, with each ``typing.TypedDict`` in it replaced if Pydantic refuses them."""
    if sys.version_info >= (3, 12):
        return given
    return _replaced(given, {})


def _replaced(given: Any, done: dict[Any, Any]) -> Any:
    if typing.is_typeddict(given):
        return done[given] if given in done else _made_anew(given, done)
    arguments = typing.get_args(given)
    new = tuple(_replaced(argument, done) for argument in arguments)
    if all(mine is other for mine, other in zip(arguments, new, strict=True)):
        return given
    return _with_arguments(given, new)


def _with_arguments(given: Any, arguments: tuple[Any, ...]) -> Any:
    origin = typing.get_origin(given)
    if origin is typing.Annotated:
        return typing.Annotated[arguments]
    if origin is types.UnionType:
        return functools.reduce(operator.or_, arguments)
    return given.copy_with(arguments) if hasattr(given, "copy_with") else origin[arguments]


def _made_anew(given: Any, done: dict[Any, Any]) -> Any:
    import typing_extensions  # noqa: PLC0415 - only where there are kinds

    make: Any = typing_extensions.TypedDict
    # Registered before its fields, because they may refer to it.
    new = done[given] = make(given.__name__, {})
    hints = typing.get_type_hints(given, include_extras=True)
    new.__annotations__ = {name: _replaced(hint, done) for name, hint in hints.items()}
    for name in _KEPT:
        if name in vars(given):
            setattr(new, name, vars(given)[name])
    return new


# Most values have these types and need no closer look.
_SIMPLE = frozenset({str, int, float, bool, NoneType, bytes})


def is_model(given: type) -> bool:
    """Whether a class is a Pydantic model, without importing Pydantic."""
    return isinstance(getattr(given, "model_fields", None), dict)


def changes(given: Any, back: Any, path: str = "") -> Iterator[str]:
    """The places at which a value changed on its way through JSON.

    An instance of a base class may equal one of a derived class with the same fields.
    """
    if given is back:
        return
    mine, other = _parts(given), _parts(back)
    if mine is None or other is None or not isinstance(given, type(back)):
        if not _is_equal(given, back):
            yield path or "the whole payload"
        return
    for name in dict.fromkeys([*mine, *other]):
        place = f"{path}.{name}" if path else str(name)
        if name in mine and name in other:
            yield from changes(mine[name], other[name], place)
        else:
            yield place


def _is_equal(given: Any, back: Any) -> bool:
    return isinstance(given, bool) == isinstance(back, bool) and bool(given == back)


def _parts(value: Any) -> Mapping[Any, Any] | None:
    if type(value) in _SIMPLE or isinstance(value, type):
        return None
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value):
        return _dataclass_parts(value)
    if is_model(type(value)):
        fields = {name: getattr(value, name, None) for name in type(value).model_fields}
        return fields | (getattr(value, "__pydantic_extra__", None) or {})
    # An object without ``__eq__`` is compared by its attributes.
    return None if _says_equal(type(value)) else getattr(value, "__dict__", None)


def _dataclass_parts(value: Any) -> Mapping[str, Any]:
    fields = {
        field.name: getattr(value, field.name, None)
        for field in dataclasses.fields(value)
        if field.compare
    }
    # Dataclasses of Pydantic may hold more than their fields.
    config = getattr(value, "__pydantic_config__", None) or {}
    return fields | vars(value) if config.get("extra") == "allow" else fields


def _says_equal(given: type) -> bool:
    return any("__eq__" in vars(base) for base in given.__mro__ if base is not object)


_NAME_LENGTH = 100
_FIELDS_SHOWN = 5
_REASON_LENGTH = 200
# Plain JSON values do not tell the kind.
_IMPLY_NOTHING = frozenset({dict, list, str, int, float, bool, NoneType, object})
_NOT_JSON = object()


class UnfitPayload(ValueError):
    """A stored payload does not fit the type of its kind here; the text is one line."""


class Kinds:
    """The payload types that this server's code knows, by kind; may be used from any thread."""

    def __init__(self, types: Mapping[str, tuple[Any, TypeAdapter[Any]]]) -> None:
        self.names = tuple(sorted(types))
        self._types = {name: types[name][0] for name in self.names}
        self._adapters = {name: types[name][1] for name in self.names}
        self._by_class: dict[type, tuple[str, ...]] = {}
        for name in self.names:
            given = types[name][0]
            if _is_class(given) and given not in _IMPLY_NOTHING:
                self._by_class[given] = (*self._by_class.get(given, ()), name)

    @classmethod
    def of(cls, given: Sequence[Any] | Mapping[str, Any] | Kinds) -> Kinds:
        """Read ``kinds=``, as ``create_queue`` describes it.

        Raises:
            TypeError: an entry is not a type that Pydantic can handle, or has no name.
            ValueError: there are none, or a name occurs twice or is not 1 to 100 characters long.
            ImportError: Pydantic is not installed.
        """
        if isinstance(given, Kinds):
            return given
        types: dict[str, tuple[Any, TypeAdapter[Any]]] = {}
        for named, kind in _items(given):
            adapter = _adapter(kind)
            name = _checked_name(_own_name(kind) if named is None else named)
            if name in types:
                msg = f"two of the kinds are named {name!r}; use a mapping of names to types"
                raise ValueError(msg)
            types[name] = kind, adapter
        if not types:
            msg = "kinds is empty; list the types of the payloads, or leave out kinds"
            raise ValueError(msg)
        return cls(types)

    def are(self, given: Sequence[Any] | Mapping[str, Any]) -> bool:
        """Whether ``of`` would make the same of what is given, which costs much less."""
        return self._types == {
            getattr(kind, "__name__", "") if name is None else name: kind
            for name, kind in _items(given)
        }

    def knows(self, kind: str | None) -> bool:
        """Whether this server can read payloads of a kind; None means no kind."""
        return kind in self._adapters

    def encode(self, kind: str | None, payload: Any) -> tuple[str, Any]:
        """Check a payload and convert it to plain JSON values; returns its kind, too.

        An instance of a registered type needs no ``kind``. A plain JSON value that fits its kind is
        kept as it is.

        Raises:
            PayloadInvalid: the kind is unknown, missing or not that of the payload, or the payload
                does not fit it or would not come back equal; the message names the fields.
        """
        name = self._kind_of(kind, payload)
        adapter = self._adapters[name]
        value = _plain_json(payload)
        try:
            if value is _NOT_JSON:
                value, changed = _written(adapter, payload)
            else:
                _read(adapter, value)
                changed = []
        except Exception as error:
            msg = f"The payload does not fit kind {name!r}: {_reason(error)}."
            raise PayloadInvalid(msg) from error
        if changed:
            msg = f"The payload of kind {name!r} would not come back equal: {_list(changed)}."
            raise PayloadInvalid(msg)
        return name, value

    def decode(self, kind: str, value: Any) -> Any:
        """Convert a payload, as read from JSON, to an instance of its kind's type.

        Raises:
            UnfitPayload: it does not fit, or the kind is unknown here.
        """
        adapter = self._adapters.get(kind)
        if adapter is None:
            msg = f"the kind {kind!r} is unknown to this process, which knows: {self._known()}"
            raise UnfitPayload(msg)
        try:
            return _read(adapter, value)
        except Exception as error:
            msg = f"the payload does not fit kind {kind!r}: {_reason(error)}"
            raise UnfitPayload(msg) from error

    def __repr__(self) -> str:
        return f"<Kinds {self._known()}>"

    def _kind_of(self, kind: str | None, payload: Any) -> str:
        if kind is not None and not (isinstance(kind, str) and self.knows(kind)):
            known = self._known()
            msg = f"The kind {shown(kind)} is unknown to this process, which knows: {known}."
            raise PayloadInvalid(msg)
        implied = self._implied(type(payload))
        if implied and kind is not None and kind not in implied:
            msg = (
                f"The payload is of kind {_list(implied, ' or ')} by its type "
                f"{type(payload).__name__}, not of kind {shown(kind)}."
            )
            raise PayloadInvalid(msg)
        if kind is None and len(implied) != 1:
            msg = (
                f"A payload of type {type(payload).__name__} does not say its kind; give kind= "
                f"one of: {_list(implied or self.names)}."
            )
            raise PayloadInvalid(msg)
        return implied[0] if kind is None else kind

    def _implied(self, given: type) -> tuple[str, ...]:
        found = (self._by_class[base] for base in given.__mro__ if base in self._by_class)
        return next(found, ())

    def _known(self) -> str:
        return ", ".join(self.names)


# -- the argument kinds


def _items(given: Any) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return [(None, kind) for kind in given]
    msg = f"kinds must be a list of types or a mapping of names to types, not {_type_text(given)}"
    raise TypeError(msg)


def _own_name(kind: Any) -> str:
    if not _is_class(kind):
        msg = (
            f"{_type_text(kind)} has no name of its own; give a mapping of names to types, such "
            f"as kinds={{'name': {_type_text(kind)}}}"
        )
        raise TypeError(msg)
    return str(kind.__name__)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        msg = f"the names of kinds must be str, not {type(name).__name__}"
        raise TypeError(msg)
    if not is_storable(name) or not 1 <= len(name) <= _NAME_LENGTH:
        msg = (
            f"the name of a kind must be 1 to {_NAME_LENGTH} characters of text without NUL, not "
            f"{name[:50]!r}"
        )
        raise ValueError(msg)
    return str.__str__(name)


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - only where there are kinds
    except ModuleNotFoundError as error:
        msg = (
            "kinds require Pydantic, which is not installed: install the extra kinds of "
            "queue-over-sql"
        )
        raise ImportError(msg) from error
    if _is_value(kind):
        msg = f"{shown(kind)} cannot be a kind, because it is not a type"
        raise TypeError(msg)
    try:
        adapter = TypeAdapter(understood(kind))
        # An annotation that cannot be resolved raises only when the type is used.
        _ = adapter.validator.title
    except Exception as error:
        msg = f"{_type_text(kind)} cannot be a kind: {_first_line(error)}"
        raise TypeError(msg) from error
    return adapter


def _is_value(kind: Any) -> bool:
    """Whether Pydantic accepts it as a type although it is a name, function or instance."""
    if isinstance(kind, type):
        return False
    instance = dataclasses.is_dataclass(kind) or is_model(type(kind))
    return isinstance(kind, str) or inspect.isroutine(kind) or instance


def _is_class(kind: Any) -> bool:
    # Any is a class on some Pythons.
    return isinstance(kind, type) and typing.get_origin(kind) is None and kind is not Any


def _type_text(kind: Any) -> str:
    return str(kind.__name__) if _is_class(kind) else shown(kind)


# -- JSON


def _plain_json(payload: Any) -> Any:
    try:
        value = json.loads(json.dumps(payload, allow_nan=False))
        equal = bool(value == payload)
    except (TypeError, ValueError, RecursionError):
        return _NOT_JSON
    return value if equal else _NOT_JSON


def _read(adapter: TypeAdapter[Any], value: Any) -> Any:
    # As text, because only then Pydantic reads dates and the like from JSON in strict mode.
    return adapter.validate_json(json.dumps(value), strict=True)


def _written(adapter: TypeAdapter[Any], payload: Any) -> tuple[Any, list[str]]:
    dumped = adapter.dump_python(
        payload, mode="json", by_alias=True, round_trip=True, warnings=False
    )
    value = json.loads(json.dumps(dumped, allow_nan=False))
    return value, list(changes(payload, _read(adapter, value)))


# -- texts


def _reason(error: Exception) -> str:
    from pydantic import ValidationError  # noqa: PLC0415 - only where there are kinds

    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {_first_line(error)}"
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    places = (".".join(str(part) for part in one["loc"]) for one in errors)
    texts = (_short(one["msg"]) for one in errors)
    return _list(
        [f"{place}: {text}" if place else text for place, text in zip(places, texts, strict=True)],
        "; ",
    )


def _first_line(error: Exception) -> str:
    return _short(next(iter(str(error).splitlines()), ""))


def _short(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _REASON_LENGTH else f"{line[:_REASON_LENGTH]}…"


def _list(texts: Sequence[str], separator: str = ", ") -> str:
    shown = list(itertools.islice(texts, _FIELDS_SHOWN))
    more = len(texts) - len(shown)
    return separator.join(shown) + (f"{separator}and {more} more" if more else "")
