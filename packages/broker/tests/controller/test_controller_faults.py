"""Random fault schedules: sessions expire, replies are lost, brokers die, topics come and go."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from ottla.broker.controller.testing import ControllerCluster, run_in_virtual_time
from ottla.broker.runtime.loop_budget import BACKGROUND_MS
from ottla.protocol.errors import NotController
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import ZooKeeperError
from ottla.zookeeper.znodes import ReassignPartitions

SCHEDULES = 60
STEPS = 40
BROKERS = (1, 2, 3)


class Schedule:
    """One seed's sequence of faults."""

    def __init__(self, cluster: ControllerCluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.topics: set[str] = set()
        self.moved: set[str] = set()
        self.numbers = 0

    async def run(self) -> None:
        """Let faults happen, then heal and wait for order."""
        cluster = self.cluster
        await cluster.start(*BROKERS)
        for _ in range(STEPS):
            await self.random.choice(
                (self.expire, self.lose_reply, self.lose_request, self.disconnect, self.bounce,
                 self.create, self.create, self.delete, self.remove_controller, self.lose_answers,
                 self.reassign, self.reassign, self.reassign_by_znode, self.catch_up, self.catch_up)
            )()  # fmt: skip
            await asyncio.sleep(self.random.choice((0.0, 0.002, 0.01, 0.05, 0.3, 2.0)))
            cluster.invariants.check()
        await self.heal()

    async def heal(self) -> None:
        cluster = self.cluster
        cluster.lost_answers = 0.0
        await cluster.start(*(broker for broker in BROKERS if broker not in cluster.brokers))
        for broker in cluster.brokers.values():
            if not broker.session.connected:
                cluster.ensemble.reconnect(broker.session)
        await cluster.until(lambda: cluster.active is not None, "one controller")
        await self.finish_moves()
        left = {partition.topic for broker in cluster.brokers.values() for partition in broker.data}
        left -= self.moved  # a broker that is away when a replica leaves it keeps the data
        assert all(cluster.exists(paths.topic(topic)) for topic in left), "a deleted topic left data"

    async def finish_moves(self) -> None:
        """Let replicas catch up until nothing moves; then exactly the assigned replicas are served."""
        cluster = self.cluster
        async with asyncio.timeout(120):
            while any(self.is_moving(topic) for topic in self.topics) or cluster.exists(
                paths.REASSIGN_PARTITIONS
            ):
                await cluster.catch_up()
                await asyncio.sleep(0.05)
                cluster.invariants.check()
        await cluster.until(
            lambda: not cluster.ensemble.tree.node(paths.DELETE_TOPICS).children, "deletions done"
        )
        for topic in sorted(filter(self.is_there, self.topics)):
            await cluster.until(partial(cluster.settled, topic), f"{topic} led")
            await cluster.until(partial(self.is_hosted, topic), f"{topic} hosted by its replicas alone")

    def is_hosted(self, topic: str) -> bool:
        [assigned] = self.cluster.assignment(topic).partitions.values()
        brokers = self.cluster.brokers.values()
        return {each.id for each in brokers if TopicPartition(topic, 0) in each.roles} == set(assigned)

    def is_there(self, topic: str) -> bool:
        return self.cluster.exists(paths.topic(topic))

    def is_moving(self, topic: str) -> bool:
        if not self.is_there(topic):
            return False
        node = self.cluster.assignment(topic)
        return bool(node.adding_replicas or node.removing_replicas)

    def some_moves(self) -> dict[TopicPartition, tuple[int, ...]]:
        topics = self.random.sample(sorted(self.topics), min(2, len(self.topics)))
        self.moved.update(topics)
        return {
            TopicPartition(topic, 0): tuple(self.random.sample(BROKERS, self.random.randint(1, 3)))
            for topic in topics
        }

    async def reassign(self) -> None:
        """Ask for moves, or cancel some; do not wait longer than a moment."""
        moves = {p: self.random.choice((to, to, to, None)) for p, to in self.some_moves().items()}
        with suppress(TimeoutError, NotController):
            async with asyncio.timeout(self.random.choice((0.001, 0.01, 1.0))):
                if self.cluster.active is not None:
                    await self.cluster.reassign(moves)

    async def reassign_by_znode(self) -> None:
        node = ReassignPartitions({(p.topic, 0): to for p, to in self.some_moves().items()})
        for broker in self.cluster.brokers.values():
            if broker.session.connected and not self.cluster.exists(node.path):
                with suppress(ZooKeeperError):
                    await broker.session.create(node.path, node.encode())
                return

    async def catch_up(self) -> None:
        await self.cluster.catch_up()

    async def expire(self) -> None:
        broker = self.random.choice(list(self.cluster.brokers.values()))
        self.cluster.ensemble.expire(broker.session)

    async def lose_reply(self) -> None:
        broker = self.random.choice(list(self.cluster.brokers.values()))
        self.cluster.ensemble.lose_next_reply(broker.session)

    async def lose_request(self) -> None:
        broker = self.random.choice(list(self.cluster.brokers.values()))
        self.cluster.ensemble.lose_next_request(broker.session)

    async def disconnect(self) -> None:
        broker = self.random.choice(list(self.cluster.brokers.values()))
        self.cluster.ensemble.disconnect(broker.session)
        await asyncio.sleep(self.random.choice((0.0, 0.1, 3.0, 7.0)))
        self.cluster.ensemble.reconnect(broker.session)

    async def bounce(self) -> None:
        if len(self.cluster.brokers) > 1:
            broker = self.random.choice(list(self.cluster.brokers))
            await self.cluster.kill(broker)
            await asyncio.sleep(self.random.choice((0.0, 0.01, 1.0)))
            await self.cluster.start(broker)

    async def create(self) -> None:
        self.numbers += 1
        name = f"topic-{self.numbers % 6}"
        self.topics.add(name)
        replicas = self.random.sample(BROKERS, self.random.randint(1, 3))
        if not self.cluster.exists(paths.deleted_topic(name)):
            await self.cluster.create_topic(name, tuple(replicas))

    async def delete(self) -> None:
        if self.topics:
            name = self.random.choice(sorted(self.topics))
            if self.cluster.exists(paths.topic(name)):
                await self.cluster.delete_topic(name)

    async def remove_controller(self) -> None:
        for broker in self.cluster.brokers.values():
            if broker.session.connected and self.cluster.exists(paths.CONTROLLER):
                try:
                    await broker.session.delete(paths.CONTROLLER)
                except Exception:
                    return
                return

    async def lose_answers(self) -> None:
        self.cluster.lost_answers = self.random.choice((0.0, 0.0, 0.3))


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_schedule_of_faults_breaks_an_invariant_and_the_cluster_recovers(
    seed: int,
) -> None:
    # In half of them other tasks run after each effect of a step, as where there are many partitions.
    background_ms = 0.0 if seed % 2 else BACKGROUND_MS

    async def main() -> None:
        async with ControllerCluster(seed, background_ms=background_ms) as cluster:
            await Schedule(cluster).run()

    run_in_virtual_time(main())
