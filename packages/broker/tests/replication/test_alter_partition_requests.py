"""Proposed ISRs on their way to real controllers: lost answers, late copies, failovers of the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller.control_request_batch import ControlRequest
from ottla.broker.controller.testing import ControllerCluster, run_in_virtual_time
from ottla.broker.controller.zookeeper_store import read_leadership
from ottla.broker.metrics import Meter
from ottla.broker.peers.controller_requests import AlterPartition, Answers, ProposedIsr
from ottla.broker.replication.alter_partition_requests import AlterPartitionRequests
from ottla.broker.replication.leader_and_isr_requests import assignments_of
from ottla.broker.replication.partition import Effect, IsrProposed, Partition
from ottla.broker.replication.replicas import Replicas
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, NotController
from ottla.protocol.messages.control_requests import LeaderAndIsrRequest
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import ZooKeeperError

T0 = TopicPartition("orders", 0)
LAG_MS = 300
LEADER = 1


class Network:
    """The way from the leader to the controller."""

    def __init__(self, cluster: ControllerCluster) -> None:
        self.cluster = cluster
        self.lost_requests = self.lost_replies = self.late_copies = 0.0
        self.asked = 0
        self.refuse_with: ErrorCode | None = None

    async def ask(self, event: AlterPartition) -> Answers:
        chance = self.cluster.random.random
        self.asked += 1
        await asyncio.sleep(0.002)
        if chance() < self.lost_requests:
            raise BrokerNotAvailable
        if chance() < self.late_copies:
            self.cluster.spawn(self.deliver_late(event), "late copy")
            raise BrokerNotAvailable
        answers = await self.deliver(event)
        if chance() < self.lost_replies:
            raise BrokerNotAvailable
        return answers

    async def deliver(self, event: AlterPartition) -> Answers:
        if self.refuse_with is not None:
            return Answers(partitions=dict.fromkeys(event.proposals, self.refuse_with))
        if self.cluster.active is None:
            raise NotController
        return await self.cluster.active.ask(event)

    async def deliver_late(self, event: AlterPartition) -> None:
        await asyncio.sleep(self.cluster.random.choice((0.01, 0.2, 1.5)))
        try:
            await self.deliver(event)
        except NotController:
            return


class Leader:
    """Broker 1: the core of one partition, its followers' log ends, and its proposals."""

    def __init__(self, cluster: ControllerCluster) -> None:
        self.cluster = cluster
        self.network = Network(cluster)
        self.core = Partition(LEADER, max_lag_ms=LAG_MS)
        self.log_ends = {1: 0, 2: 0, 3: 0}
        self.refused = Meter()
        broker = cluster.brokers[LEADER]
        self.requests = AlterPartitionRequests(
            LEADER,
            self.network.ask,
            lambda: broker.epoch,
            partial(read_leadership, broker.session),
            self.refused.mark,
        )
        # The registry of partitions with this one in it: the methods of `Replicas`, without logs.
        hosted = SimpleNamespace(core=self.core, perform=self.perform, topic_partition=T0)
        self.replicas = Replicas.__new__(Replicas)
        self.replicas._hosted = cast("dict[TopicPartition, Any]", {T0: hosted})
        self.replicas._clock = cast("Any", SimpleNamespace(now_ms=self.now_ms))
        self._handle = broker.handle
        broker.handle = self.handle  # type: ignore[method-assign]
        cluster.spawn(self.requests.run(self.replicas), "isr-proposals")

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def handle(self, request: ControlRequest) -> Any:
        response = self._handle(request)
        if isinstance(request, LeaderAndIsrRequest) and not response.error_code:
            for _, _, assignment in assignments_of(request):
                if self.core.accepts(assignment):
                    assert assignment.leader == LEADER
                    self.perform(self.core.lead(assignment, self.log_ends[LEADER], self.now_ms()))
                else:
                    self.replicas.isr_read(
                        T0, assignment.leader_epoch, assignment.isr, assignment.partition_epoch
                    )
        return response

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, IsrProposed):
                self.requests.propose(T0, effect)

    def append(self, records: int = 1) -> None:
        self.log_ends[LEADER] += records
        self.perform(self.core.appended(self.log_ends[LEADER], self.now_ms()))

    def fetch(self, replica: int) -> None:
        """Let a follower have all records, and ask for the next."""
        self.log_ends[replica] = self.log_ends[LEADER]
        self.perform(self.core.fetched(replica, self.log_ends[replica], 0, self.now_ms()))

    def shrink(self) -> None:
        self.perform(self.core.shrink(self.now_ms()))

    @property
    def committed(self) -> tuple[frozenset[int], int, int]:
        """The ISR, leader epoch and partition epoch in ZooKeeper."""
        state = self.cluster.state(*T0)
        assert state is not None
        return frozenset(state.isr), state.leader_epoch, self.cluster.ensemble.tree.node(state.path).version

    def check(self) -> None:
        """No member of the committed ISR lacks a record below the high watermark."""
        isr, leader_epoch, _ = self.committed
        for member in isr:
            assert self.log_ends[member] >= self.core.high_watermark, f"{member} lacks acknowledged records"
        if leader_epoch == self.core.leader_epoch:
            assert isr <= self.core.maximal_isr, f"{isr} is committed, {self.core.maximal_isr} counts"

    def agrees(self) -> bool:
        isr, leader_epoch, partition_epoch = self.committed
        known = (self.core.isr, self.core.leader_epoch, self.core.partition_epoch)
        return self.core.proposal is None and known == (isr, leader_epoch, partition_epoch)


async def leading(cluster: ControllerCluster) -> Leader:
    await cluster.start(3, 1, 2)
    await cluster.until(lambda: cluster.active is not None, "a controller")
    await cluster.until(lambda: all(cluster.brokers[one].epoch >= 0 for one in (1, 2, 3)), "registered")
    leader = Leader(cluster)
    await cluster.create_topic("orders", (1, 2))
    await cluster.until(lambda: cluster.settled("orders") and leader.core.leader_epoch >= 0, "led")
    await cluster.until(leader.agrees, "the leader knows its ISR")
    return leader


def play(story: Any, seed: int = 0) -> None:
    async def main() -> None:
        async with ControllerCluster(seed) as cluster:
            await story(await leading(cluster))

    run_in_virtual_time(main())


async def shrunk(leader: Leader) -> None:
    leader.append()
    await asyncio.sleep(LAG_MS / 1000 * 2)
    leader.shrink()
    await leader.cluster.until(lambda: leader.committed[0] == {1} and leader.agrees(), "shrunk")


def test_an_expansion_whose_answer_is_lost_counts_and_is_confirmed_by_the_next_try() -> None:
    async def story(leader: Leader) -> None:
        await shrunk(leader)
        leader.network.lost_replies = 1.0
        leader.fetch(2)
        await leader.cluster.until(lambda: leader.committed[0] == {1, 2}, "the expansion written")

        leader.append()
        before = leader.core.high_watermark
        await asyncio.sleep(LAG_MS / 1000 * 2)
        leader.append()

        assert leader.core.high_watermark == before, "acknowledged without a member of the ISR"
        await leader.cluster.until(leader.agrees, "the leader read what is committed")
        leader.network.lost_replies = 0.0
        leader.shrink()
        await leader.cluster.until(lambda: leader.committed[0] == {1}, "a shrink after that")

    play(story)


def test_a_shrink_whose_answer_is_lost_does_not_stand_still() -> None:
    async def story(leader: Leader) -> None:
        leader.append()
        leader.network.lost_replies = 1.0
        await asyncio.sleep(LAG_MS / 1000 * 2)
        leader.shrink()

        await leader.cluster.until(leader.agrees, "confirmed")

        assert leader.core.high_watermark == 1

    play(story)


def test_a_state_that_another_writer_changed_is_read_and_replaces_the_proposal() -> None:
    async def story(leader: Leader) -> None:
        leader.append()
        _, _, version = leader.committed
        node = leader.cluster.state(*T0)
        assert node is not None
        await leader.cluster.brokers[1].session.set(node.path, node.encode(), version)
        await asyncio.sleep(LAG_MS / 1000 * 2)

        leader.shrink()

        await leader.cluster.until(lambda: leader.core.partition_epoch > version, "read")
        await leader.cluster.until(leader.agrees, "agreed")

    play(story)


def test_a_refusal_ends_a_proposal_that_was_sent_once() -> None:
    async def story(leader: Leader) -> None:
        await shrunk(leader)
        leader.network.refuse_with = ErrorCode.INELIGIBLE_REPLICA
        leader.fetch(2)

        await leader.cluster.until(lambda: leader.core.proposal is None, "refused")

        assert leader.refused.count == 1
        assert leader.core.maximal_isr == {1}

    play(story)


@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_REQUEST, ErrorCode.FENCED_LEADER_EPOCH]
)
def test_after_any_other_error_the_additions_count_until_a_state_is_committed(error: ErrorCode) -> None:
    async def story(leader: Leader) -> None:
        await shrunk(leader)
        leader.network.refuse_with = error
        leader.fetch(2)
        await leader.cluster.until(lambda: leader.network.asked >= 4, "asked again")
        assert leader.core.maximal_isr == {1, 2}

        leader.network.refuse_with = None

        await leader.cluster.until(leader.agrees, "decided")
        assert leader.core.isr == {1, 2}

    play(story)


def test_a_refused_proposal_with_a_copy_under_way_counts_until_the_copy_cannot_be_applied() -> None:
    async def story(leader: Leader) -> None:
        cluster = leader.cluster
        await shrunk(leader)
        _, _, before = leader.committed
        copies: list[AlterPartition] = []

        async def keep(event: AlterPartition) -> Answers:
            copies.append(event)
            leader.network.refuse_with = ErrorCode.INELIGIBLE_REPLICA
            leader.requests._ask = leader.network.ask
            raise BrokerNotAvailable

        leader.requests._ask = keep
        leader.fetch(2)
        asked = leader.network.asked
        await cluster.until(lambda: leader.network.asked >= asked + 3, "refused")
        assert leader.core.maximal_isr == {1, 2}
        leader.network.refuse_with = None

        await cluster.until(leader.agrees, "retracted")
        assert leader.core.maximal_isr == {1}
        assert leader.committed[2] > before
        assert cluster.active is not None
        late = await cluster.active.ask(copies[0])
        assert late.partitions == {T0: ErrorCode.INVALID_UPDATE_VERSION}

    play(story)


def test_a_retraction_that_moves_no_epoch_ends_once_no_copy_is_under_way() -> None:
    async def story(leader: Leader) -> None:
        await shrunk(leader)
        events: list[AlterPartition] = []

        async def ask_apache(event: AlterPartition) -> Answers:
            """Answer as Apache Kafka's controller does, which writes no ISR that is committed already."""
            events.append(event)
            if len(events) == 1:
                raise BrokerNotAvailable
            if set(event.proposals[T0].isr) != {1}:
                return Answers(partitions={T0: ErrorCode.INELIGIBLE_REPLICA})
            core = leader.core
            same = Leadership(1, core.leader_epoch, (1,), 1, core.partition_epoch)
            return Answers(leaderships={T0: same})

        leader.requests._ask = ask_apache
        leader.fetch(2)
        await leader.cluster.until(lambda: len(events) >= 4, "retracted")
        assert leader.core.maximal_isr == {1, 2}

        await leader.cluster.until(lambda: leader.core.proposal is None, "dropped", 120)

        assert leader.core.maximal_isr == {1}

    play(story)


def test_a_repeated_proposal_is_answered_as_it_was_the_first_time() -> None:
    async def story(leader: Leader) -> None:
        active, epoch = leader.cluster.active, leader.cluster.brokers[1].epoch
        assert active is not None
        event = AlterPartition(1, epoch, {T0: ProposedIsr(leader.core.leader_epoch, 0, (1,))})
        first = await active.ask(event)
        again = await active.ask(event)

        assert not first.partitions
        assert (again.partitions, again.leaderships) == ({}, first.leaderships)
        assert isinstance(first.leaderships[T0], Leadership)

    play(story)


async def fault(leader: Leader) -> None:
    cluster, random = leader.cluster, leader.cluster.random
    what = random.randrange(9)
    if what < 3:
        leader.append(random.randrange(1, 4))
    elif what < 5:
        replica = 2
        if replica in cluster.brokers:
            leader.fetch(replica)
    elif what == 5:
        leader.shrink()
    elif what == 6:
        cluster.ensemble.lose_next_reply(cluster.brokers[random.choice(list(cluster.brokers))].session)
    elif what == 7 and cluster.exists(paths.CONTROLLER):
        try:
            await cluster.brokers[1].session.delete(paths.CONTROLLER)
        except ZooKeeperError:
            return
    elif 2 in cluster.brokers:
        await cluster.kill(2)
    else:
        await cluster.start(2)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_no_member_of_the_isr_lacks_an_acknowledged_record(seed: int) -> None:
    async def story(leader: Leader) -> None:
        cluster, network = leader.cluster, leader.network
        for _ in range(80):
            network.lost_requests, network.lost_replies, network.late_copies = (
                cluster.random.choice((0.0, 0.0, 0.4)) for _ in range(3)
            )
            await fault(leader)
            for _ in range(cluster.random.choice((0, 1, 5, 40))):
                leader.check()
                await asyncio.sleep(0.01)
        network.lost_requests = network.lost_replies = network.late_copies = 0.0
        if 2 not in cluster.brokers:
            await cluster.start(2)

        await cluster.until(leader.agrees, "the leader and ZooKeeper agree")

        await asyncio.sleep(2.0)
        leader.check()
        assert leader.agrees()

    play(story, seed)
