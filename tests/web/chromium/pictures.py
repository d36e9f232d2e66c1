"""Pictures of pages for the documentation: PNG files with a palette, so that they are small."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

_HEIGHT: Final = 800
_COLOURS: Final = 256
_PIXELS: Final = """async (data) => {
  const file = await (await fetch('data:image/png;base64,' + data)).blob();
  const image = await createImageBitmap(file);
  const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
  canvas.drawImage(image, 0, 0);
  const bytes = canvas.getImageData(0, 0, image.width, image.height).data;
  let text = '';
  for (let at = 0; at < bytes.length; at += 30000)
    text += String.fromCharCode(...bytes.subarray(at, at + 30000));
  return btoa(text);
}"""


def take_picture(page: Page, file: Path) -> None:
    """Write what a page shows, down to its end or ``_HEIGHT``."""
    end = page.locator("main").bounding_box()
    assert end is not None
    height = min(_HEIGHT, int(end["y"] + end["height"]))
    width = page.evaluate("innerWidth")
    area = {"x": 0, "y": 0, "width": width, "height": height}
    png = page.screenshot(clip=area, animations="disabled")  # type: ignore[arg-type]
    # A page with a content security policy would not read the picture.
    with page.context.new_page() as blank:
        pixels = base64.b64decode(blank.evaluate(_PIXELS, base64.b64encode(png).decode()))
    file.write_bytes(_png(width, height, pixels))


def _png(width: int, height: int, rgba: bytes) -> bytes:
    colours = [rgba[at : at + 3] for at in range(0, len(rgba), 4)]
    palette = [colour for colour, _ in Counter(colours).most_common(_COLOURS)]
    places = {colour: place for place, colour in enumerate(palette)}
    places |= {colour: _nearest(colour, palette) for colour in set(colours) - places.keys()}
    indexed = bytes(places[colour] for colour in colours)
    rows = b"".join(b"\0" + indexed[at : at + width] for at in range(0, len(indexed), width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(rows, 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in (*parts, (b"IEND", b"")))


def _nearest(colour: bytes, palette: list[bytes]) -> int:
    def distance(place: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour, palette[place], strict=True))

    return min(range(len(palette)), key=distance)


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)
