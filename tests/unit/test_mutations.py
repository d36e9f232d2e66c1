"""The mutations of ``tests/mutations`` still match the code that they change."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
MUTATIONS = ROOT / "tests" / "mutations"
FILES = sorted(MUTATIONS.rglob("*.toml"))


def test_each_mutation_finds_its_place_in_the_code() -> None:
    """What it finds is there exactly once, and the tests that must fail then are there."""
    wrong = [
        f"{file.relative_to(ROOT)}: {mutation['rule']} {said}"
        for file in FILES
        for mutation in tomllib.loads(file.read_text())["mutation"]
        for said in _wrong(mutation)
    ]
    assert not wrong, "\n".join(wrong)


def test_each_file_has_the_name_of_its_tests() -> None:
    """``./scripts/mutations contract/test_retry`` is about ``tests/contract/test_retry.py``."""
    named = [ROOT / "tests" / file.relative_to(MUTATIONS).with_suffix(".py") for file in FILES]
    assert [] == [str(file.relative_to(ROOT)) for file in named if not file.exists()]


def _wrong(mutation: Mapping[str, Any]) -> Iterator[str]:
    times = (ROOT / mutation["file"]).read_text().count(mutation["find"])
    if times != 1:
        yield f"`find` occurs {times} times in {mutation['file']}"
    tests = [each.split("::")[0] for each in mutation["tests"] if each.startswith("tests/")]
    if not tests:
        yield "`tests` names no tests"
    for file in tests:
        if not (ROOT / file).exists():
            yield f"`tests` names {file}, which is not there"
