"""The rules for words, sizes and Protocols find what they are meant to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from structure.house_rules import (
    CLEAN_PACKAGES,
    docstring_faults,
    is_too_long,
    is_too_small,
    loop_faults,
    subject_faults,
    word_faults,
)
from structure.protocols import written_through
from structure.sources import Source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a package."""
    folder = tmp_path / "packages" / "toy" / "src" / "ottla" / "toy"
    folder.mkdir(parents=True)
    return folder


def source(folder: Path, name: str, text: str) -> Source:
    (folder / name).write_text(text)
    return Source(folder / name)


@pytest.mark.parametrize(
    ("subject", "faults"),
    [
        ("consumer: send LeaveGroup before a rejoin during shutdown", 0),
        ("consumer: letters are sent", 0),
        ("client: let other tasks run", 1),
        ("Say what is wrong", 1),
        (f"broker: {'x' * 64}", 0),
        (f"broker: {'x' * 65}", 1),
        (f"tests: tell {'x' * 80}", 2),
    ],
)
def test_subjects_are_short_and_begin_with_what_a_commit_does(subject: str, faults: int) -> None:
    assert len(list(subject_faults(subject))) == faults


def test_riddles_are_found_in_first_lines_only(folder: Path) -> None:
    read = source(
        folder,
        "words.py",
        '"""What is counted."""\n\n\nclass Outlet:\n    """An outlet.\n\n    Nobody reads it.\n    """\n\n'
        '    def open(self):\n        """Open it anew."""\n\n'
        '    def close(self):\n        """Have it closed; what it holds is dropped."""\n',
    )

    assert [fault.rpartition("words.py:")[2] for fault in docstring_faults(read)] == [
        "1: 'What is' in 'What is counted.'",
        "11: 'anew' in 'Open it anew.'",
        "14: 'Have' in 'Have it closed; what it holds is dropped.'",
    ]


def test_loops_over_each_or_one_are_found(folder: Path) -> None:
    read = source(folder, "loops.py", "for each in []:\n    print([one for one in [each] for pair in [1]])\n")

    found = [fault.rpartition("loops.py:")[2] for fault in loop_faults(read)]
    assert found == ["1: 'each' runs over '[]'", "2: 'one' runs over '[each]'"]


@pytest.mark.parametrize(
    ("count", "docstring", "too_long"),
    [
        (500, "", False),
        (501, "", True),
        (501, "501 lines\nbecause of a table", False),
        (801, "lines because", True),
    ],
)
def test_a_reason_allows_a_module_of_800_lines(
    count: int, docstring: str, too_long: bool, folder: Path
) -> None:
    text = f'"""{docstring}"""\n'
    read = source(folder, "long.py", text + "x = 1\n" * (count - text.count("\n")))

    assert is_too_long(read) == too_long


def test_a_small_module_may_be_a_facade_or_a_message(folder: Path) -> None:
    (folder / "messages").mkdir()

    assert is_too_small(source(folder, "retry.py", "LIMIT = 3\n"))
    assert not is_too_small(source(folder, "public.py", "from os import path\n\n__all__ = ['path']\n"))
    assert not is_too_small(source(folder / "messages", "fetch.py", "VERSION = 3\n"))
    assert not is_too_small(source(folder, "__main__.py", "print()\n"))
    (folder / "api").mkdir()
    assert not is_too_small(source(folder / "api", "heartbeat.py", "async def handle(): ...\n"))
    assert is_too_small(source(folder, "rolling.py", "async def handle(): ...\n"))


_STATE = """from typing import Protocol


class {protocol}(Protocol):
    end: int

    def flush(self) -> None: ...


def truncate(log: {protocol}, offset: int) -> None:
    {effect}


class Log:
    def __init__(self) -> None:
        self.end = 0

    def flush(self) -> None: ...
"""


_HOLDER = """

class Truncation:
    def __init__(self, log: Held | None) -> None:
        self._log = log

    def run(self) -> None:
        self._log.end += 1
"""


def test_a_protocol_of_one_implementer_is_not_written_through(folder: Path) -> None:
    written = source(folder, "a.py", _STATE.format(protocol="Truncated", effect="log.end = offset"))
    read = source(folder, "b.py", _STATE.format(protocol="Read", effect="print(log.end)"))

    assert list(written_through([written])) == ["ottla.toy.a.Truncated"]
    assert not written_through([read])
    assert not written_through([written, read])  # each has a class that fits


def test_a_protocol_that_a_class_holds_is_found(folder: Path) -> None:
    state = _STATE.format(protocol="Held", effect="log.flush()")
    written = source(folder, "held.py", state + _HOLDER)

    (places,) = written_through([written]).values()
    assert places[0].endswith("held.py:26 end")


def test_docstrings_of_clean_packages_and_new_commits_keep_the_rules() -> None:
    assert not list(word_faults(CLEAN_PACKAGES, "HEAD"))
