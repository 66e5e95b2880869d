"""`ottla zookeeper rebuild`: a broker goes on after the files of its coordinator were damaged or lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ottla.broker.testing import BrokerFailed, BrokerThread
from ottla.tools.rebuild import FoundPartition, TopicIdsDiffer, rebuild
from ottla.tools.rebuild_cli import rebuild as rebuild_command
from ottla.zookeeper import paths
from ottla.zookeeper.cli import zookeeper
from ottla.zookeeper.embedded.transaction_log import read_tree
from ottla.zookeeper.znodes import PartitionState, ProducerIdBlock, TopicAssignment

TIMEOUT_S = 20.0
ONE, OTHER = UUID(int=1), UUID(int=2)


def create(
    broker: BrokerThread, name: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(name, partitions, 1, config=config or {})
    admin.create_topics([new])[name].result(TIMEOUT_S)


def produce(broker: BrokerThread, topic: str, *values: bytes) -> None:
    failures: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == [None] * len(values)


def consume(broker: BrokerThread, topic: str, count: int, group: str = "g") -> list[bytes]:
    """Read records behind the group's committed offset, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    values = [message.value() for message in consumer.consume(count, TIMEOUT_S)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def committed(broker: BrokerThread, topic: str, group: str = "g") -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    (position,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    consumer.close()
    return int(position.offset)


def settings_of(broker: BrokerThread, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    asked = ConfigResource(ResourceType.TOPIC, topic)
    (answer,) = admin.describe_configs([asked]).values()
    return {name: entry.value for name, entry in answer.result(TIMEOUT_S).items()}


def ids_of(directory: Path) -> dict[str, UUID | None]:
    tree = read_tree(directory)
    return {
        name: TopicAssignment.decode(name, tree.node(paths.topic(name)).data).topic_id
        for name in tree.node(paths.BROKER_TOPICS).children
    }


def run(*arguments: object) -> Result:
    return CliRunner().invoke(rebuild_command, [str(one) for one in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a broker that has been stopped, with records, a group and settings."""
    with BrokerThread(tmp_path / "data") as broker:
        create(broker, "first", 3, {"retention.ms": "1234567"})
        produce(broker, "first", b"a", b"b")
        for number in range(8):
            create(broker, f"t{number}", 1, {"retention.ms": "1234567"})
        produce(broker, "t4", b"c", b"d", b"e")
        assert consume(broker, "t4", 2) == [b"c", b"d"]
    return tmp_path / "data"


def test_a_broker_goes_on_after_its_damaged_journal_is_rebuilt(data: Path) -> None:
    before = ids_of(data / "coordinator")
    journal = data / "coordinator" / "journal"
    content = bytearray(journal.read_bytes())
    lost = content.index(b"/brokers/topics/t4")  # the znode of t4 is in this record
    content[lost] ^= 1
    journal.write_bytes(content)
    with pytest.raises(BrokerFailed, match="ottla zookeeper rebuild"):
        BrokerThread(data).start()

    result = run(data)

    assert result.exit_code == 0, result.output
    assert "topic t4 is made anew with 1 partitions" in result.output
    assert "topic t5" not in result.output
    assert ids_of(data / "coordinator") == before
    assert (data / "coordinator.before-rebuild" / "journal").read_bytes() == content
    with BrokerThread(data) as broker:
        assert settings_of(broker, "t5")["retention.ms"] == "1234567"
        assert settings_of(broker, "t4")["retention.ms"] == "1234567"  # written before the topic
        assert committed(broker, "t4") == 2
        assert consume(broker, "t4", 1) == [b"e"]
        produce(broker, "t4", b"f")
        assert consume(broker, "t4", 1) == [b"f"]
        create(broker, "new")


def test_a_broker_goes_on_after_its_coordinator_is_lost_and_deletes_nothing(data: Path) -> None:
    before = ids_of(data / "coordinator")
    blocks = ProducerIdBlock.decode(read_tree(data / "coordinator").node(paths.LATEST_PRODUCER_ID_BLOCK).data)
    shutil.rmtree(data / "coordinator")
    with pytest.raises(BrokerFailed, match="ottla zookeeper rebuild"):
        BrokerThread(data).start()

    result = run(data)

    assert result.exit_code == 0, result.output
    assert "topic first has lost its settings" in result.output
    assert ids_of(data / "coordinator") == before
    tree = read_tree(data / "coordinator")
    block = ProducerIdBlock.decode(tree.node(paths.LATEST_PRODUCER_ID_BLOCK).data)
    assert block.first > blocks.last
    with BrokerThread(data) as broker:
        metadata = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=TIMEOUT_S)
        assert len(metadata.topics["first"].partitions) == 3
        assert settings_of(broker, "first")["retention.ms"] == "-1"
        assert settings_of(broker, "__consumer_offsets")["cleanup.policy"] == "compact"
        assert sorted(consume(broker, "first", 2, "other")) == [b"a", b"b"]
        assert committed(broker, "t4") == 2
        produce(broker, "t4", b"f")
        assert consume(broker, "t4", 2) == [b"e", b"f"]


def test_a_running_broker_is_not_rebuilt(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data"):
        result = run(tmp_path / "data")

    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: another broker uses the log directory")


def test_a_coordinator_of_another_cluster_is_refused(data: Path, tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "other"):
        pass

    result = run("--coordinator-dir", tmp_path / "other" / "coordinator", data)

    assert result.exit_code == 1
    assert "is the coordinator of cluster" in result.output
    assert (tmp_path / "other" / "coordinator" / "journal").exists()


def test_the_command_belongs_to_ottla_zookeeper() -> None:
    result = CliRunner().invoke(zookeeper, ["rebuild", "--help"])

    assert result.exit_code == 0
    assert "LOG_DIR" in result.output


# ---- the znodes of several brokers


def znodes_of(*found: FoundPartition, kept: dict[str, bytes] | None = None) -> dict[str, bytes]:
    return rebuild(found, kept or {}, "c", is_whole=False, new_id=lambda: OTHER, now_ms=5).znodes


def state_of(znodes: dict[str, bytes], topic: str, partition: int) -> PartitionState:
    return PartitionState.decode(topic, partition, znodes[paths.partition_state(topic, partition)])


def test_the_replica_with_the_newest_epoch_and_the_longest_log_leads() -> None:
    znodes = znodes_of(
        FoundPartition("t", 0, 1, ONE, leader_epoch=3, log_end_offset=90),
        FoundPartition("t", 0, 2, ONE, leader_epoch=4, log_end_offset=70),
        FoundPartition("t", 0, 3, ONE, leader_epoch=4, log_end_offset=80),
    )

    assert TopicAssignment.decode("t", znodes[paths.topic("t")]).partitions == {0: (1, 2, 3)}
    state = state_of(znodes, "t", 0)
    assert (state.leader, state.isr, state.leader_epoch) == (3, (3,), 4)


def test_a_state_that_is_known_stays_unless_a_log_is_newer() -> None:
    topic = TopicAssignment("t", {0: (2, 1), 1: (1, 2)}, ONE)
    states = [PartitionState("t", partition, 2, 5, (2, 1), 7) for partition in (0, 1)]
    kept = {topic.path: topic.encode(), **{state.path: state.encode() for state in states}}

    znodes = znodes_of(
        FoundPartition("t", 0, 1, ONE, 5, 10),
        FoundPartition("t", 1, 1, ONE, 6, 10),
        kept=kept,
    )

    assert TopicAssignment.decode("t", znodes[paths.topic("t")]).partitions == topic.partitions
    assert state_of(znodes, "t", 0) == states[0]
    assert state_of(znodes, "t", 1).leader == 1
    assert state_of(znodes, "t", 1).leader_epoch == 6


def test_a_topic_that_was_deleted_and_made_again_does_not_get_the_old_ones_settings() -> None:
    old = TopicAssignment("t", {0: (1,)}, OTHER)
    kept = {old.path: old.encode(), "/config/topics/t": b'{"version":1,"config":{"retention.ms":"1"}}'}

    znodes = znodes_of(FoundPartition("t", 0, 1, ONE), kept=kept)

    assert TopicAssignment.decode("t", znodes[paths.topic("t")]).topic_id == ONE
    assert b'"retention.ms":"-1"' in znodes["/config/topics/t"]


def test_directories_of_two_topics_with_one_name_are_refused() -> None:
    with pytest.raises(TopicIdsDiffer, match="belong to several topics"):
        znodes_of(FoundPartition("t", 0, 1, ONE), FoundPartition("t", 0, 2, OTHER))


def test_partitions_without_directories_and_without_ids_are_reported() -> None:
    made = rebuild([FoundPartition("t", 2, 1, None)], {}, "c", is_whole=False, new_id=lambda: OTHER, now_ms=5)

    assert TopicAssignment.decode("t", made.znodes[paths.topic("t")]).partitions == {
        0: (1,),
        1: (1,),
        2: (1,),
    }
    assert any("no directory of partition 0, 1" in line for line in made.report)
    assert any("new topic id" in line for line in made.report)


def test_requests_that_were_under_way_are_forgotten() -> None:
    kept = {paths.deleted_topic("t"): b"", paths.REASSIGN_PARTITIONS: b"{}", "/config/users/u": b"{}"}

    znodes = znodes_of(FoundPartition("t", 0, 1, ONE), kept=kept)

    assert kept.keys() & znodes.keys() == {"/config/users/u"}
