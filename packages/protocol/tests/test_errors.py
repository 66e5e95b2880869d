"""The table of Kafka's errors."""

from __future__ import annotations

import pytest

from ottla.protocol import errors
from ottla.protocol.errors import (
    CorruptMessage,
    ErrorCode,
    FencedLeaderEpoch,
    InvalidTopicException,
    KafkaError,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_class,
    error_for,
)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code], ids=lambda code: code.name)
def test_every_code_has_a_class_of_its_name(code: ErrorCode) -> None:
    cls = error_class(code)

    assert cls.__name__ == "".join(word.capitalize() for word in code.name.split("_"))
    assert cls.code == code
    assert cls.description
    assert getattr(errors, cls.__name__) is cls


def test_codes_have_no_gaps() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 137))


def test_an_error_reads_as_its_description_unless_it_says_more() -> None:
    assert str(CorruptMessage()) == CorruptMessage.description
    assert CorruptMessage().message is None
    assert str(CorruptMessage("bad crc")) == "bad crc"
    assert CorruptMessage("bad crc").message == "bad crc"


def test_a_code_becomes_its_error() -> None:
    error = error_for(6, "moved")

    assert isinstance(error, NotLeaderOrFollower)
    assert error.retriable
    assert error.refresh_metadata
    assert str(error) == "moved"


def test_a_code_from_the_future_is_an_unknown_server_error() -> None:
    error = error_for(999, "new")

    assert isinstance(error, UnknownServerError)
    assert str(error) == "code 999: new"


def test_success_is_no_error() -> None:
    with pytest.raises(ValueError, match="success"):
        error_for(0)


def test_two_classes_cannot_share_a_code() -> None:
    with pytest.raises(TypeError, match="have the code 3"):
        type("Another", (KafkaError,), {"code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


@pytest.mark.parametrize(
    ("cls", "retriable", "refresh_metadata"),
    [
        (UnknownTopicOrPartition, True, True),
        (FencedLeaderEpoch, True, True),
        (errors.NotController, True, False),
        (errors.NotCoordinator, True, False),
        (errors.ConcurrentTransactions, True, False),
        (InvalidTopicException, False, False),
        (errors.BrokerNotAvailable, False, False),
        (errors.RebalanceInProgress, False, False),
    ],
)
def test_what_a_client_may_do_is_what_kafka_says(
    cls: type[KafkaError], retriable: bool, refresh_metadata: bool
) -> None:
    assert (cls.retriable, cls.refresh_metadata) == (retriable, refresh_metadata)
