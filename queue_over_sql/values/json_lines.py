"""Messages as JSON lines, as exports and the command line write and read them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final

CONTENT_FIELDS: Final = ("key", "kind", "group", "headers", "priority", "max_attempts", "columns")
"""The fields that the publisher sets, besides the payload."""

DELIVERY_FIELDS: Final = (
    "status",
    "attempt",
    "published_at",
    "scheduled_at",
    "available_at",
    "expires_at",
    "claimed_at",
    "lease_expires_at",
    "consumer_id",
    "consumer_round",
    "last_attempt_at",
    "last_error",
    "outcome",
    "finished_at",
)
"""The fields that deliveries set, which a new message does not have."""

ENCODING_FIELD: Final = "payload_encoding"
"""The field that says ``base64`` if the payload is bytes, which are written in Base64."""

UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that are escaped because they could mislead a reader (control characters, line breaks,
changes of writing direction) or cannot be encoded (surrogates)."""


def message_fields(message: Any) -> dict[str, Any]:
    """All fields of a ``Message``; a payload of bytes is written in Base64 and marked so."""
    fields: dict[str, Any] = {"id": message.id, "queue": message.queue}
    fields |= {name: getattr(message, name) for name in CONTENT_FIELDS}
    if isinstance(message.payload, bytes):
        fields |= {"payload": in_base64(message.payload), ENCODING_FIELD: "base64"}
    else:
        fields["payload"] = message.payload
    return fields | {name: getattr(message, name) for name in DELIVERY_FIELDS}


def in_base64(payload: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(payload).decode("ascii")


def to_json(value: object) -> str:
    """One compact line of JSON: times as ISO 8601, durations as seconds, bytes in Base64."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    return in_base64(value) if isinstance(value, bytes) else str(value)


@contextlib.contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[Callable[[str], None]]:
    """Write lines to a file that replaces ``path`` only when all of them are on the disk.

    Yields:
        A function that writes one line.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    target = Path(path)
    # In the same folder, because a rename works only within one file system.
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        written = Path(file.name)
        try:
            yield _line_writer(file)
            file.flush()
            os.fsync(file.fileno())
            # Give it the mode of a new file, not of a private temporary one.
            written.chmod(0o666 & ~_umask())
            written.replace(target)
        except BaseException:
            written.unlink(missing_ok=True)
            raise


def _line_writer(file: IO[str]) -> Callable[[str], None]:
    def write(line: str) -> None:
        file.write(f"{line}\n")

    return write


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
