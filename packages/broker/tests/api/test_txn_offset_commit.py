"""TxnOffsetCommit in every version it is served in, and OffsetFetch of stable offsets."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import offset_fetch, txn_offset_commit
from ottla.broker.api.group_testing import PARTITIONS, GroupServices, ask
from ottla.broker.coordinators.coordinator_partitions import KeyValue, partition_for
from ottla.broker.coordinators.internal_topic_log import TransactionalProducer, build_batch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.records import read_header
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

EVERY_VERSION = pytest.mark.parametrize("version", range(7))
HOME = partition_for("g", PARTITIONS)
TOPIC_ID = UUID(int=1)


def a_commit(offsets: dict[int, int], metadata: str | None = "note", **more: Any) -> TxnOffsetCommitRequest:
    partitions = [
        TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )
        for index, offset in offsets.items()
    ]
    fields: dict[str, Any] = {
        "transactional_id": "t",
        "group_id": "g",
        "producer_id": 7,
        "producer_epoch": 3,
    } | more
    topic = TxnOffsetCommitRequestTopic(name="topic", topic_id=TOPIC_ID, partitions=partitions)
    return TxnOffsetCommitRequest(topics=[topic], **fields)


async def errors(services: GroupServices, request: TxnOffsetCommitRequest, version: int) -> list[int]:
    answer = await ask(services, txn_offset_commit.handle, request, version)
    return [one.error_code for topic in answer.topics for one in topic.partitions]


def a_fetch(version: int, *, stable: bool) -> OffsetFetchRequest:
    """Ask for the offset of partition 0."""
    if version < 8:
        topic = OffsetFetchRequestTopic(name="topic", partition_indexes=[0])
        return OffsetFetchRequest(group_id="g", topics=[topic], require_stable=stable)
    asked = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="topic", partition_indexes=[0])]
    )
    return OffsetFetchRequest(groups=[asked], require_stable=stable)


async def fetched(services: GroupServices, *, stable: bool, version: int = 7) -> list[tuple[int, int]]:
    """The offset and error of partition 0."""
    answer = await ask(services, offset_fetch.handle, a_fetch(version, stable=stable), version)
    topics = answer.topics if version < 8 else answer.groups[0].topics
    return [(one.committed_offset, one.error_code) for topic in topics for one in topic.partitions]


@EVERY_VERSION
async def test_offsets_are_committed_by_the_marker(services: GroupServices, version: int) -> None:
    assert await errors(services, a_commit({0: 5, 1: 6}), version) == [0, 0]
    assert await fetched(services, stable=False) == [(-1, ErrorCode.NONE)]

    services.groups.transaction_ended(HOME, 7, True)

    assert await fetched(services, stable=True) == [(5, ErrorCode.NONE)]


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_a_fetch_that_requires_stable_offsets_is_refused_while_the_transaction_is_open(
    services: GroupServices, version: int
) -> None:
    await errors(services, a_commit({0: 5}), 4)

    assert await fetched(services, stable=True, version=version) == [(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)]
    assert await fetched(services, stable=False, version=version) == [(-1, ErrorCode.NONE)]
    services.groups.transaction_ended(HOME, 7, False)
    assert await fetched(services, stable=True, version=version) == [(-1, ErrorCode.NONE)]


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_stable_offsets_come_from_a_confirmed_coordinator(
    services: GroupServices, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def are_replaced(group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        return dict.fromkeys(group_ids, ErrorCode.NOT_COORDINATOR)

    monkeypatch.setattr(services.groups.offsets, "confirm_coordinators", are_replaced)

    answer = await ask(services, offset_fetch.handle, a_fetch(version, stable=True), version)
    one = answer if version < 8 else answer.groups[0]
    assert one.error_code == ErrorCode.NOT_COORDINATOR
    codes = {partition.error_code for topic in one.topics for partition in topic.partitions}
    assert codes == ({ErrorCode.NOT_COORDINATOR} if version < 8 else set())
    assert await fetched(services, stable=False, version=version) == [(-1, ErrorCode.NONE)]


async def test_metadata_may_be_null_and_may_not_be_long(services: GroupServices) -> None:
    assert await errors(services, a_commit({0: 5}, metadata=None), 4) == [ErrorCode.NONE]
    assert await errors(services, a_commit({0: 5}, metadata="x" * 11), 4) == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE
    ]


async def test_offsets_of_unknown_partitions_are_refused_and_the_others_committed(
    services: GroupServices,
) -> None:
    assert await errors(services, a_commit({0: 5, 9: 5}), 4) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await errors(services, a_commit({9: 5}), 4) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_the_coordinator_verifies_the_first_commit_of_a_transaction(services: GroupServices) -> None:
    assert await errors(services, a_commit({0: 5}), 4) == [0]
    assert services.verification.asked == ["t"]
    batch = build_batch([KeyValue(b"key", b"value")], 0, producer=TransactionalProducer(7, 3))
    log = services.replicas.leader(TopicPartition(GROUP_METADATA_TOPIC, HOME)).log
    log.producers.apply(read_header(batch), 0)

    assert await errors(services, a_commit({0: 6}), 4) == [0]

    assert services.verification.asked == ["t"], "it is open here: nobody has to be asked"


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_offsets_that_are_not_verified_are_not_written(
    services: GroupServices, refusal: ErrorCode, answer: ErrorCode
) -> None:
    services.verification.error = refusal

    assert await errors(services, a_commit({0: 5}), 4) == [answer]
    services.groups.transaction_ended(HOME, 7, True)
    assert await fetched(services, stable=True) == [(-1, ErrorCode.NONE)]


async def test_without_verification_the_coordinator_is_not_asked(services: GroupServices) -> None:
    services.verification.is_enabled = False

    assert await errors(services, a_commit({0: 5}), 4) == [ErrorCode.NONE]
    assert services.verification.asked == []


async def test_old_producers_are_not_told_of_a_load(services: GroupServices) -> None:
    services.verification.error = ErrorCode.NETWORK_EXCEPTION

    assert await errors(services, a_commit({0: 5}), 1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert await errors(services, a_commit({0: 5}), 2) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


async def test_a_group_of_another_coordinator_and_no_group_are_refused(services: GroupServices) -> None:
    assert await errors(services, a_commit({0: 5}, group_id=""), 4) == [ErrorCode.INVALID_GROUP_ID]
    services.groups.leadership_changed(
        [], [(TopicPartition(GROUP_METADATA_TOPIC, number), 1) for number in range(PARTITIONS)]
    )

    assert await errors(services, a_commit({0: 5, 99: 5}), 4) == [ErrorCode.NOT_COORDINATOR] * 2
    assert services.verification.asked == []


async def test_members_of_an_unknown_generation_are_refused_from_version_3(services: GroupServices) -> None:
    request = a_commit({0: 5}, member_id="m", generation_id=4)

    assert await errors(services, request, 3) == [ErrorCode.UNKNOWN_MEMBER_ID]


# ---- version 2 of transactions


@pytest.mark.parametrize("version", [5, 6])
async def test_the_partition_of_the_group_joins_the_transaction(
    services: GroupServices, version: int
) -> None:
    services.verification.is_enabled = False  # which is about the earlier versions

    assert await errors(services, a_commit({0: 5}), version) == [ErrorCode.NONE]

    assert services.verification.joined == {TopicPartition(GROUP_METADATA_TOPIC, HOME)}


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_offsets_of_a_group_that_does_not_join_are_not_written(
    services: GroupServices, refusal: ErrorCode, answer: ErrorCode
) -> None:
    services.verification.error = refusal

    assert await errors(services, a_commit({0: 5}), 5) == [answer]

    services.groups.transaction_ended(HOME, 7, True)
    assert await fetched(services, stable=True) == [(-1, ErrorCode.NONE)]


async def test_a_topic_of_an_unknown_id_is_refused(services: GroupServices) -> None:
    request = a_commit({0: 5})
    request.topics[0].topic_id = UUID(int=99)

    assert await errors(services, request, 6) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert services.verification.asked == []
