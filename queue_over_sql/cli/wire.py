"""Messages as JSON lines: what `consume --json` and `peek --json` write and `publish` reads."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from queue_over_sql import Message, Publication
from queue_over_sql.cli.values import parse_duration, parse_instant
from queue_over_sql.json_lines import (
    CONTENT_FIELDS,
    DELIVERY_FIELDS,
    ENCODING_FIELD,
    in_base64,
    to_json,
)

READ_OTHERWISE = {"payload", ENCODING_FIELD, "id", "queue", *DELIVERY_FIELDS}
"""Fields of a written message that are no options of a new one."""


class LineFormat(StrEnum):
    """What one line of input is."""

    PAYLOAD = "payload"
    TEXT = "text"
    MESSAGE = "message"


def payload_line(message: Message, payload_type: str) -> str:
    """The payload alone: compact JSON, text as it is, or bytes in Base64."""
    if isinstance(message.payload, bytes):
        return in_base64(message.payload)
    return str(message.payload) if payload_type == "text" else to_json(message.payload)


def payload_bytes(message: Message, payload_type: str) -> bytes:
    """What a command gets on its standard input: bytes as they are, anything else as UTF-8."""
    if isinstance(message.payload, bytes):
        return message.payload
    return payload_line(message, payload_type).encode()


@dataclasses.dataclass(frozen=True)
class LineReader:
    """Turns lines of input into publications for a queue of one payload type.

    Args:
        payload_type: ``json``, ``text`` or ``bytes``, of the queue.
        line_format: what one line is.
        defaults: fields of `Publication` for what a line does not say itself.
    """

    payload_type: str
    line_format: LineFormat
    defaults: Mapping[str, Any]

    def read(self, line: str) -> Publication:
        """The publication that `line` describes; ValueError says what is wrong with it."""
        if self.line_format is LineFormat.TEXT:
            return Publication(self._text_payload(line), **self.defaults)
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON ({error.msg} at character {error.pos + 1})") from error
        if self.line_format is LineFormat.MESSAGE:
            return self._message(value)
        return Publication(self._json_payload(value), **self.defaults)

    def _text_payload(self, line: str) -> str | bytes:
        return line.encode() if self.payload_type == "bytes" else line

    def _json_payload(self, value: Any) -> Any:
        if self.payload_type == "json":
            return value
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004 - the input is wrong, not an argument's type
                f"the queue carries {self.payload_type}, so a line must be a JSON string"
                f"{' of Base64' if self.payload_type == 'bytes' else ''}"
            )
        return value if self.payload_type == "text" else _from_base64(value)

    def _message(self, value: Any) -> Publication:
        if not isinstance(value, dict) or "payload" not in value:
            raise ValueError('not a message: {"payload": …, "key": …, …} is one')
        unknown = value.keys() - READERS.keys() - READ_OTHERWISE
        if unknown:
            raise ValueError(f"a message has no field {', '.join(sorted(unknown))}")
        own = {
            name: read(value[name]) for name, read in READERS.items() if value.get(name) is not None
        }
        return Publication(self._json_payload(value["payload"]), **{**self.defaults, **own})


def _from_base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not Base64 ({error})") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _as_given(value: Any) -> Any:
    return value


READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(CONTENT_FIELDS, _as_given),
    "delay": parse_duration,
    "at": parse_instant,
    "lease": parse_duration,
}
