"""Payload types: encode a payload for the table, and decode it to an equal value.

A publish refuses a payload that would not come back exactly equal: a JSON payload is read back and
compared before it is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from queue_over_sql.errors import PayloadInvalid, PayloadTooLarge
from queue_over_sql.values.headers import RESULT
from queue_over_sql.values.limits import MAX_HEADERS_BYTES
from queue_over_sql.values.texts import plain

_QUICK_ENCODER: Final = msgspec.json.Encoder()
_QUICK_DECODER: Final = msgspec.json.Decoder()
READ_JSON: Final = _QUICK_DECODER.decode
"""Reads most payloads fast; if it raises ``NOT_QUICK``, use ``decode_json``."""
NOT_QUICK: Final = (
    msgspec.MsgspecError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
)
# PostgreSQL and MariaDB take infinity as a number that is too large, and not by its name.
_TEXT_OR_INFINITY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|Infinity')
_AS_NUMBER: Final = {"Infinity": "1e999"}
_PYTHON_TYPES = {"text": "a str", "bytes": "bytes"}


def encode(payload_type: str, payload: Any, limit: int, *, nul: bool = True) -> str | bytes:
    """Encode a payload for the table: at most ``limit`` bytes in UTF-8.

    Raises:
        PayloadInvalid: it would not come back equal, or it has a NUL character and ``nul`` says
            that the engine's text columns cannot store one.
        PayloadTooLarge: it is larger than the limit.
    """
    if payload_type == "bytes":
        encoded: str | bytes = _encode_bytes(payload)
    elif payload_type == "text":
        encoded = _encode_text(payload, nul=nul)
    else:
        encoded = encode_json(payload, "payload")
    _check_size("payload", encoded, limit)
    return encoded


def encoder(payload_type: str, limit: int, *, nul: bool = True) -> Callable[[Any], str | bytes]:
    """A function like ``encode`` for many payloads, with a fast path for usual JSON."""

    def encode_any(payload: Any) -> str | bytes:
        return encode(payload_type, payload, limit, nul=nul)

    if payload_type != "json":
        return encode_any
    write, read = _QUICK_ENCODER.encode, _QUICK_DECODER.decode

    def encode_quickly(payload: Any) -> str | bytes:
        try:
            quick = write(payload)
            if len(quick) <= limit and read(quick) == payload:
                return quick.decode()
        except NOT_QUICK:
            pass
        return encode_any(payload)

    return encode_quickly


def decode(payload_type: str, stored: Any) -> Any:
    """Decode a stored payload."""
    if payload_type == "json":
        return decode_json(stored)
    if payload_type == "text":
        return stored
    if not isinstance(stored, bytes | bytearray | memoryview):
        msg = f"the payload is {type(stored).__name__}, not bytes"
        raise ValueError(msg)  # noqa: TRY004 - as for any other content that cannot be read
    return bytes(stored)


def encode_headers(headers: Mapping[str, Any] | None) -> str | None:
    """Encode the headers as compact JSON; no headers become NULL.

    The header ``ack_result`` of a message that was acked with a result is left out.

    Raises:
        PayloadInvalid: they are not a mapping of strings to JSON values.
        PayloadTooLarge: they are larger than 64 KiB.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        msg = f"headers must be a mapping of strings to JSON values, not {type(headers).__name__}"
        raise PayloadInvalid(msg)
    given = dict(headers)
    # A program may publish the headers of a finished message again, but not its result.
    given.pop(RESULT, None)
    if not given:
        return None
    encoded = encode_json(given, "headers")
    _check_size("headers", encoded, MAX_HEADERS_BYTES)
    return encoded


def encode_result(result: Any) -> str:
    """Encode the result of a message as compact JSON.

    Raises:
        PayloadInvalid: it is not a JSON value.
        PayloadTooLarge: it is larger than 64 KiB.
    """
    encoded = encode_json(result, "result")
    _check_size("result", encoded, MAX_HEADERS_BYTES)
    return encoded


def headers_with_result(headers: str | None, result: str) -> str | None:
    """Stored headers with the encoded result of their message."""
    kept = {RESULT: decode_json(result)}
    try:
        return encode_read_headers(decode_headers(headers) | kept)
    except UnreadableHeaders:
        return encode_read_headers(kept)


def encode_read_headers(headers: Mapping[str, Any]) -> str | None:
    """Encode headers that ``decode_headers`` read, whatever another client stored there.

    Lone surrogates, NaN and infinity are written as they came: in ASCII, and so that a database
    which had them accepts them. No headers become NULL.

    Raises:
        UnreadableHeaders: they are nested too deeply.
    """
    if not headers:
        return None
    try:
        return encode_json(headers, "headers")
    except PayloadInvalid:
        pass
    try:
        text = json.dumps(headers, separators=(",", ":"))
    except RecursionError as error:
        raise UnreadableHeaders(error) from error
    return _TEXT_OR_INFINITY.sub(lambda found: _AS_NUMBER.get(found[0], found[0]), text)


class UnreadableHeaders(ValueError):
    """Another client stored headers that nobody can read."""

    def __init__(self, why: object) -> None:
        super().__init__(f"its headers cannot be read as a JSON object: {why}")


def decode_headers(stored: str | None) -> dict[str, Any]:
    """Decode stored headers.

    Raises:
        UnreadableHeaders: another client stored something else.
    """
    try:
        headers = {} if stored is None else decode_json(stored)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableHeaders(error) from error
    if not isinstance(headers, dict):
        raise UnreadableHeaders(f"they have type {type(headers).__name__}")
    return headers


def decode_json(text: Any) -> Any:
    """Read JSON as the standard library does, but several times as fast if possible.

    Raises:
        ValueError, RecursionError: it is not JSON, or nested too deeply.
    """
    try:
        return _QUICK_DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # The slow way reads other clients' infinite floats and surrogates, and raises the usual
        # errors.
        return json.loads(text)


def encode_json(value: Any, what: str) -> str:
    """Write compact JSON that reads back equal to ``value``, or raise PayloadInvalid."""
    try:
        quick = _QUICK_ENCODER.encode(value)
        if _QUICK_DECODER.decode(quick) == value:
            return quick.decode()
    except NOT_QUICK:
        # The slow way writes subclasses of str, for example, and raises the usual errors.
        pass
    return _encode_json_slowly(value, what)


def _encode_json_slowly(value: Any, what: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        equal = json.loads(text) == value
    except RecursionError as error:
        msg = f"The {what} is nested too deeply for JSON."
        raise PayloadInvalid(msg) from error
    except (TypeError, ValueError) as error:
        msg = f"The {what} cannot be written as JSON: {error}."
        if hasattr(value, "model_dump"):
            name = type(value).__name__
            msg += f" Open the queue with kinds=[{name}], or publish model_dump(mode='json')."
        elif isinstance(error, TypeError):
            # A Decimal, a date or a UUID. Kinds are for payloads only.
            also = ", or use kinds=" if what == "payload" else ""
            msg += f" Convert it to text first{also}."
        elif "Out of range" in str(error):
            msg += " JSON has no NaN and no infinity: publish None or text instead."
        raise PayloadInvalid(msg) from error
    if not equal:
        msg = (
            f"The {what} would change in JSON (keys that are not strings, tuples, NaN?). Convert "
            "it to plain JSON values first."
        )
        raise PayloadInvalid(msg)
    _check_unicode(text, what)
    return text


def _encode_bytes(payload: Any) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise _wrong_type("bytes", payload)
    # By type, because a subclass may override its methods, as below.
    return payload if type(payload) is bytes else bytes(memoryview(payload))


def _encode_text(payload: Any, *, nul: bool) -> str:
    if not isinstance(payload, str):
        raise _wrong_type("text", payload)
    text: str = plain(payload)
    if not nul and "\0" in text:
        msg = (
            "The payload contains a NUL character, which this database cannot store in text. Use "
            "a queue with payload='json' or 'bytes'."
        )
        raise PayloadInvalid(msg)
    _check_unicode(text, "payload")
    return text


def _check_unicode(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"The {what} contains a lone surrogate, which is not valid Unicode: {error}."
        raise PayloadInvalid(msg) from error


def _check_size(what: str, encoded: str | bytes, limit: int) -> None:
    plain = isinstance(encoded, bytes) or encoded.isascii()
    size = len(encoded) if plain else len(str(encoded).encode())
    if size > limit:
        raise PayloadTooLarge(what, size, limit)


def _wrong_type(payload_type: str, payload: object) -> PayloadInvalid:
    return PayloadInvalid(
        f"This queue's payload type is {payload_type!r}, so the payload must be "
        f"{_PYTHON_TYPES[payload_type]}, not {type(payload).__name__}."
    )
