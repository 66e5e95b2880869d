"""The requests of the recorded conversations about logs, transactions, the cluster and clients' metrics.

650 lines because a conversation is a list of requests, with as many lines as they have fields.
"""

from __future__ import annotations

import gzip
from typing import Any, Final
from uuid import UUID

from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.cluster import (
    DescribeClusterRequest,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.messages.log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.log_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.open_transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from ottla.protocol.messages.open_transactions import TopicRequest as ProducersTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.producer_ids import InitProducerIdRequest
from ottla.protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from ottla.protocol.messages.topic_descriptions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from peers.conversations import Cases, Changes, Conversation, batch, cases

NOWHERE: Final = UUID(int=7)
NO_ID: Final = UUID(int=0)
GROUP_CONFIG: Final = 32
CLIENT_METRICS: Final = 16
LATEST_TIERED, EARLIEST_LOCAL, MAX_TIMESTAMP, EARLIEST, LATEST = -5, -4, -3, -2, -1


def _produced(topic: str, records: bytes, **changes: Any) -> ProduceRequest:
    data = PartitionProduceData(index=changes.pop("partition", 0), records=records)
    named = TopicProduceData(name=topic, topic_id=changes.pop("topic_id", NO_ID), partition_data=[data])
    fields: Changes = {"acks": -1, "timeout_ms": 30_000, "topic_data": [named]}
    return ProduceRequest(**fields | changes)


def _of_producer(producer: Any, *values: str, sequence: int = 0, **options: Any) -> bytes:
    """Return a batch of a producer: a response of InitProducerId or EndTxn."""
    options = {"transactional": True} | options
    return batch(
        *values,
        **{
            "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch,
            "base_sequence": sequence,
        } | options,
    )  # fmt: skip


# ---- logs


async def logs(talk: Conversation) -> None:
    topic_id = await talk.topic("logs", 2)
    for version in (12, 13):
        name, of = ("logs", NO_ID) if version == 12 else ("", topic_id)
        for title, changes in cases(
            {
                "records are written": {},
                "records for a partition that is not there are written": {"partition": 9},
                "records with acks of 5 are written": {"acks": 5},
                "records of a transaction without an id are written": {
                    "records": batch(
                        "t", producer_id=1 << 40, producer_epoch=0, base_sequence=0, transactional=True
                    )
                },
                "damaged records are written": {"records": batch("d")[:-1] + b"\x99"},
                "no records are written": {"records": b""},
                "records of an unknown producer are written": {
                    "records": batch("p", producer_id=1 << 40, producer_epoch=0, base_sequence=5)
                },
            }
        ):
            records = changes.pop("records", batch("a", "b"))
            await talk.ask(f"{title}, {version}", _produced(name, records, topic_id=of, **changes), version)
    await talk.ask("records of an unknown topic are written, 12", _produced("of-nobody", batch("a")), 12)
    await talk.ask(
        "records of an unknown topic are written, 13", _produced("", batch("a"), topic_id=NOWHERE), 13
    )
    await talk.ask("records of a topic without an id are written", _produced("", batch("a")), 13)
    await _fetches(talk, topic_id)
    await _listed_offsets(talk)


async def _fetches(talk: Conversation, topic_id: UUID) -> None:
    def asked(**changes: Any) -> FetchRequest:
        fields: Changes = {
            "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
        }  # fmt: skip
        part = FetchPartition(**{key: changes.pop(key, value) for key, value in fields.items()})
        topics = [FetchTopic(topic_id=changes.pop("topic_id", topic_id), partitions=[part])]
        good: Changes = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics, "session_epoch": -1}
        return FetchRequest(**good | changes)

    for version in (16, 17, 18):
        for title, changes in cases(
            {
                "records": {},
                "records from the middle": {"fetch_offset": 3},
                "records after the end": {"fetch_offset": 900},
                "records before the start": {"fetch_offset": -4},
                "a partition that is not there": {"partition": 9},
                "an unknown topic": {"topic_id": NOWHERE},
                "a topic without an id": {"topic_id": NO_ID},
                "a leader's epoch of the future": {"current_leader_epoch": 9},
                "a last epoch of the future": {"last_fetched_epoch": 9},
                "committed records": {"isolation_level": 1},
                "an isolation that there is not": {"isolation_level": 7},
                "a session that there is not": {"session_id": 77, "session_epoch": 3},
                "a session without an id goes on": {"session_id": 0, "session_epoch": 3},
                "a cluster that is another one": {"cluster_id": "of-nobody"},
            }
        ):
            await talk.ask(f"fetched: {title}, {version}", asked(**changes), version)
        begun = await talk.ask(
            f"a session begins, {version}", asked(session_epoch=0, fetch_offset=4), version
        )
        talk.name(begun.session_id, f"session of version {version}")
        of: Changes = {"session_id": begun.session_id, "topics": []}
        await talk.ask(f"nothing is new in the session, {version}", asked(**of, session_epoch=1), version)
        await talk.ask(f"the session in a wrong epoch, {version}", asked(**of, session_epoch=1), version)
        forgotten = [ForgottenTopic(topic_id=topic_id, partitions=[0])]
        await talk.ask(
            f"a partition is forgotten, {version}",
            asked(**of, session_epoch=2, forgotten_topics_data=forgotten),
            version,
        )
        await talk.ask(f"the session ends, {version}", asked(**of, session_epoch=-1), version)
        await talk.ask(f"the session has ended, {version}", asked(**of, session_epoch=3), version)


async def _listed_offsets(talk: Conversation) -> None:
    for version in (9, 10, 11):
        for title, timestamp, changes in (
            ("the earliest", EARLIEST, {}),
            ("the latest", LATEST, {}),
            ("the newest", MAX_TIMESTAMP, {}),
            ("the earliest in the local log", EARLIEST_LOCAL, {}),
            ("the latest in the remote log", LATEST_TIERED, {}),
            ("the earliest that is yet to be uploaded", -6, {}),
            ("a time that there is not", -7, {}),
            ("a time in the past", 1, {}),
            ("a time in the future", 1 << 50, {}),
            ("a partition that is not there", LATEST, {"partition_index": 9}),
            ("a leader's epoch of the future", LATEST, {"current_leader_epoch": 9}),
        ):
            part = ListOffsetsPartition(**{"partition_index": 0, "timestamp": timestamp} | changes)
            topics = [ListOffsetsTopic(name="logs", partitions=[part])]
            request = ListOffsetsRequest(replica_id=-1, topics=topics)
            await talk.ask(f"offsets: {title}, {version}", request, version)
        part = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        unknown = ListOffsetsTopic(name="of-nobody", partitions=[part])
        request = ListOffsetsRequest(replica_id=-1, topics=[unknown], isolation_level=1)
        await talk.ask(f"offsets: an unknown topic, {version}", request, version)


# ---- transactions


def _init(transactional_id: str | None, **changes: Any) -> InitProducerIdRequest:
    fields: Changes = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
    return InitProducerIdRequest(**fields | changes)


async def begun_producer(talk: Conversation, transactional_id: str) -> Any:
    return await talk.repeat(_init(transactional_id), 5, lambda answer: answer.error_code == 0)


def _end(name: str, producer: Any, *, committed: bool = True, **changes: Any) -> EndTxnRequest:
    fields: Changes = {
        "transactional_id": name, "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch, "committed": committed,
    }  # fmt: skip
    return EndTxnRequest(**fields | changes)


async def ended_transaction(
    talk: Conversation, transactional_id: str, topic: str, *, committed: bool
) -> None:
    """Write a record in a transaction of version 2, and end it; nothing of it is written down."""
    producer = await begun_producer(talk, transactional_id)
    records = _of_producer(producer, "committed" if committed else "aborted")
    request = _produced(topic, records, transactional_id=transactional_id)

    def is_done(answer: Any) -> bool:
        if hasattr(answer, "error_code"):
            return bool(answer.error_code == 0)
        return bool(answer.responses[0].partition_responses[0].error_code == 0)

    await talk.repeat(request, 12, is_done)
    await talk.repeat(_end(transactional_id, producer, committed=committed), 5, is_done)
    await _stable(talk, topic)


async def _stable(talk: Conversation, topic: str) -> None:
    """Wait until no transaction is open in a topic of one partition."""

    async def end(isolation_level: int) -> int:
        part = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsTopic(name=topic, partitions=[part])],
            isolation_level=isolation_level,
        )
        offset: int = (await talk.prepare(request, 9)).topics[0].partitions[0].offset
        return offset

    while await end(0) != await end(1):
        pass


async def transactions(talk: Conversation) -> None:
    topic_id = await talk.topic("payments")
    producer = await talk.until("a producer begins", _init("pay"), 5, lambda answer: answer.error_code == 0)
    talk.name(producer.producer_id, "producer of pay")
    for title, request in {
        "a producer begins without an id": _init(None),
        "a producer begins with an empty id": _init(""),
        "a timeout of 0": _init("timeout-0", transaction_timeout_ms=0),
        "a timeout that is too long": _init("timeout-1", transaction_timeout_ms=10**9),
        "a producer of another id": _init("pay", producer_id=1 << 41, producer_epoch=0),
        "an epoch of the future": _init("pay", producer_id=producer.producer_id, producer_epoch=9),
        "an unknown id goes on": _init("unknown", producer_id=1 << 40, producer_epoch=0),
    }.items():
        await talk.ask(title, request, 5)
    producer = await talk.ask("the producer begins again", _init("pay"), 5)
    await _added_partitions(talk, producer)
    first = _produced("payments", _of_producer(producer, "x"), transactional_id="pay")
    await talk.ask("a record joins its partition to the transaction, 12", first, 12)
    later = _produced("", _of_producer(producer, "y", sequence=1), transactional_id="pay", topic_id=topic_id)
    await talk.ask("another record, 13", later, 13)
    for title, changes in cases(
        {
            "an epoch of the past writes": {"producer_epoch": producer.producer_epoch - 1},
            "an epoch of the future writes": {"producer_epoch": producer.producer_epoch + 3},
            "a sequence that was left out": {"base_sequence": 9},
            "a record that came before": {"base_sequence": 1},
        }
    ):
        records = _of_producer(producer, "z", sequence=2, **changes)
        await talk.ask(title, _produced("payments", records, transactional_id="pay"), 12)
    other = _produced("payments", _of_producer(producer, "z", sequence=2), transactional_id="another")
    await talk.ask("a record under another id", other, 12)
    await talk.ask(
        "the transaction is described", DescribeTransactionsRequest(transactional_ids=["pay", "x"])
    )
    producers = DescribeProducersRequest(topics=[ProducersTopic(name="payments", partition_indexes=[0, 9])])
    await talk.ask("producers are described", producers)
    await _committed_offsets(talk, producer, topic_id)
    await _listed(talk, producer)
    await _ended(talk, producer, topic_id)
    await _markers(talk)


async def _added_partitions(talk: Conversation, producer: Any) -> None:
    for version in (4, 5):
        transaction: Changes = {
            "transactional_id": "pay", "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }  # fmt: skip
        topics = [AddPartitionsToTxnTopic(name="payments", partitions=[0])]
        every_case: Cases = {
            "a partition is asked about": {"verify_only": True},
            "an unknown id is asked about": {"verify_only": True, "transactional_id": "nobody"},
            "an epoch of the past is asked about": {"verify_only": True, "producer_epoch": -1},
            "another producer is asked about": {"verify_only": True, "producer_id": 1 << 40},
            "a partition is added": {},
            "an added partition is asked about": {"verify_only": True},
            "an epoch of the future adds": {"producer_epoch": 99},
            "an unknown id adds": {"transactional_id": "nobody"},
            "an empty id adds": {"transactional_id": ""},
            "nothing is added": {"topics": []},
        }
        for title, changes in every_case.items():
            asked = AddPartitionsToTxnTransaction(**{**transaction, "topics": topics, **changes})
            await talk.ask(f"{title}, {version}", AddPartitionsToTxnRequest(transactions=[asked]), version)
        unknown = AddPartitionsToTxnTopic(name="of-nobody", partitions=[0])
        asked = AddPartitionsToTxnTransaction(**transaction, topics=[*topics, unknown])
        request = AddPartitionsToTxnRequest(transactions=[asked])
        await talk.ask(f"an unknown topic is added, {version}", request, version)
        both = [
            AddPartitionsToTxnTransaction(**{**transaction, "topics": topics, "verify_only": True, **changes})
            for changes in ({}, {"transactional_id": "nobody"})
        ]
        request = AddPartitionsToTxnRequest(transactions=both)
        await talk.ask(f"two transactions are asked about, {version}", request, version)


async def _committed_offsets(talk: Conversation, producer: Any, topic_id: UUID) -> None:
    add = AddOffsetsToTxnRequest(
        transactional_id="pay", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        group_id="payers",
    )  # fmt: skip
    for version in (5, 6):
        topic = {"name": "payments"} if version == 5 else {"topic_id": topic_id}
        unknown = {"name": "of-nobody"} if version == 5 else {"topic_id": NOWHERE}
        for title, changes, of in (
            ("offsets are committed in a transaction", {}, topic),
            ("offsets of an unknown topic", {}, unknown),
            ("offsets of an epoch of the past", {"producer_epoch": producer.producer_epoch - 1}, topic),
            ("offsets of another producer", {"producer_id": 1 << 40}, topic),
            ("offsets of an unknown id", {"transactional_id": "nobody"}, topic),
            ("offsets of an unknown member", {"member_id": "stranger", "generation_id": 3}, topic),
            ("offsets of an unknown instance", {"group_instance_id": "till"}, topic),
            ("offsets of a group without a name", {"group_id": ""}, topic),
        ):
            part = TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
            fields: Changes = {
                "transactional_id": "pay", "group_id": "payers", "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch, "generation_id": -1, "member_id": "",
                "topics": [TxnOffsetCommitRequestTopic(partitions=[part], **of)],
            }  # fmt: skip
            await talk.ask(f"{title}, {version}", TxnOffsetCommitRequest(**fields | changes), version)
    await talk.ask("offsets are added as of old", add, 4)


async def _listed(talk: Conversation, producer: Any) -> None:
    for version in (1, 2):
        for title, changes in cases(
            {
                "all": {},
                "ongoing ones": {"state_filters": ["Ongoing"]},
                "ones in a state that there is not": {"state_filters": ["Asleep", "Empty"]},
                "ones of a producer": {"producer_id_filters": [producer.producer_id]},
                "ones of an unknown producer": {"producer_id_filters": [1 << 40]},
                "ones that last for a day": {"duration_filter": 86_400_000},
            }
        ):
            await talk.ask(f"transactions: {title}, {version}", ListTransactionsRequest(**changes), version)
    for pattern in ("pa.*", "p", "pay|x", "[", "", "(?=a)"):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        await talk.ask(f"transactions that match {pattern!r}", request, 2)


async def _ended(talk: Conversation, producer: Any, topic_id: UUID) -> None:
    for title, changes in cases(
        {
            "an unknown id ends": {"transactional_id": "nobody"},
            "an epoch of the past ends": {"producer_epoch": producer.producer_epoch - 1},
            "an epoch of the future ends": {"producer_epoch": producer.producer_epoch + 4},
            "another producer ends": {"producer_id": 1 << 40},
        }
    ):
        await talk.ask(title, _end("pay", producer, **changes), 5)
    following = await talk.ask("the transaction is committed", _end("pay", producer), 5)
    await talk.until(
        "it is complete",
        DescribeTransactionsRequest(transactional_ids=["pay"]),
        0,
        lambda answer: answer.transaction_states[0].transaction_state == "CompleteCommit",
    )
    await talk.ask("it is committed again", _end("pay", producer), 5)
    await talk.ask("it is aborted afterwards", _end("pay", producer, committed=False), 5)
    records = _of_producer(producer, "late", sequence=5)
    await talk.ask("its epoch writes", _produced("payments", records, transactional_id="pay"), 12)
    await talk.ask("an empty transaction is aborted", _end("pay", following, committed=False), 5)
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=0, min_bytes=0, session_epoch=-1, isolation_level=1,
        topics=[FetchTopic(topic_id=topic_id, partitions=[part])],
    )  # fmt: skip
    await talk.ask("the committed records and their marker", fetch, 18)


async def _markers(talk: Conversation) -> None:
    open_one = await talk.ask("another producer begins", _init("open"), 5)
    await talk.ask(
        "it writes", _produced("payments", _of_producer(open_one, "o"), transactional_id="open"), 12
    )
    for version in (1, 2):
        for title, changes, topics in (
            ("a marker for an unknown topic", {}, {"of-nobody": [0]}),
            ("a marker for a partition that is not there", {}, {"payments": [9]}),
            ("a marker of an epoch of the past", {"producer_epoch": -1}, {"payments": [0]}),
            ("a marker of an unknown producer", {"producer_id": 1 << 40}, {"payments": [0]}),
            ("a marker", {"transaction_result": version == 1}, {"payments": [0]}),
        ):
            fields: Changes = {
                "producer_id": open_one.producer_id, "producer_epoch": open_one.producer_epoch + version - 1,
                "coordinator_epoch": 0, "transaction_result": True,
                "topics": [
                    WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ],
            }  # fmt: skip
            if version == 2:
                fields["transaction_version"] = 2
            marker = WritableTxnMarker(**fields | changes)
            await talk.ask(
                f"{title} is written, {version}", WriteTxnMarkersRequest(markers=[marker]), version
            )


# ---- the cluster


async def cluster(talk: Conversation) -> None:
    topic_id = await talk.topic("maps", 3)
    await talk.topic("atlas", 2)
    await _shown_topics(talk, topic_id)
    await _features(talk)
    for version in (0, 1, 2):
        for title, endpoint in (("brokers", 1), ("controllers", 2), ("something else", 9)):
            if version or endpoint == 1:
                request = DescribeClusterRequest(include_cluster_authorized_operations=True)
                request.endpoint_type = endpoint
                await talk.ask(f"{title} of the cluster, {version}", request, version)
    await talk.ask("fenced brokers too", DescribeClusterRequest(include_fenced_brokers=True), 2)
    for title, topics in {
        "a topic": [DescribableLogDirTopic(topic="maps", partitions=[0, 9])],
        "an unknown topic": [DescribableLogDirTopic(topic="of-nobody", partitions=[0])],
        "no topics": [],
    }.items():
        await talk.ask(f"log directories of {title}", DescribeLogDirsRequest(topics=topics), 5)
    for version in (4, 5):
        for title, changes in cases(
            {
                "a client": {},
                "a client without a name": {"client_software_name": ""},
                "a client with a name that is none": {"client_software_name": "-a b-"},
            }
        ):
            fields: Changes = {"client_software_name": "talk", "client_software_version": "1"}
            await talk.ask(
                f"versions for {title}, {version}", ApiVersionsRequest(**fields | changes), version
            )
    for title, changes in cases(
        {
            "this cluster": {},
            "another cluster": {"cluster_id": "of-nobody"},
            "another broker": {"node_id": 9},
            "this broker": {"node_id": 1},
        }
    ):
        fields = {"client_software_name": "talk", "client_software_version": "1"}
        await talk.ask(f"versions of {title}", ApiVersionsRequest(**fields | changes), 5)


async def _shown_topics(talk: Conversation, topic_id: UUID) -> None:
    for version in (12, 13):
        for title, topics in {
            "a topic by its name": [MetadataRequestTopic(name="maps")],
            "a topic by its id": [MetadataRequestTopic(topic_id=topic_id, name=None)],
            "an unknown topic": [MetadataRequestTopic(name="of-nobody")],
            "an unknown id": [MetadataRequestTopic(topic_id=NOWHERE, name=None)],
            "an illegal name": [MetadataRequestTopic(name="a/b")],
            "name and id": [MetadataRequestTopic(topic_id=topic_id, name="maps")],
            "a topic twice": [MetadataRequestTopic(name="maps"), MetadataRequestTopic(name="maps")],
            "no topic": [],
        }.items():
            request = MetadataRequest(
                topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=True
            )
            await talk.ask(f"metadata of {title}, {version}", request, version)
    every_case: Cases = {
        "topics": {"topics": ["maps", "atlas"]},
        "a part of them": {"topics": ["maps", "atlas"], "response_partition_limit": 3},
        "the rest": {"topics": ["maps", "atlas"], "cursor": Cursor(topic_name="maps", partition_index=1)},
        "an unknown one": {"topics": ["of-nobody", "maps"]},
        "an illegal one": {"topics": ["a/b"]},
        "one twice": {"topics": ["maps", "maps"]},
        "nothing past the last one": {
            "topics": ["maps"], "cursor": Cursor(topic_name="zoo", partition_index=0)
        },
        "a cursor at an unknown one": {
            "topics": ["maps"], "cursor": Cursor(topic_name="b", partition_index=0)
        },
        "a cursor past the partitions": {
            "topics": ["maps"], "cursor": Cursor(topic_name="maps", partition_index=99)
        },
        "a cursor below 0": {"topics": ["maps"], "cursor": Cursor(topic_name="maps", partition_index=-1)},
        "with a limit of 0": {"topics": ["maps"], "response_partition_limit": 0},
        "with a limit below 0": {"topics": ["maps"], "response_partition_limit": -1},
    }  # fmt: skip
    for title, changes in every_case.items():
        fields = changes | {"topics": [TopicRequest(name=name) for name in changes["topics"]]}
        await talk.ask(f"described: {title}", DescribeTopicPartitionsRequest(**fields), 0)


async def _features(talk: Conversation) -> None:
    def asked(*updates: tuple[str, int, int]) -> UpdateFeaturesRequest:
        keys = [
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ]
        return UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=keys)

    upgrade, safe, unsafe = 1, 2, 3
    for version in (1, 2):
        for title, request in {
            "nothing": asked(),
            "the present level": asked(("group.version", 1, upgrade)),
            "a level that is too high": asked(("group.version", 99, upgrade)),
            "a level below 0": asked(("group.version", -1, upgrade)),
            "an unknown feature": asked(("of.nobody", 1, upgrade)),
            "a feature without a name": asked(("", 1, upgrade)),
            "a feature twice": asked(("group.version", 1, upgrade), ("group.version", 1, upgrade)),
            "a lower level as an upgrade": asked(("transaction.version", 1, upgrade)),
            "a kind of update that there is not": asked(("transaction.version", 1, 9)),
            "a feature, and one that is unknown": asked(
                ("streams.version", 1, upgrade), ("of.nobody", 1, upgrade)
            ),
            "a lower level, only to see": asked(("transaction.version", 1, safe)),
            "a lower level by force, only to see": asked(("transaction.version", 1, unsafe)),
        }.items():
            request.validate_only = title.endswith("only to see")
            await talk.ask(f"features: {title}, {version}", request, version)
    old = UpdateFeaturesRequest(
        timeout_ms=30_000,
        feature_updates=[FeatureUpdateKey(feature="group.version", max_version_level=1)],
    )
    await talk.ask("features: the present level, 0", old, 0)


async def config_resources(talk: Conversation) -> None:
    for kind, name, key, value in (
        (GROUP_CONFIG, "settled", "consumer.session.timeout.ms", "50000"),
        (CLIENT_METRICS, "watch", "interval.ms", "60000"),
    ):
        entry = IncrementalAlterableConfig(name=key, value=value)
        resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=[entry])
        await talk.ask(f"{name} is configured", IncrementalAlterConfigsRequest(resources=[resource]), 1)
    await talk.until(
        "subscriptions are listed, 0", ListConfigResourcesRequest(), 0,
        lambda answer: answer.config_resources or answer.error_code,
    )  # fmt: skip
    for title, kinds in {
        "subscriptions": [CLIENT_METRICS],
        "groups": [GROUP_CONFIG],
        "brokers": [4],
        "loggers": [8],
        "groups and subscriptions": [GROUP_CONFIG, CLIENT_METRICS],
        "a kind that there is not": [99],
        "a kind twice": [GROUP_CONFIG, GROUP_CONFIG],
    }.items():
        await talk.ask(f"{title} are listed", ListConfigResourcesRequest(resource_types=kinds), 1)


# ---- metrics of clients


async def telemetry(talk: Conversation) -> None:
    configs = {
        "metrics": "org.apache.kafka.producer.",
        "interval.ms": "600000",
        "match": "client_id=conversation",
    }
    resource = IncrementalAlterConfigsResource(
        resource_type=CLIENT_METRICS, resource_name="metering",
        configs=[IncrementalAlterableConfig(name=key, value=value) for key, value in configs.items()],
    )  # fmt: skip
    await talk.ask("a subscription is made", IncrementalAlterConfigsRequest(resources=[resource]), 1)
    for title, name, changed in (
        ("an interval that is too short", "a", {"interval.ms": "5"}),
        ("an interval that is no number", "b", {"interval.ms": "soon"}),
        ("a pattern that does not end", "c", {"match": "client_id=["}),
        ("a fact that there is not", "d", {"match": "colour=red"}),
        ("a key that there is not", "e", {"colour": "red"}),
        ("a subscription without a name", "", {"interval.ms": "1000"}),
    ):
        entries = [IncrementalAlterableConfig(name=key, value=value) for key, value in changed.items()]
        wrong = IncrementalAlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=name, configs=entries
        )
        await talk.ask(title, IncrementalAlterConfigsRequest(resources=[wrong]), 1)
    await _pushes(talk)


async def _pushes(talk: Conversation) -> None:
    """Push as new instances of a client: each may push once until its interval is over."""
    ask = GetTelemetrySubscriptionsRequest
    first = await talk.until(
        "a client asks for its subscriptions", ask(), 0, lambda answer: answer.requested_metrics
    )  # fmt: skip
    talk.name(first.client_instance_id, "instance")
    talk.name(first.subscription_id, "subscription")
    await talk.ask("it asks again at once", ask(client_instance_id=first.client_instance_id), 0)
    bomb = gzip.compress(b"\x00" * (64 << 20), mtime=0)
    every_case: Cases = {
        "a push for an unknown subscription": {"subscription_id": 12345},
        "a push with a compression that there is not": {"compression_type": 77},
        "a push that is too large": {"metrics": b"\x00" * ((1 << 20) + 1)},
        "a push without an instance": {"client_instance_id": NO_ID},
        "a push that unfolds to 64 MiB": {"metrics": bomb, "compression_type": 1},
        "a push that is no gzip": {"metrics": b"nothing", "compression_type": 1},
        "a push that is no metrics": {"metrics": b"\xff\xff\xff"},
        "an empty push": {"metrics": b""},
        "the last push": {"metrics": b"", "terminating": True},
    }
    for number, (title, changes) in enumerate(every_case.items()):
        found = await talk.prepare(ask(), 0)
        talk.name(found.client_instance_id, f"instance {number}")
        talk.name(found.subscription_id, f"subscription {number}")
        every: Changes = {
            "client_instance_id": found.client_instance_id, "subscription_id": found.subscription_id
        }  # fmt: skip
        await talk.ask(title, PushTelemetryRequest(**every | changes), 0)
        again = PushTelemetryRequest(**every)
        await talk.ask(f"{title}: another push", again, 0)
        again.terminating = True
        await talk.ask(f"{title}: another last push", again, 0)
    await talk.ask("an unknown instance asks", ask(client_instance_id=NOWHERE), 0)
    stranger = PushTelemetryRequest(client_instance_id=UUID(int=9), subscription_id=12345)
    await talk.ask("a push of an instance that never asked", stranger, 0)
