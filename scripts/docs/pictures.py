"""Draw the lives of a message, a claim and a consumer, and the layers of the package.

``python scripts/docs/pictures.py`` writes to ``docs/pictures/``; a test compares the files with
what this draws.
"""

# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import runpy
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
LAYERS = runpy.run_path(str(Path(__file__).with_name("layers.py")))
LINE = 18
# Of the picture of the layers: its width, where its boxes begin, their height, and between them.
WIDTH, BAND_LEFT, CELL, GAP = 900, 24, 30, 26
COLOURS = {"": "#eef3fb", "good": "#e7f5ea", "bad": "#fbeaea"}
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    'font-family="system-ui, sans-serif" font-size="14" fill="#1f2933">\n<title>{title}</title>\n'
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#52606d"/></marker></defs>\n'
    '<rect width="{width}" height="{height}" fill="#fff"/>'
)


@dataclass(frozen=True)
class Box:
    """A state: its centre, its lines of text, and whether it is a good or bad end."""

    x: int
    y: int
    text: str
    kind: str = ""
    width: int = 130

    def draw(self) -> str:
        """Its rectangle and its text."""
        height = 22 + LINE * (1 + self.text.count("\n"))
        left, top = self.x - self.width // 2, self.y - height // 2
        return (
            f'<rect x="{left}" y="{top}" width="{self.width}" height="{height}" rx="8" '
            f'fill="{COLOURS[self.kind]}" stroke="#829ab1"/>\n' + words(self.x, self.y, self.text)
        )


@dataclass(frozen=True)
class Arrow:
    """A transition between states: its corners, and its text with the centre of the text."""

    path: tuple[tuple[int, int], ...]
    text: str
    x: int
    y: int

    def draw(self) -> str:
        """Its line and its text, on a light background."""
        line = self.line(" ".join(f"{x},{y}" for x, y in self.path))
        return line + "\n" + words(self.x, self.y, self.text, 'font-size="12.5" ')

    @staticmethod
    def line(corners: str) -> str:
        """A line through these corners, with a head at its end."""
        return (
            f'<polyline points="{corners}" fill="none" stroke="#52606d" marker-end="url(#head)"/>'
        )


@dataclass(frozen=True)
class Note:
    """Text without a box, around its centre."""

    x: int
    y: int
    text: str

    def draw(self) -> str:
        """Its text."""
        return words(self.x, self.y, self.text, 'font-size="13" ')


def words(x: int, y: int, text: str, style: str = "") -> str:
    """Lines of text around a point."""
    lines = text.split("\n")
    first = y + 5 - LINE * (len(lines) - 1) // 2
    return "\n".join(
        f'<text {style}x="{x}" y="{first + LINE * n}" text-anchor="middle">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )


@dataclass(frozen=True)
class Band:
    """A band of layers: its top, its title and meaning, and its modules by layer."""

    y: int
    title: str
    meaning: str
    layers: list[list[str]]

    def cells(self) -> list[tuple[int, int, list[str]]]:
        """Each layer with its place; what does not fit goes to the next line."""
        found, x, y = [], BAND_LEFT, self.y + 34
        for modules in self.layers:
            width = self.width_of(modules)
            if x + width > WIDTH - 20:
                x, y = BAND_LEFT, y + CELL + 10
            found.append((x, y, modules))
            x += width + GAP
        return found

    @staticmethod
    def width_of(modules: list[str]) -> int:
        """How wide the box of a layer is."""
        return sum(len(name) * 8 + 18 for name in modules)

    @property
    def height(self) -> int:
        """How much room it takes."""
        return self.cells()[-1][1] + CELL + 10 - self.y

    def draw(self) -> str:
        """Its background and its text, and an arrow to each layer from the one before."""
        frame = f'x="10" y="{self.y}" width="{WIDTH - 20}" height="{self.height}" rx="8"'
        meaning = f'<tspan font-weight="400">{escape(self.meaning)}</tspan>'
        head = f'<text x="24" y="{self.y + 22}" font-weight="600">{escape(self.title)}: '
        parts = [f'<rect {frame} fill="{COLOURS[""]}"/>', f"{head}{meaning}</text>"]
        for x, y, modules in self.cells():
            if x > BAND_LEFT:
                middle = y + CELL // 2
                ends = f"{x - GAP},{middle} {x - 1},{middle}"
                parts.append(Arrow.line(ends))
            parts.append(
                f'<rect x="{x}" y="{y}" width="{self.width_of(modules)}" height="{CELL}" rx="6" '
                'fill="#fff" stroke="#829ab1"/>'
            )
            for number, name in enumerate(modules):
                before = self.width_of(modules[:number])
                if number:
                    parts.append(
                        f'<path d="M{x + before} {y}v{CELL}" stroke="#829ab1" '
                        'stroke-dasharray="2 3"/>'
                    )
                centre = x + before + self.width_of([name]) // 2
                parts.append(words(centre, y + CELL // 2, name, 'font-size="13" '))
        return "\n".join(parts)


def drawn_layers() -> str:
    """The layers of the import contract, in bands."""
    bands: list[Band] = []
    top = 10
    for band in LAYERS["bands"]():
        bands.append(Band(top, *band))
        top += bands[-1].height + 8
    title = "The layers of the package: a module imports only what stands after it or below it"
    return picture(title, WIDTH, top + 2, *bands)


def picture(title: str, width: int, height: int, *parts: Box | Arrow | Band | Note) -> str:
    """An SVG without references to other files."""
    head = HEAD.format(title=escape(title), width=width, height=height)
    return "\n".join([head, *(part.draw() for part in parts), "</svg>", ""])


# Each group with its messages, the oldest first, and the rule.
GROUPS = (
    (
        "customer-17",
        (("1\nin hand", "good"), ("4\nwaits", ""), ("9\nwaits", "")),
        "group_limit=1: one at a time,\nin the order of publishing",
    ),
    (
        "customer-18",
        (("2\nretry at 10:05", "bad"), ("5\nwaits", ""), ("7\nwaits", "")),
        "The first one holds up its group,\nand no other group",
    ),
    (
        "customer-19",
        (("3\ndead letter", "bad"), ("6\nnext", "good"), ("8\nwaits", "")),
        "A dead letter lets the next one go,\nunless block_on_failure=True",
    ),
    (
        "vip",
        (("10\nin hand", "good"), ("11\nin hand", "good"), ("12\nwaits", "")),
        "configure(limit=2): two at a time,\nstarted in this order",
    ),
    (
        "mail",
        (("13\nretry at 10:05", "bad"), ("14\nin hand", "good"), ("15\nnext", "good")),
        'group_order="any", limit 2: a retry\nholds up nobody',
    ),
)


def drawn_groups() -> str:
    """A row for each group."""
    parts: list[Box | Note] = []
    for row, (name, messages, rule) in enumerate(GROUPS):
        y = 45 + 70 * row
        parts.append(Note(80, y, name))
        parts += [
            Box(230 + 140 * place, y, text, kind, 125)
            for place, (text, kind) in enumerate(messages)
        ]
        parts.append(Note(730, y, rule))
    return picture("What waits for what in groups", 900, 20 + 70 * len(GROUPS), *parts)


def turns(y: int, *runs: tuple[int, int, str, str]) -> list[Box]:
    """Boxes in a row, each from one time to another."""
    return [
        Box((begin + end) // 2, y, text, kind, end - begin - 6) for begin, end, text, kind in runs
    ]


SHARES = (
    ("published", "a1 a2 a3 a4 b1 b2 c1", "Also the order in which they are\ntaken without shares"),
    ("group_fair=True", "a1 b1 c1 a2 b2 a3 a4", "Groups take turns, whatever\ntheir backlogs"),
    ("a has the weight 3", "a1 a2 a3 b1 c1 a4 b2", "Three in each turn"),
)

PICTURES = {
    "groups.svg": drawn_groups(),
    "groups-in-time.svg": picture(
        "Two consumers and three groups, in the course of time",
        900,
        250,
        Note(90, 40, "published"),
        *turns(
            40,
            *(
                (180 + 70 * place, 250 + 70 * place, name, "")
                for place, name in enumerate(("a1", "b1", "a2", "c1", "b2"))
            ),
        ),
        Note(710, 40, "Each message is one of a group: a, b or c"),
        Note(90, 120, "consumer 1"),
        *turns(120, (180, 480, "a1", "good"), (480, 640, "a2", "good")),
        Note(90, 200, "consumer 2"),
        *turns(200, (180, 280, "b1", "good"), (280, 390, "c1", "good"), (390, 560, "b2", "good")),
        Note(770, 120, "a2 waits until a1 has ended,\nwhoever is free"),
        Note(770, 200, "Other groups go on"),
        Arrow(((180, 238), (640, 238)), "", 0, 0),
        Note(665, 238, "time"),
    ),
    "groups-in-batches.svg": picture(
        "Three messages of one group in one hand",
        900,
        250,
        Note(90, 45, "claimed together"),
        *turns(
            45,
            (180, 320, "a1\ndone", "good"),
            (320, 460, "a2\nfails", "bad"),
            (460, 600, "a3\nnot begun", ""),
        ),
        Note(750, 45, "One consumer may have several\nof a group, in order"),
        Arrow(((390, 74), (390, 117)), "", 0, 0),
        Arrow(((530, 74), (530, 117)), "", 0, 0),
        Note(90, 146, "given back"),
        *turns(
            146,
            (320, 460, "a2\nretry at 10:05", "bad"),
            (460, 600, "a3\nnot counted", ""),
        ),
        Note(750, 146, "What is behind a failure comes\nback with it"),
        Note(90, 220, "from 10:05 on"),
        *turns(220, (320, 460, "a2", "good"), (460, 600, "a3", "")),
        Note(750, 220, "The failed one is the first again"),
    ),
    "groups-in-shares.svg": picture(
        "The order in which consumers get messages of three groups",
        900,
        190,
        *(
            part
            for row, (title, names, meaning) in enumerate(SHARES)
            for part in (
                Note(90, 40 + 55 * row, title),
                *turns(
                    40 + 55 * row,
                    *(
                        (180 + 64 * place, 244 + 64 * place, name, "good" if row else "")
                        for place, name in enumerate(names.split())
                    ),
                ),
                Note(765, 40 + 55 * row, meaning),
            )
        ),
    ),
    "layers.svg": drawn_layers(),
    "message.svg": picture(
        "The life of a message",
        900,
        400,
        Box(250, 45, "held"),
        Box(250, 175, "ready"),
        Box(250, 300, "delayed"),
        Box(540, 175, "claimed"),
        Box(815, 90, "done", "good"),
        Box(815, 290, "dead letter", "bad"),
        Arrow(((20, 165), (185, 165)), "publish", 90, 152),
        Arrow(((20, 300), (185, 300)), "publish\nwith a delay", 80, 276),
        Arrow(((230, 155), (230, 65)), "hold", 206, 110),
        Arrow(((270, 65), (270, 155)), "unhold", 300, 110),
        Arrow(((250, 280), (250, 195)), "it is due", 285, 238),
        Arrow(((315, 165), (475, 165)), "consume", 395, 152),
        Arrow(((475, 185), (315, 185)), "release, lease ends,\nconsumer dies", 395, 210),
        Arrow(((540, 195), (540, 300), (315, 300)), "nack, or release with a delay", 425, 286),
        Arrow(((520, 155), (520, 115), (560, 115), (560, 155)), "extend", 540, 102),
        Arrow(((605, 165), (680, 165), (680, 90), (750, 90)), "ack", 715, 77),
        Arrow(
            ((605, 185), (680, 185), (680, 290), (750, 290)),
            "reject, cancel,\nno attempts left",
            742,
            230,
        ),
        Arrow(((815, 310), (815, 375), (150, 375), (150, 185), (185, 185)), "requeue", 540, 362),
    ),
    "claim.svg": picture(
        "The life of a claim",
        900,
        310,
        Box(95, 160, "ready"),
        Box(390, 160, "claimed\nby consumer c, round r", "", 190),
        Box(800, 45, "settled", "good", 180),
        Box(800, 160, "given back", "", 180),
        Box(800, 275, "cancelled, deleted,\nreplaced", "bad", 180),
        Arrow(((160, 160), (295, 160)), "consume counts\nan attempt", 228, 132),
        Arrow(((370, 131), (370, 85), (410, 85), (410, 131)), "extend", 390, 72),
        Arrow(
            ((485, 145), (560, 145), (560, 45), (710, 45)),
            "its holder:\nack, nack, reject",
            632,
            22,
        ),
        Arrow(((485, 160), (710, 160)), "release; lease or\nheartbeat ends", 640, 134),
        Arrow(((485, 175), (560, 175), (560, 275), (710, 275)), "somebody else", 632, 262),
        Arrow(((800, 180), (800, 215), (95, 215), (95, 180)), "", 0, 0),
        Box(
            300,
            275,
            "then all verbs of the former holder\nraise ClaimLost and change nothing",
            "",
            300,
        ),
        Arrow(((710, 285), (455, 285)), "", 0, 0),
    ),
    "consumer.svg": picture(
        "The life of a consumer",
        900,
        300,
        Box(95, 80, "service"),
        Box(380, 80, "alive", "good"),
        Box(770, 80, "stopped", "", 170),
        Box(380, 235, "expired", "bad"),
        Box(770, 235, "its messages\ngo to others", "", 170),
        Arrow(((160, 80), (315, 80)), "start() or consume\nregisters it", 238, 52),
        Arrow(((360, 60), (360, 30), (400, 30), (400, 60)), "heartbeat, every 10 s", 380, 17),
        Arrow(((445, 80), (685, 80)), "stop() gives back what it holds", 565, 67),
        Arrow(((395, 100), (395, 215)), "no heartbeat for\nconsumer_timeout (30 s)", 482, 155),
        Arrow(((365, 215), (365, 100)), "next consume:\nregisters with a new id", 275, 155),
        Arrow(((445, 235), (685, 235)), "a reaper of another service", 565, 222),
    ),
}

if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (FOLDER / name).write_text(drawn)
