import sys
from functools import reduce
from types import FrameType
from typing import Any

import pytest

from ottla.broker.coordinators.coordinator_partitions import java_string_hash, partition_for


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
        ("the quick brown fox jumps over the lazy dog", -2082818701),
    ],
)
def test_strings_hash_as_in_java(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("group_id", "partition"), [("", 0), ("a", 47), ("hello", 22), ("polygenelubricants", 0)]
)
def test_a_group_is_kept_in_the_same_partition_as_in_kafka(group_id: str, partition: int) -> None:
    assert partition_for(group_id, 50) == partition


def test_a_negative_hash_gives_a_partition_too() -> None:
    assert partition_for("the quick brown fox jumps over the lazy dog", 50) == 2082818701 % 50


def lines_run(text: str) -> int:
    """Count the lines of code that the hash of a text runs through."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code is java_string_hash.__code__
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        java_string_hash(text)
    finally:
        sys.settrace(before)
    return count


def test_the_longest_id_is_hashed_many_units_at_a_time() -> None:
    longest = "\u00e9-" * 16_383 + "x"
    by_unit = reduce(lambda value, unit: (31 * value + ord(unit)) % 2**32, longest, 0)

    assert java_string_hash(longest) % 2**32 == by_unit
    assert lines_run(longest) < len(longest) // 16
