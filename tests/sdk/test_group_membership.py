"""Membership in groups as the coordinator sees it: joining, leaving, being thrown out, coming back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.client.cluster import Cluster
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.errors import CommitFailed, Fenced, GroupFailed, InconsistentAssignors
from ottla.consumer.group.commits import Commits
from ottla.consumer.subscription import Partitions, RebalanceListener, TopicFilter, subscription
from ottla.protocol.errors import OffsetMetadataTooLarge
from ottla.protocol.topics import TopicPartition
from peers.group_application import PATIENCE_S, group_application, outside


class Servers(Protocol):
    """A cluster under test."""

    bootstrap_servers: str


def fresh(stem: str) -> str:
    return f"{stem}-{secrets.token_hex(4)}"


async def topic_of(servers: str, partitions: int, name: str | None = None) -> str:
    name = name or fresh("membership")
    async with Admin(servers) as admin:
        await admin.topics.create(name, partitions=partitions)
    return name


async def test_two_members_share_and_one_gets_all_when_the_other_leaves(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 4)

    async with group_application(servers, subscription(topic), group_id=group) as one:
        await one.until_owning(0, 1, 2, 3)
        async with group_application(servers, subscription(topic), group_id=group) as other:
            await other.until(lambda: len(other.numbers()) == 2)
            await one.until(lambda: len(one.numbers()) == 2)
            assert sorted(one.numbers() + other.numbers()) == [0, 1, 2, 3]

        await one.until_owning(0, 1, 2, 3)


async def test_cooperative_members_keep_what_stays_theirs(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 4)
    settings: dict[str, Any] = {"group_id": group, "partition_assignment_strategy": "cooperative-sticky"}

    async with group_application(servers, subscription(topic), **settings) as one:
        await one.until_owning(0, 1, 2, 3)
        async with group_application(servers, subscription(topic), **settings) as other:
            await other.until_owning(2, 3)
            await one.until_owning(0, 1)
            given_up = [partitions for what, partitions in one.events if what == "revoked"]

    assert given_up[0] == {TopicPartition(topic, 2), TopicPartition(topic, 3)}


async def test_a_member_that_dies_is_replaced_after_its_session_timeout(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)

    async with group_application(servers, subscription(topic), group_id=group) as one:
        async with group_application(servers, subscription(topic), group_id=group) as other:
            await other.until(lambda: len(other.numbers()) == 1)
            await one.until(lambda: len(one.numbers()) == 1)
            other.membership.close = _nothing

        await one.until_owning(0, 1)


async def test_a_static_member_that_comes_back_gets_what_it_had_without_a_rebalance(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)

    async with group_application(servers, subscription(topic), group_id=group) as one:
        static = {"group_id": group, "group_instance_id": "static"}
        async with group_application(servers, subscription(topic), **static) as other:
            await other.until(lambda: len(other.numbers()) == 1)
            await one.until(lambda: len(one.numbers()) == 1)
            had, events = other.numbers(), list(one.events)
        async with group_application(servers, subscription(topic), **static) as back:
            await back.until_owning(*had)

        assert one.events == events


async def test_a_static_leader_that_came_back_notices_new_partitions(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)
    static = {"group_id": group, "group_instance_id": "static", "metadata_max_age_ms": 100}

    async with group_application(servers, subscription(topic), **static) as one:
        await one.until_owning(0, 1)
    async with group_application(servers, subscription(topic), **static) as back:
        await back.until_owning(0, 1)
        async with Admin(servers) as admin:
            await admin.topics.add_partitions(topic, 3)

        await back.until_owning(0, 1, 2)


async def test_a_static_member_closes_at_once_while_others_have_still_to_join(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)

    stubborn = {"group_id": group, "handling_grace_ms": 60_000}
    async with group_application(servers, subscription(topic), **stubborn) as one:
        await one.until_owning(0, 1)
        one.handles = True
        static = {"group_id": group, "group_instance_id": "static"}
        async with group_application(servers, subscription(topic), **static) as other:
            await one.until(lambda: bool(one.held), "a rebalance, which the static member waits for")
            async with asyncio.timeout(PATIENCE_S / 4):
                await other.membership.close()
        one.handles = False


async def test_a_static_member_is_fenced_by_another_one_of_its_name(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)
    static = {"group_id": group, "group_instance_id": "static"}

    async with group_application(servers, subscription(topic), **static) as one:
        await one.until_owning(0, 1)
        async with group_application(servers, subscription(topic), **static) as other:
            await one.until(lambda: one.events[-1][0] == "lost", "losing all")
            await other.until_owning(0, 1)

            for _ in range(2):  # it stays out
                with pytest.raises(Fenced, match="'static'"):
                    one.membership.polled()
            with pytest.raises(CommitFailed):
                await one.commits.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})


async def test_a_consumer_that_stops_asking_leaves_until_it_asks_again(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)

    slow = {"group_id": group, "max_poll_interval_ms": 1_000}
    async with group_application(servers, subscription(topic), **slow) as one:
        await one.until_owning(0, 1)
        one.asks = False
        async with group_application(servers, subscription(topic), group_id=group) as other:
            await other.until_owning(0, 1)
            assert ("lost", one.events[-1][1]) == one.events[-1]
            with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
                await one.commits.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})

            one.asks = True
            one.membership.polled()

            await one.until(lambda: len(one.numbers()) == 1)


async def test_heartbeats_go_on_while_the_application_handles_a_record_for_long(tmp_path: Path) -> None:
    settings = {"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "0"}
    with BrokerThread(tmp_path, settings) as broker:
        topic = await topic_of(broker.bootstrap_servers, 1)
        short: dict[str, Any] = {"group_id": "group", "session_timeout_ms": 600, "heartbeat_interval_ms": 100}
        async with group_application(broker.bootstrap_servers, subscription(topic), **short) as one:
            await one.until_owning(0)
            one.asks, one.handles = False, True
            before = one.membership.group_metadata()

            await asyncio.sleep(1.5)  # the time that a handler takes: longer than the session timeout

            assert one.membership.is_stable
            assert one.membership.group_metadata() == before


async def test_a_rebalance_waits_for_the_record_in_hand_but_not_for_long(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)
    record = TopicPartition(topic, 0)

    patient = {"group_id": group, "handling_grace_ms": 60_000}
    async with group_application(servers, subscription(topic), **patient) as one:
        await one.until_owning(0, 1)
        one.handles = True
        async with group_application(servers, subscription(topic), group_id=group) as other:
            await one.until(lambda: bool(one.held) or not one.numbers())
            assert one.partitions == {record, TopicPartition(topic, 1)}
            one.finished[record] = OffsetAndMetadata(8, "done")
            one.handles = False

            await other.until(lambda: len(other.numbers()) == 1)
            assert await other.commits.committed([record]) == {record: OffsetAndMetadata(8, "done")}


async def test_patterns_pick_up_topics_that_are_new(cluster: Servers) -> None:
    servers, stem = cluster.bootstrap_servers, fresh("pattern")
    await topic_of(servers, 1, f"{stem}.a")
    wanted = subscription(pattern=TopicFilter(rf"{stem}\..*", deny=r".*\.test"))
    settings = {"group_id": fresh("group"), "metadata_max_age_ms": 100}

    async with group_application(servers, wanted, **settings) as one:
        await one.until(lambda: len(one.numbers()) == 1)
        await topic_of(servers, 1, f"{stem}.test")
        await topic_of(servers, 2, f"{stem}.b")

        await one.until(lambda: len(one.numbers()) == 3)
        assert {each.topic for each in one.partitions} == {f"{stem}.a", f"{stem}.b"}


async def test_new_partitions_are_assigned_whoever_leads(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)
    settings = {"group_id": group, "metadata_max_age_ms": 100}

    async with group_application(servers, subscription(topic), **settings) as one:
        await one.until_owning(0, 1)
        async with group_application(servers, subscription(topic), **settings) as other:
            await other.until(lambda: len(other.numbers()) == 1)
            async with Admin(servers) as admin:
                await admin.topics.add_partitions(topic, 4)

            await other.until(lambda: len(other.numbers()) == 2)
            await one.until(lambda: len(one.numbers()) == 2)


async def test_a_topic_that_is_made_later_is_read_then(cluster: Servers) -> None:
    servers, topic = cluster.bootstrap_servers, fresh("later")
    settings = {"group_id": fresh("group"), "allow_auto_create_topics": False}

    async with group_application(servers, subscription(topic), **settings) as one:
        await one.membership.stable()
        assert one.numbers() == []
        await topic_of(servers, 1, topic)

        await one.until_owning(0)


async def test_changing_the_subscription_changes_the_partitions(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    first, second = await topic_of(servers, 1), await topic_of(servers, 2)

    async with group_application(servers, subscription(first), group_id=group) as one:
        await one.until_owning(0)
        one.membership.subscribe(subscription(second))
        await one.until_owning(0, 1)
        assert {each.topic for each in one.partitions} == {second}

        one.membership.unsubscribe()
        await one.until(lambda: one.membership.group_metadata() == outside(group), "leaving")
        assert not one.partitions

        one.membership.subscribe(subscription(first))
        await one.until_owning(0)


class Telling(RebalanceListener):
    """Commits and fails in its methods."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Partitions]] = []
        self.on_revoke: Callable[[], Coroutine[Any, Any, None]] = _nothing

    async def on_partitions_revoked(self, revoked: Partitions) -> None:
        self.heard.append(("revoked", revoked))
        await self.on_revoke()

    def on_partitions_assigned(self, assigned: Partitions) -> None:
        self.heard.append(("assigned", assigned))

    async def on_partitions_lost(self, lost: Partitions) -> None:
        self.heard.append(("lost", lost))


async def test_a_listener_may_commit_for_what_is_taken_away(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 1)
    partition, listener = TopicPartition(topic, 0), Telling()

    async with group_application(servers, subscription(topic), listener=listener, group_id=group) as one:
        await one.until_owning(0)

        async def commit() -> None:
            assert partition in one.partitions
            await one.commits.commit({partition: OffsetAndMetadata(5, "last words", 0)})

        listener.on_revoke = commit

    alone = frozenset({partition})
    assert listener.heard == [("assigned", alone), ("revoked", alone)]
    async with Cluster(servers) as reader:
        commits = Commits(reader, group, lambda: outside(group))
        assert await commits.committed([partition]) == {partition: OffsetAndMetadata(5, "last words", 0)}
        await commits.close()


async def test_what_a_listener_raises_reaches_the_application_once(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 1)
    listener = Telling()

    async def fail() -> None:
        raise RuntimeError("no")

    listener.on_revoke = fail
    async with group_application(servers, subscription(topic), listener=listener, group_id=group) as one:
        await one.until_owning(0)
        one.membership.unsubscribe()
        await one.until(lambda: not one.partitions)

        with pytest.raises(RuntimeError, match="no"):
            one.membership.polled()
        one.membership.polled()


async def test_assignors_without_one_in_common_are_explained(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 1)

    async with group_application(servers, subscription(topic), group_id=group) as one:
        await one.until_owning(0)
        odd = {"group_id": group, "partition_assignment_strategy": "sticky"}
        async with group_application(servers, subscription(topic), **odd) as other:
            error = await _failure(other.membership.polled)

    assert isinstance(error, InconsistentAssignors)
    assert "sticky" in str(error)
    assert f"ottla group describe {group}" in str(error)


async def test_offsets_are_committed_with_notes_and_read_back(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 2)
    partition = TopicPartition(topic, 1)

    async with group_application(servers, subscription(topic), group_id=group) as one:
        await one.until_owning(0, 1)
        await one.commits.commit({partition: OffsetAndMetadata(3, "half way")})
        found = await one.commits.committed([partition, TopicPartition(topic, 0)], require_stable=True)
        with pytest.raises(OffsetMetadataTooLarge):
            await one.commits.commit({partition: OffsetAndMetadata(4, "x" * 5_000)})

    assert found == {partition: OffsetAndMetadata(3, "half way")}


async def test_finished_offsets_are_committed_by_themselves_and_once(cluster: Servers) -> None:
    servers, group = cluster.bootstrap_servers, fresh("group")
    topic = await topic_of(servers, 1)
    partition = TopicPartition(topic, 0)

    settings = {"group_id": group, "auto_commit_interval_ms": 50}
    async with group_application(servers, subscription(topic), **settings) as one:
        await one.until_owning(0)
        one.finished[partition] = OffsetAndMetadata(6)
        async with asyncio.timeout(PATIENCE_S):
            await _committed(one.commits, partition)
        one.finished[partition] = OffsetAndMetadata(9)
        member = one.membership.group_metadata()

    async with Cluster(servers) as reader:
        late = Commits(reader, group, lambda: member)
        assert (await late.committed([partition]))[partition].offset == 9
        with pytest.raises(CommitFailed, match="UNKNOWN_MEMBER_ID"):
            await late.commit({partition: OffsetAndMetadata(1)})
        await late.close()


async def test_a_full_group_says_so(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, {"group.max.size": "1", "group.initial.rebalance.delay.ms": "0"}) as broker:
        servers = broker.bootstrap_servers
        topic = await topic_of(servers, 1)
        async with group_application(servers, subscription(topic), group_id="full") as one:
            await one.until_owning(0)
            async with group_application(servers, subscription(topic), group_id="full") as other:
                error = await _failure(other.membership.polled)

    assert isinstance(error, GroupFailed)
    assert "group.max.size" in str(error)


async def test_a_member_stays_one_while_its_coordinator_restarts(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, {"group.initial.rebalance.delay.ms": "0"}) as broker:
        topic = await topic_of(broker.bootstrap_servers, 2)
        wanted = subscription(topic)
        async with group_application(broker.bootstrap_servers, wanted, group_id="group") as one:
            await one.until_owning(0, 1)
            before = one.membership.group_metadata()

            await asyncio.to_thread(broker.restart)
            await one.commits.commit({TopicPartition(topic, 0): OffsetAndMetadata(2)})

            assert one.membership.group_metadata() == before
            assert [what for what, _ in one.events] == ["released"]


async def _failure(ask: Callable[[], None]) -> Exception:
    """Ask until that fails, and return the error."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                ask()
            except Exception as error:
                return error
            await asyncio.sleep(0.01)


async def _committed(commits: Commits, partition: TopicPartition) -> None:
    while partition not in await commits.committed([partition]):
        pass


async def _nothing() -> None:
    """Do nothing."""
