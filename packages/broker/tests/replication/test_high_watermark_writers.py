"""Only `replication/partition.py` writes a high watermark: read from the broker's sources."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.broker.replication.partition as core

BROKER = Path(core.__file__).parents[1]
WRITER = "replication/partition.py"
STATE = "log/state/log_state.py"
CREATORS = {STATE, WRITER}
"""Where a cell is defined, created with its log, and created by a core that stands alone."""

OWN = "writes a high_watermark of its own"

NATIVE_WRITE = re.compile(
    r"(?:\bwatermark\s*\.\s*offset|\.\s*(?:high_)?watermark)\b(?!\s*\.)[^()=]*(?<![=!<>])=(?!=)"
)
NATIVE_ALIAS = re.compile(r"\.\s*watermark\b(?!\s*\.\s*offset)")


def python_findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what writes a cell, hides one behind another name, or creates one."""
    followed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    handed_over = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            stored = not isinstance(node.ctx, ast.Load)
            if stored and node.attr == "offset" and name_of(node.value) == "watermark":
                yield node.lineno, "writes the cell"
            elif stored and node.attr == "high_watermark":
                yield node.lineno, OWN if name_of(node.value) == "self" else "writes a high watermark"
            elif stored and node.attr == "watermark":
                yield node.lineno, "replaces the cell"
            elif node.attr == "watermark" and id(node) not in followed | handed_over:
                yield node.lineno, "gives the cell another name"
        elif isinstance(node, ast.Call) and name_of(node.func) == "HighWatermark":
            yield node.lineno, "creates a cell"
        elif isinstance(node, ast.Call) and name_of(node.func) in ("setattr", "__setattr__"):
            names = {one.value for one in node.args if isinstance(one, ast.Constant)}
            if names & {"watermark", "high_watermark", "offset"}:
                yield node.lineno, "writes by name"


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def native_findings(text: str) -> Iterator[tuple[int, str]]:
    """The same for Cython, line by line: strings and comments left out."""
    for number, line in enumerate(code_lines(text), 1):
        if NATIVE_WRITE.search(line):
            yield number, "writes a high watermark"
        elif NATIVE_ALIAS.search(line):
            yield number, "gives the cell another name"
        elif "HighWatermark(" in line:
            yield number, "creates a cell"


def code_lines(text: str) -> list[str]:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            (first, start), (last, end) = token.start, token.end
            for number in range(first - 1, last):
                line = lines[number]
                left = start if number == first - 1 else 0
                right = end if number == last - 1 else len(line)
                lines[number] = line[:left] + " " * (right - left) + line[right:]
    return lines


def findings(name: str, text: str) -> list[tuple[int, str]]:
    return sorted(python_findings(ast.parse(text)) if name.endswith(".py") else native_findings(text))


def is_allowed(name: str, what: str) -> bool:
    if what == OWN:  # what a fetch session remembers of its answers
        return name.startswith("api/")
    return name == WRITER or (name in CREATORS and what in ("creates a cell", "replaces the cell"))


SOURCES = sorted(
    str(path.relative_to(BROKER))
    for path in BROKER.rglob("*.p*")
    if path.suffix in {".py", ".pyx", ".pxd", ".pxi"}
)


def test_only_the_replication_core_writes_a_high_watermark() -> None:
    found = [
        f"{name}:{line} {what}"
        for name in SOURCES
        for line, what in findings(name, (BROKER / name).read_text())
        if not is_allowed(name, what)
    ]

    assert found == []


def test_the_log_creates_exactly_one_cell() -> None:
    found = [what for _, what in findings(STATE, (BROKER / STATE).read_text())]

    assert sorted(found) == ["creates a cell", "replaces the cell"]


def test_the_core_does_write_it() -> None:
    assert "writes the cell" in [what for _, what in findings(WRITER, (BROKER / WRITER).read_text())]


@pytest.mark.parametrize(
    "line",
    [
        "log.watermark.offset = 1",
        "log.watermark.offset += 1",
        "core.high_watermark = log.high_watermark = 1",
        "core.high_watermark, end = 1, 2",
        "self.log.high_watermark = 1",
        "log.watermark = other",
        "cell = log.watermark",
        "log.watermark = HighWatermark(7)",
    ],
)
@pytest.mark.parametrize("suffix", ["py", "pyx"])
def test_every_way_to_write_it_is_found(line: str, suffix: str) -> None:
    assert findings(f"one.{suffix}", line + "\n")


@pytest.mark.parametrize(
    "line",
    [
        "high_watermark = log.watermark.offset",
        "ok = core.high_watermark == 1",
        "ok = core.high_watermark <= 1",
        "high_watermark, start = core.high_watermark, 1",
        "answer(one.high_watermark, size)",
    ],
)
@pytest.mark.parametrize("suffix", ["py", "pyx"])
def test_reading_it_is_no_finding(line: str, suffix: str) -> None:
    assert findings(f"one.{suffix}", line + "\n") == []
