"""Differences between databases stay in ``dialects/``: the core never asks for the engine."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import queue_over_sql

PACKAGE = Path(queue_over_sql.__file__).parent
# Interfaces name engines in help texts and URLs; the test servers are servers of engines; these
# modules choose a dialect by its name.
ELSEWHERE = ("dialects", "sql", "cli", "testing")
BY_NAME = {
    PACKAGE / "database" / f"{each}.py" for each in ("urls", "opened_engine", "raw_connections")
}
ASKS = re.compile(
    r"\b(dialect|features)\.name\b|get_backend_name|(==|!=|\bin)\s*[(\[{]?[\"'](sqlite|postgresql|mysql|mariadb|h2)"
)


def test_no_engine_is_asked_for_by_name() -> None:
    """A capability of the dialect answers instead."""
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE and path not in BY_NAME
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ASKS.search(line)
    ]
    assert [] == found


def test_what_decides_knows_no_statements() -> None:
    """Who has a queue's context calls operations, and only these know statements."""
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"import .*\bstatements\b", path.read_text())
        and "import QueueContext" in path.read_text()
    ]
    assert [] == found


def test_statements_know_no_sessions() -> None:
    """What only builds SQL asks the tables for features and expressions, and no other part."""
    built = [
        path for path in sorted(PACKAGE.rglob("statements.py")) if "dialects" not in path.parts
    ]
    defined = [PACKAGE / "schema" / "system_tables.py", PACKAGE / "publishing" / "column_values.py"]
    found = [
        str(path.relative_to(PACKAGE))
        for path in (*built, *defined)
        if re.search(r"\.dialect\b|QueueDialect", path.read_text())
    ]
    assert [] == found


GUESTS = ("cli", "contrib", "management", "observability", "spark", "testing", "web")
# What guests may import: pure values and texts, the door, and each other.
OPEN = {"errors", "inside", "plots", "values", *GUESTS}
# Modules of guests whose names others may import; of the rest only what the package itself exports.
PUBLIC_MODULES = {
    *("management.operation", "management.operations"),
    *("observability.history", "observability.opentelemetry", "observability.prometheus"),
    *("web.access", "web.api", "web.app", "web.server", "web.settings", "web.several"),
    "web.tables",
}
# Names of Python, SQLAlchemy, Django and PySpark.
NOT_OURS = {"_current_frames", "_exit", "_jsc", "_jvm", "_mapping", "_meta", "_replace"}


def test_the_door_is_the_only_way_in() -> None:
    """The contract names every module that guests must not import."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [door] = [each for each in contracts if each["name"] == "Guests come in by the door"]
    assert [f"queue_over_sql.{each}" for each in sorted((modules | packages) - OPEN)] == sorted(
        door["forbidden_modules"]
    )


def test_guests_know_the_public_names_of_others() -> None:
    """A guest imports another guest's package, or a module that its pages name."""
    found = [
        f"{path.relative_to(PACKAGE)}: {node.module}"
        for guest in GUESTS
        for path in sorted((PACKAGE / guest).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (owner := _owner(node.module)) in {*GUESTS} - {guest}
        and f"{node.module}".partition(".")[2] not in {owner, *PUBLIC_MODULES}
    ]
    assert [] == found


def _owner(module: str | None) -> str:
    """The package or module below ours that a module is in."""
    return f"{module}.".split(".")[1] if f"{module}".startswith("queue_over_sql.") else ""


def test_nothing_goes_around_the_door() -> None:
    """No guest takes an object apart by a private name or loads a module by its name."""
    found = [
        f"{path.relative_to(PACKAGE)}: {said}"
        for guest in GUESTS
        for path in sorted((PACKAGE / guest).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (said := _around(node)) is not None
    ]
    assert [] == found


def _around(node: ast.AST) -> str | None:
    """What a node of a guest's code does that no import shows."""
    match node:
        case ast.Attribute(value=owner, attr=name) if (
            name.startswith("_")
            and not name.startswith("__")
            and name not in NOT_OURS
            and not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"})
        ):
            return f"reads .{name}"
        case ast.Call(
            func=ast.Name("getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]
        ) if name.startswith("_") and not name.startswith("__") and name not in NOT_OURS:
            return f"reads {name!r}"
        case ast.Call(
            func=ast.Attribute(attr="import_module"), args=[ast.Constant(str(name)), *_]
        ) if name.startswith("queue_over_sql"):
            return f"loads {name}"
        case _:
            return None
