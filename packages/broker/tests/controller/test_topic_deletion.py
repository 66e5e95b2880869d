"""The cost of deleting topics: how many requests and transactions it takes, and topics that were edited."""

from __future__ import annotations

from ottla.broker.controller.testing import ControllerCluster, play
from ottla.protocol.messages.control_requests import StopReplicaRequest
from ottla.zookeeper import paths
from ottla.zookeeper.session import Create

PARTITIONS = 60


async def _with_topic(cluster: ControllerCluster, name: str, *replicas: tuple[int, ...]) -> None:
    await cluster.create_topic(name, *replicas)
    await cluster.until(lambda: all(cluster.settled(name, p) for p in range(len(replicas))), f"{name} led")


async def _gone(cluster: ControllerCluster, *names: str) -> None:
    await cluster.until(
        lambda: (
            not any(cluster.exists(path(one)) for one in names for path in (paths.topic, paths.deleted_topic))
        ),
        "topics and markers gone",
    )


def test_a_broker_is_asked_once_to_delete_what_it_has_of_topics_marked_together() -> None:
    names = [f"orders-{number}" for number in range(8)]

    async def story(cluster: ControllerCluster) -> None:
        for name in names:
            await _with_topic(cluster, name, (1, 2), (2, 1))
        await cluster.delete_topic("never-was")  # so that the parent of the markers is there
        await _gone(cluster, "never-was")
        before = len(cluster.brokers[2].requests)

        await cluster.brokers[1].session.multi([Create(paths.deleted_topic(name)) for name in names])
        await _gone(cluster, *names)

        requests = cluster.brokers[2].requests[before:]
        stops = [request for request in requests if isinstance(request, StopReplicaRequest)]
        deleting = [
            r for r in stops if any(s.delete_partition for t in r.topic_states for s in t.partition_states)
        ]
        assert len(deleting) == 1
        assert {topic.topic_name for topic in deleting[0].topic_states} == set(names)
        assert len(stops) == 2, "one stops the replicas, one deletes them"

    play(story, 1, 2)


def test_the_znodes_of_many_partitions_are_removed_in_few_transactions() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await _with_topic(cluster, "orders", *((1,) for _ in range(PARTITIONS)))
        before = len(cluster.ensemble.history)

        await cluster.delete_topic("orders")
        await _gone(cluster, "orders")

        assert len(cluster.ensemble.history) - before < PARTITIONS / 4

    play(story, 1)


def test_a_topic_is_deleted_whose_znodes_were_edited_by_hand() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await _with_topic(cluster, "orders", *((1,) for _ in range(PARTITIONS)))
        session = cluster.brokers[1].session
        await session.delete(paths.partition_state("orders", PARTITIONS - 1))
        await session.create(f"{paths.partition('orders', 3)}/note", b"from a person")

        await cluster.delete_topic("orders")

        await _gone(cluster, "orders")

    play(story, 1)
