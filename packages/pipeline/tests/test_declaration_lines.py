"""Line numbers of settings in declaration files."""

from __future__ import annotations

import pytest

from ottla.pipeline.jobs.declaration_errors import SettingPath
from ottla.pipeline.jobs.declaration_files import PythonLines, TomlLines

TOML = '''# a comment
kind = "logs"
name = "x"

[source]
topics = [
    "a",
    "b",
]
text = """
[sink]
path = 1
"""

# about the sink
[sink]
path = "lake"
options.kafka.acks = "all"
inline = {deep = 1, deeper = 2}

[[rules]]
limit = 1
[[rules]]
limit = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("kind",), 2),
        (("name",), 3),
        (("source",), 5),
        (("source", "topics"), 6),
        (("source", "topics", 1), 6),
        (("source", "text"), 10),
        (("sink",), 16),
        (("sink", "path"), 17),
        (("sink", "options", "kafka", "acks"), 18),
        (("sink", "inline", "deeper"), 19),
        (("rules", 0, "limit"), 22),
        (("rules", 1), 23),
        (("rules", 1, "limit"), 24),
        (("rules", 1, "missing"), 23),
        (("sink", "missing", "more"), 16),
        (("missing",), 1),
        ((), 1),
    ],
)
def test_lines_of_toml(path: SettingPath, line: int) -> None:
    assert TomlLines(TOML).of(path) == line


PYTHON = """
name = "x"
sink = {"path": name}
pipeline = {
    "kind": "logs",
    "source": dict(
        topics=["a",
                "b"],
    ),
    "sink": sink,
}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 4),
        (("kind",), 5),
        (("source", "topics"), 7),
        (("source", "topics", 1), 8),
        (("source", "missing"), 6),
        (("sink", "path"), 10),
        (("missing",), 4),
    ],
)
def test_lines_of_python(path: SettingPath, line: int) -> None:
    assert PythonLines(PYTHON, "pipeline").of(path) == line


def test_a_file_without_the_variable_is_about_its_first_line() -> None:
    assert PythonLines("x = 1", "pipeline").of(("kind",)) == 1
