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
