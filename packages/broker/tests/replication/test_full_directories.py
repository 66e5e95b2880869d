"""Replicas on a full disk: what the controller is answered about them, and when it is to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.api.testing import BROKER_ID, DataPlane, topic_id_of
from ottla.broker.config import LogConfig
from ottla.broker.log.log import Log
from ottla.broker.metrics import Metrics
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.replication.partition import Assignment, Role
from ottla.broker.replication.replicas import DELETE_EPOCH, Replicas
from ottla.protocol.errors import ErrorCode, KafkaStorageError
from ottla.protocol.topics import TopicPartition

ME, OTHER, THIRD = BROKER_ID, BROKER_ID + 1, BROKER_ID + 2
T0 = TopicPartition("t", 0)
NONE, KNOWN, GIVEN_UP = ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR


class Copying:
    """Notes which partitions are copied, and from whom."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {}

    def follow(self, partition: HostedPartition, leader: int) -> None:
        self.leaders[partition.topic_partition] = leader

    def unfollow(self, topic_partition: TopicPartition) -> None:
        self.leaders.pop(topic_partition, None)


class Disk:
    """The replicas of a broker on one disk, of which `dead` other brokers are not registered."""

    def __init__(self, folder: Path) -> None:
        plane = DataPlane(folder)
        self.folder = folder
        self.logs = plane.logs
        self.dead: set[int] = set()
        self.copying = Copying()
        self.proposed: list[tuple[int, ...]] = []
        self.replicas = Replicas(
            broker_id=ME,
            config=plane.config,
            environment=plane.environment,
            logs=plane.logs,  # type: ignore[arg-type]
            log_config=lambda _: LogConfig.from_broker(plane.config),
            metrics=Metrics(),
            followers=self.copying,
            propose_isr=lambda _, proposal: self.proposed.append(proposal.isr),
            is_alive=lambda broker: broker not in self.dead,
        )

    async def assigned(
        self, leader: int, leader_epoch: int, isr: tuple[int, ...], partition: TopicPartition = T0
    ) -> ErrorCode:
        """The answer to an assignment of the controller."""
        assignment = Assignment(
            controller_epoch=1,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
            isr=isr,
            replicas=(ME, OTHER, THIRD),
        )
        answers = await self.replicas.apply([(partition, topic_id_of(partition.topic), assignment)])
        return answers[partition]

    def fill(self) -> None:
        self.replicas.room_changed(self.folder, True)

    def free(self) -> None:
        self.replicas.room_changed(self.folder, False)

    @property
    def role(self) -> Role:
        hosted = self.replicas.hosted(T0)
        assert hosted is not None
        return hosted.core.role


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


async def test_a_leader_with_a_full_disk_is_given_up_and_taken_back_with_the_room(disk: Disk) -> None:
    assert await disk.assigned(ME, 1, (ME, OTHER)) is NONE
    assert not disk.replicas.has_news_of_room()
    disk.fill()
    assert disk.replicas.has_news_of_room()

    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP
    assert disk.replicas.has_news_of_room()  # until another one leads
    assert await disk.assigned(OTHER, 2, (OTHER,)) is GIVEN_UP

    assert disk.role is Role.FOLLOWER
    assert disk.copying.leaders == {}
    assert not disk.replicas.has_news_of_room()
    disk.free()
    assert disk.copying.leaders == {T0: OTHER}
    assert disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 2, (OTHER,)) is NONE
    assert not disk.replicas.has_news_of_room()
    # Its answer may be lost, and the request comes again.
    assert await disk.assigned(OTHER, 2, (OTHER,)) is NONE
    assert await disk.assigned(OTHER, 3, (OTHER, ME)) is NONE
    assert await disk.assigned(OTHER, 3, (OTHER, ME)) is KNOWN


async def test_a_follower_with_a_full_disk_leaves_the_isr_at_once(disk: Disk) -> None:
    assert await disk.assigned(OTHER, 1, (OTHER, ME)) is NONE
    assert disk.copying.leaders == {T0: OTHER}
    disk.fill()

    assert disk.copying.leaders == {}
    assert disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 1, (OTHER, ME)) is GIVEN_UP
    assert not disk.replicas.has_news_of_room()


@pytest.mark.parametrize("isr", [(ME,), (ME, OTHER)])
async def test_the_last_live_member_of_an_isr_leads_on(disk: Disk, isr: tuple[int, ...]) -> None:
    disk.dead.add(OTHER)
    await disk.assigned(ME, 1, isr)
    disk.fill()

    assert not disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 1, isr) is KNOWN
    assert await disk.assigned(ME, 2, isr) is NONE
    assert disk.role is Role.LEADER


async def test_a_leader_is_given_up_once_another_replica_is_in_sync(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME,))
    disk.fill()
    assert not disk.replicas.has_news_of_room()

    disk.replicas.isr_read(T0, 1, (ME, OTHER), 2)

    assert disk.replicas.has_news_of_room()


async def test_a_leader_waits_for_the_answer_to_the_isr_that_it_has_proposed(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    hosted = disk.replicas.hosted(T0)
    assert hosted is not None
    hosted.perform(hosted.core.fetched(THIRD, 0, 0, 0))
    assert disk.proposed == [(ME, OTHER, THIRD)]
    disk.fill()

    assert not disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is KNOWN

    disk.replicas.isr_answered(T0, 1, (ME, OTHER, THIRD), 2)
    assert disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP


async def test_a_leader_with_a_full_disk_proposes_no_smaller_isr(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    hosted = disk.replicas.hosted(T0)
    assert hosted is not None
    hosted.core.max_lag_ms = -1
    hosted.core.log_end_offset = 5
    disk.fill()

    disk.replicas.shrink_isrs()
    assert disk.proposed == []

    disk.free()
    disk.replicas.shrink_isrs()
    assert disk.proposed == [(ME,)]


async def test_a_replica_outside_the_isr_stays_given_up_without_a_leader(disk: Disk) -> None:
    await disk.assigned(OTHER, 1, (OTHER,))
    disk.fill()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is GIVEN_UP
    disk.dead.add(OTHER)

    assert await disk.assigned(-1, 2, (OTHER,)) is GIVEN_UP
    assert not disk.replicas.has_news_of_room()


async def test_the_last_member_of_the_isr_asks_for_its_leadership_back(disk: Disk) -> None:
    """Two disks that fill up at once are both given up: the controller finds no leader."""
    await disk.assigned(ME, 1, (ME, OTHER))
    disk.fill()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP

    assert await disk.assigned(-1, 2, (ME,)) is NONE


async def test_a_replica_that_was_stopped_meanwhile_is_assigned_again(disk: Disk) -> None:
    """A controller of Apache Kafka stops the replicas that it has taken out of the ISR."""
    follower = TopicPartition("t", 1)
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.assigned(OTHER, 1, (OTHER,), follower)
    disk.fill()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP
    assert await disk.assigned(OTHER, 1, (OTHER,), follower) is GIVEN_UP

    stopped = await disk.replicas.stop([(T0, 2, False), (follower, 1, False)])

    assert set(stopped.values()) == {NONE}
    assert disk.role is Role.NONE
    assert not disk.replicas.has_news_of_room()
    disk.free()
    assert disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 2, (OTHER,)) is NONE
    assert await disk.assigned(OTHER, 1, (OTHER,), follower) is NONE
    assert disk.copying.leaders == {T0: OTHER, follower: OTHER}


async def test_a_deleted_partition_is_no_news(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    disk.fill()
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.replicas.stop([(T0, DELETE_EPOCH, True)])
    disk.free()

    assert not disk.replicas.has_news_of_room()


async def test_a_log_that_found_no_room_is_created_once_there_is_some(disk: Disk) -> None:
    """The controller has it for lost, until it is told to ask again."""
    create, disk.logs.create = disk.logs.create, no_room  # type: ignore[method-assign]
    disk.fill()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is GIVEN_UP
    assert not disk.replicas.has_news_of_room()
    disk.logs.create = create  # type: ignore[method-assign]

    disk.free()

    assert disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is NONE
    assert not disk.replicas.has_news_of_room()
    assert disk.copying.leaders == {T0: OTHER}


def no_room(*_: object, **__: object) -> Log:
    raise KafkaStorageError
