"""The controller over an ensemble in memory: what it does when brokers and topics come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.broker.controller.events import ElectLeaders
from ottla.broker.controller.testing import ControllerCluster, SimulatedBroker, run_in_virtual_time
from ottla.broker.peers.controller_requests import AlterPartition, ControlledShutdown, ProposedIsr
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import LeaderAndIsrRequest, UpdateMetadataRequest
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.znodes import OttlaTopicSettings, PreferredReplicaElection, TopicAssignment

Story = Callable[[ControllerCluster], Coroutine[Any, Any, None]]


def play(story: Story, *brokers: int, seed: int = 0) -> None:
    """Run a story on a cluster of the given brokers that has a controller."""

    async def main() -> None:
        async with ControllerCluster(seed) as cluster:
            await cluster.start(*brokers)
            await cluster.until(lambda: cluster.active is not None, "a controller")
            await cluster.until(lambda: all(cluster.brokers[one].epoch >= 0 for one in brokers), "registered")
            await story(cluster)
            cluster.invariants.check()

    run_in_virtual_time(main())


async def with_topic(cluster: ControllerCluster, *replicas: tuple[int, ...], name: str = "orders") -> None:
    await cluster.create_topic(name, *replicas)
    await cluster.until(lambda: all(cluster.settled(name, p) for p in range(len(replicas))), f"{name} led")


def test_a_broker_alone_becomes_controller_and_leads_what_is_created() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,), (1,))

        state = cluster.state("orders", 1)
        assert state is not None
        assert (state.leader, state.leader_epoch, state.isr, state.controller_epoch) == (1, 0, (1,), 1)

    play(story, 1)


def test_the_first_live_replica_of_the_assignment_leads() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (9, 2, 1))

        state = cluster.state("orders")
        assert state is not None
        assert (state.leader, state.isr) == (2, (2, 1))

    play(story, 1, 2)


def test_a_partition_without_a_live_replica_waits_for_one() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await cluster.create_topic("orders", (2,))
        await with_topic(cluster, (1,), name="other")
        assert cluster.state("orders") is None

        await cluster.start(2)

        await cluster.until(lambda: cluster.settled("orders"), "the partition led by the late broker")

    play(story, 1)


def test_partitions_added_to_a_topic_are_led_and_the_old_ones_keep_their_leader() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        node = cluster.ensemble.tree.node(paths.topic("orders"))
        old = TopicAssignment.decode("orders", node.data)
        larger = replace(old, partitions={0: (1, 2), 1: (2, 1)})
        await cluster.brokers[1].session.set(larger.path, larger.encode())

        await cluster.until(lambda: cluster.settled("orders", 1), "the new partition led")
        first, second = cluster.state("orders", 0), cluster.state("orders", 1)
        assert first is not None
        assert second is not None
        assert (first.leader, first.leader_epoch, second.leader) == (1, 0, 2)

    play(story, 1, 2)


def test_when_the_leader_dies_another_in_sync_replica_leads_and_the_dead_one_leaves_the_isr() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (3, 2, 1))

        await cluster.kill(3)

        await cluster.until(lambda: cluster.settled("orders"), "a new leader")
        state = cluster.state("orders")
        assert state is not None
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2, 1))

    play(story, 1, 2, 3)


def test_the_last_in_sync_replica_stays_in_the_isr_and_leads_again_when_it_returns() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2,))

        await cluster.kill(2)
        await cluster.until(
            lambda: (s := cluster.state("orders")) is not None and s.leader == -1, "no leader"
        )
        state = cluster.state("orders")
        assert state is not None
        assert state.isr == (2,)
        await cluster.start(2)

        await cluster.until(lambda: cluster.settled("orders"), "led again")

    play(story, 1, 2)


def test_a_replica_out_of_sync_does_not_lead_unless_that_is_allowed() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2, 3))
        await cluster.kill(3)
        await cluster.until(lambda: (s := cluster.state("orders")) is not None and s.isr == (2,), "shrunk")
        await cluster.kill(2)
        await cluster.start(3)
        await cluster.until(lambda: cluster.brokers[3].alive == {1, 3}, "3 knows the cluster")
        state = cluster.state("orders")
        assert state is not None
        assert (state.leader, state.isr) == (-1, (2,))

        assert cluster.active is not None
        answers = await cluster.active.ask(
            ElectLeaders(frozenset({TopicPartition("orders", 0)}), unclean=True)
        )

        assert answers.partitions == {TopicPartition("orders", 0): ErrorCode.NONE}
        state = cluster.state("orders")
        assert state is not None
        assert (state.leader, state.isr) == (3, (3,))

    play(story, 1, 2, 3)


def test_a_deleted_topic_leaves_no_znode_and_no_data_and_can_be_created_again() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (2, 1))
        own = OttlaTopicSettings("orders", None, {"flush.before.acknowledge": "true"})
        await cluster.brokers[1].session.create(own.path, own.encode(), make_parents=True)

        await cluster.delete_topic("orders")
        await cluster.until(lambda: not cluster.exists(paths.deleted_topic("orders")), "marker gone")

        assert not cluster.exists(paths.topic("orders"))
        assert not cluster.exists(own.path)
        assert all(not b.data and not b.roles and not b.metadata for b in cluster.brokers.values())
        await with_topic(cluster, (2, 1))

    play(story, 1, 2)


def test_a_topic_with_a_replica_on_a_dead_broker_is_deleted_when_that_returns() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        await cluster.kill(2)
        await cluster.until(lambda: cluster.brokers[1].alive == {1}, "2 gone")

        await cluster.delete_topic("orders")
        await cluster.until(lambda: not cluster.brokers[1].data, "deleted where it can be")
        assert cluster.exists(paths.deleted_topic("orders"))
        await cluster.start(2)

        await cluster.until(lambda: not cluster.exists(paths.deleted_topic("orders")), "marker gone")

    play(story, 1, 2)


def test_a_deletion_marker_of_an_unknown_topic_is_removed() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await cluster.delete_topic("never-was")

        await cluster.until(lambda: not cluster.exists(paths.deleted_topic("never-was")), "marker gone")

    play(story, 1)


def test_a_deletion_interrupted_by_a_controller_failover_is_finished_by_the_next_one() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2, 1), (1, 2))
        assert cluster.active is not None
        first = cluster.active.broker_id
        await cluster.until(lambda: cluster.under_way == 0, "all is answered")
        cluster.lost_answers = 1.0

        await cluster.delete_topic("orders")
        await cluster.until(lambda: any(not b.metadata for b in cluster.brokers.values()), "deletion begun")
        await cluster.kill(first)
        cluster.lost_answers = 0.0
        await cluster.start(first)

        await cluster.until(lambda: not cluster.exists(paths.deleted_topic("orders")), "marker gone")
        assert all(not broker.data for broker in cluster.brokers.values())

    play(story, 1, 2)


def test_controlled_shutdown_moves_leaderships_and_reports_what_could_not_be_moved() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2, 1), (2, 9))
        assert cluster.active is not None

        answers = await cluster.active.ask(ControlledShutdown(2, cluster.brokers[2].epoch))

        assert answers.remaining == [TopicPartition("orders", 1)]
        state = cluster.state("orders")
        assert state is not None
        assert (state.leader, state.isr) == (1, (1,))
        await cluster.until(
            lambda: TopicPartition("orders", 0) not in cluster.brokers[2].roles, "stopped on 2"
        )

    play(story, 1, 2)


def test_controlled_shutdown_with_an_older_broker_epoch_is_refused() -> None:
    async def story(cluster: ControllerCluster) -> None:
        assert cluster.active is not None

        answers = await cluster.active.ask(ControlledShutdown(1, cluster.brokers[1].epoch - 1))

        assert answers.top == ErrorCode.STALE_BROKER_EPOCH

    play(story, 1)


def test_a_preferred_election_gives_the_leadership_back() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2, 1))
        assert cluster.active is not None
        await cluster.active.ask(ControlledShutdown(2, -1))
        await cluster.kill(2)
        await cluster.start(2)
        await cluster.until(lambda: cluster.settled("orders"), "led by 1")
        partition = frozenset({TopicPartition("orders", 0)})

        refused = await cluster.active.ask(ElectLeaders(partition))

        assert refused.partitions[TopicPartition("orders", 0)] == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        await rejoin(cluster, (1, 2))
        done = await cluster.active.ask(ElectLeaders(partition))
        assert done.partitions[TopicPartition("orders", 0)] == ErrorCode.NONE
        state = cluster.state("orders")
        assert state is not None
        assert state.leader == 2

    play(story, 1, 2)


async def rejoin(cluster: ControllerCluster, isr: tuple[int, ...]) -> None:
    """Let the leader propose an ISR, as it does when a follower has caught up."""
    state, active = cluster.state("orders"), cluster.active
    assert state is not None
    assert active is not None
    version = cluster.ensemble.tree.node(state.path).version
    proposal = ProposedIsr(state.leader_epoch, version, isr)
    epoch = cluster.brokers[state.leader].epoch
    answers = await active.ask(AlterPartition(state.leader, epoch, {TopicPartition("orders", 0): proposal}))
    assert not answers.partitions, answers.partitions


def test_an_isr_proposed_with_an_old_partition_epoch_is_refused() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        assert cluster.active is not None
        partition = TopicPartition("orders", 0)
        await rejoin(cluster, (1,))

        late = AlterPartition(1, cluster.brokers[1].epoch, {partition: ProposedIsr(0, 0, (1, 2))})
        answers = await cluster.active.ask(late)

        assert answers.partitions[partition] == ErrorCode.INVALID_UPDATE_VERSION

    play(story, 1, 2)


def test_a_new_controller_sends_the_live_brokers_before_any_role() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2, 3))
        assert cluster.active is not None
        for broker in cluster.brokers.values():
            broker.requests.clear()

        await cluster.kill(cluster.active.broker_id)
        await cluster.until(lambda: cluster.active is not None and cluster.settled("orders"), "a new leader")

        for broker in cluster.brokers.values():
            kinds = [type(request) for request in broker.requests]
            assert kinds.index(UpdateMetadataRequest) < kinds.index(LeaderAndIsrRequest)

    play(story, 1, 2, 3)


def named_first(broker: SimulatedBroker) -> set[TopicPartition]:
    """Return the partitions in the first UpdateMetadata for the present registration of a broker."""
    first = next(
        one
        for one in broker.requests
        if isinstance(one, UpdateMetadataRequest) and one.broker_epoch == broker.epoch
    )
    return {
        TopicPartition(topic.topic_name, one.partition_index)
        for topic in first.topic_states
        for one in topic.partition_states
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_first_metadata_that_a_started_broker_gets_has_all_partitions(seed: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2, 3), (2, 3, 1), (3, 1, 2))
        known = {TopicPartition("orders", number) for number in range(3)}
        for number, victim in enumerate((cluster.active.broker_id if cluster.active else 1, 1, 2, 3)):
            name = f"made-meanwhile-{number}"
            await cluster.kill(victim)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(cluster.create_topic(name, (1, 2, 3)))
                tasks.create_task(cluster.start(victim))
            await cluster.until(lambda name=name: cluster.settled(name), f"{name} led")  # type: ignore[misc]
            started = cluster.brokers[victim]
            await cluster.until(lambda: victim in started.alive, "told")  # noqa: B023

            assert named_first(started) >= known
            known.add(TopicPartition(name, 0))

    play(story, 1, 2, 3, seed=seed)


def test_a_broker_that_bounced_between_two_reads_gets_its_roles_again() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        other = 2 if cluster.active is cluster.brokers[1].controller else 1
        before = cluster.brokers[other].epoch

        cluster.ensemble.expire(cluster.brokers[other].session)
        await cluster.until(lambda: cluster.brokers[other].epoch > before, "registered again")

        await cluster.until(lambda: cluster.settled("orders"), "roles again")

    play(story, 1, 2)


def test_the_election_znode_of_the_tool_is_processed_and_removed() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        node = PreferredReplicaElection((("orders", 0),))
        await cluster.brokers[1].session.create(node.path, node.encode())

        await cluster.until(lambda: not cluster.exists(node.path), "request removed")

    play(story, 1, 2)


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_reply_never_leaves_a_partition_unled(seed: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        assert cluster.active is not None
        session = cluster.brokers[cluster.active.broker_id].session
        await cluster.create_topic("orders", (1, 2), (2, 1))
        for _ in range(cluster.random.randrange(12)):
            cluster.ensemble.lose_next_reply(session)
            await asyncio.sleep(cluster.random.uniform(0, 0.02))

        await cluster.until(lambda: cluster.settled("orders", 0) and cluster.settled("orders", 1), "both led")

    play(story, 1, 2, seed=seed)
