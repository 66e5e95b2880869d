from __future__ import annotations

import pytest

from ottla.consumer.cli import _only
from ottla.protocol.topics import TopicPartition

KNOWN = {"a": {0, 1}, "b": {0}}


def test_one_partition_is_taken_from_every_topic() -> None:
    assert _only(0, KNOWN) == [TopicPartition("a", 0), TopicPartition("b", 0)]


def test_a_partition_that_is_not_there_is_refused_and_not_waited_for() -> None:
    with pytest.raises(ValueError, match="topic 'b' has no partition 1, only 0 to 0"):
        _only(1, KNOWN)
