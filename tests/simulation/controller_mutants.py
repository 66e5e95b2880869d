"""Changed rules of the controller: election, fencing, leader choice, channels, deletion."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller import controllership, elections
from ottla.broker.controller.channels import Channel
from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller import Controller
from ottla.broker.controller.controller_context import ReplicaState
from ottla.broker.controller.isr_changes import IsrChanges
from ottla.broker.controller.leadership_changes import Leaderships
from ottla.broker.controller.state_machine import Machine
from ottla.broker.controller.topic_deletion import Deletion
from ottla.broker.controller.zookeeper_store import Store
from ottla.broker.replication.replicas import Replicas
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.session import Create, NodeExists, SetData, ZooKeeperError
from ottla.zookeeper.znodes import ControllerEpoch, ControllerNode
from simulation.mutants import Patch, mutant


@mutant()
def writes_not_fenced() -> list[Patch]:
    """A controller writes without comparing the controller epoch."""

    async def fenced(self: Any, operations: Any) -> Any:
        return await self._zk.multi(list(operations))

    return [(Store, "fenced", fenced)]


@mutant()
def election_in_two_steps() -> list[Patch]:
    """The controller's znode and its epoch are written one after the other."""

    async def run(session: Any, session_id: int, broker_id: int, now_ms: int) -> Any:
        epoch, version = await controllership._read_epoch(session)
        node = ControllerNode(broker_id=broker_id, timestamp_ms=now_ms)
        try:
            await session.multi([Create(paths.CONTROLLER, node.encode(), ephemeral=True)])
            await session.multi(
                [SetData(paths.CONTROLLER_EPOCH, ControllerEpoch(epoch + 1).encode(), version)]
            )
        except (NodeExists, ZooKeeperError):
            return None
        return controllership.Controllership(epoch + 1, version + 1)

    return [(controllership, "run_for_election", run)]


@mutant(equivalent=True, within=100)
def lost_reply_of_the_election_is_a_defeat() -> list[Patch]:
    """A controller whose election had no reply does not look whether it has won.

    Equivalent: the next check of the controllership finds its znode, removes it and runs once more.
    """

    async def not_mine(*_: Any) -> bool:
        return False

    return [(controllership, "_is_mine", not_mine)]


@mutant()
def leader_epoch_not_raised() -> list[Patch]:
    """A new leader has the leader epoch of its predecessor."""

    def following(
        self: Leadership, *, leader: int, isr: tuple[int, ...], controller_epoch: int
    ) -> Leadership:
        return replace(self, leader=leader, isr=isr, controller_epoch=controller_epoch)

    return [(Leadership, "next", following)]


@mutant()
def out_of_sync_leader_elected() -> list[Patch]:
    """A replica outside of the ISR is elected where no other is alive, though the topic forbids it."""

    async def all_of_them(self: Configs, topics: Any) -> frozenset[str]:
        return frozenset(topics)

    return [(Configs, "read_unclean_topics", all_of_them)]


@mutant()
def last_member_leaves_the_isr() -> list[Patch]:
    """The last in-sync replica is dropped from the ISR when it dies."""
    original = Leaderships._settled

    def settled(self: Any, one: Any, unclean: Any) -> Any:
        found = original(self, one, unclean)
        return replace(found, isr=()) if found is not None and found.leader == -1 else found

    return [(Leaderships, "_settled", settled)]


@mutant(within=400, equivalent=True)
def dead_replica_may_join() -> list[Patch]:
    """AlterPartition may add a replica that is dead or shuts down.

    Equivalent for safety: the leader proposes only a follower that has just fetched what is committed, and
    its death is noticed afterwards, which removes it again. The rule keeps produce from waiting for it.
    """
    original = IsrChanges._validate_proposal

    def validate(self: Any, one: Any, proposal: Any, leader: int) -> Any:
        context = self._context
        shutting_down, context.shutting_down = context.shutting_down, set()
        try:
            return original(self, one, proposal, leader)
        finally:
            context.shutting_down = shutting_down

    return [(IsrChanges, "_validate_proposal", validate)]


@mutant(within=8, scenario="late expansion")
def proposal_of_an_old_epoch_accepted() -> list[Patch]:
    """AlterPartition compares neither the leader epoch nor the partition epoch."""
    original = IsrChanges.alter_partition

    def alter_partition(self: Any, event: Any, answers: Any) -> Any:
        known = self._context.leaderships
        proposals = {
            one: replace(
                proposal,
                leader_epoch=known[one].leader_epoch,
                partition_epoch=known[one].partition_epoch,
            )
            for one, proposal in event.proposals.items()
            if one in known
        }
        return original(self, replace(event, proposals=proposals), answers)

    return [(IsrChanges, "alter_partition", alter_partition)]


@mutant()
def restart_not_noticed() -> list[Patch]:
    """A broker that was registered anew between two reads counts as the one before."""
    original = Machine._brokers_read

    def brokers_read(self: Any, now: Any) -> Any:
        before = self.context.live
        same = {
            one: replace(each, epoch=before[one].epoch) if one in before else each
            for one, each in now.items()
        }
        return original(self, same)

    return [(Machine, "_brokers_read", brokers_read)]


@mutant()
def brokers_watched_once() -> list[Patch]:
    """The watch on the registered brokers is not set again after it has fired."""
    original = Store.brokers

    async def brokers(self: Any, watch: Any) -> Any:
        first, self._named = "watched" not in self._named, self._named | {"watched"}
        return await original(self, watch if first else (lambda _: None))

    return [(Store, "brokers", brokers)]


@mutant()
def controller_task_dies() -> list[Patch]:
    """After a failure the controller does nothing more, and keeps its znode."""

    async def stand_still(self: Any, reason: str) -> None:
        await asyncio.Event().wait()

    return [(Controller, "_step_down", stand_still)]


@mutant()
def unreadable_znode_fails_the_controller() -> list[Patch]:
    """A topic's znode that cannot be read ends each controllership."""
    original = Store._topic

    async def topic(self: Any, name: str) -> Any:
        found = await original(self, name)
        read = await self._read(paths.topic(name))
        if found is None and read is not None:
            raise MalformedZnode(paths.topic(name), "unreadable")
        return found

    return [(Store, "_topic", topic)]


@mutant()
def requests_sent_once() -> list[Patch]:
    """A request to a broker that had no answer is not repeated."""

    async def run(self: Channel) -> None:
        while True:
            request = await self._queue.get()
            try:
                response = await self._sender.send(request)
            except Exception:
                continue
            self._replied(self.broker, request, response)

    return [(Channel, "run", run)]


@mutant()
def leaders_not_told() -> list[Patch]:
    """A state that was written is not sent to the brokers."""
    original = Leaderships.update

    class Silent(ControlRequestBatch):
        def lead_or_follow(self, *_: Any, **__: Any) -> None:
            pass

    def update(self: Any, partitions: Any, decide: Any) -> Any:
        batch, self._batch = self._batch, Silent(self._context)
        try:
            return (yield from original(self, partitions, decide))
        finally:
            self._batch = batch

    return [(Leaderships, "update", update)]


@mutant()
def new_controller_tells_nobody() -> list[Patch]:
    """A new controller sends no roles to brokers that it finds alive."""

    def silent(self: Any, event: Any) -> Any:
        self.context.live = dict(event.brokers)
        self.context.topics = dict(event.topics)
        self.context.leaderships = dict(event.states.leaderships)
        yield from self._initial_states()

    return [(Machine, "_take_over", silent)]


@mutant()
def preferred_leader_out_of_sync() -> list[Patch]:
    """The preferred replica is elected though it is not in the ISR."""

    def elect(replicas: Any, isr: Any, alive: Any) -> Any:
        preferred = replicas[0]
        if not alive(preferred):
            return None
        return elections.Choice(preferred, tuple(dict.fromkeys((preferred, *isr))))

    return [(elections, "elect_preferred", elect)]


@mutant()
def leadership_handed_to_anyone() -> list[Patch]:
    """A controlled shutdown moves leaderships to replicas that are not in the ISR."""

    def elect(replicas: Any, isr: Any, alive: Any, leaving: Any) -> Any:
        for one in replicas:
            if one not in leaving and alive(one):
                return elections.Choice(one, (one,))
        return None

    return [(elections, "elect_for_shutdown", elect)]


@mutant(within=4, scenario="deletion while one is away")
def deletion_without_the_dead() -> list[Patch]:
    """A topic is gone as soon as the live brokers have deleted it."""

    def is_deleted(self: Any, topic: str) -> bool:
        context = self._context
        alive = [one for one in context.replicas_of(topic) if context.is_alive(*one)]
        return all(context.replica_state(*one) is ReplicaState.DELETION_SUCCESSFUL for one in alive)

    return [(Deletion, "_is_deleted", is_deleted)]


@mutant()
def deletion_marker_kept() -> list[Patch]:
    """A deleted topic keeps its marker: it can never be created again."""

    async def keep(self: Any, topic: str) -> None:
        return

    return [(Store, "drop_marker", keep)]


@mutant(within=400, equivalent=True)
def queued_work_goes_on_in_a_new_session() -> list[Patch]:
    """The end of a session does not end the controllership at once.

    Equivalent: every write is bound to the session and fenced by the controller epoch, so that the next one
    fails and ends it. The rule spares callers the wait for that.
    """
    return [(Controller, "_session_changed", _session_changed_later)]


def _session_changed_later(self: Any, change: Any) -> None:
    if change.state.value == "connected":
        self._signal("controllership")


@mutant(within=6, scenario="sessions lost in an election")
def reconnected_session_not_looked_at() -> list[Patch]:
    """After a lost connection the controllership is not checked again."""

    def session_changed(self: Any, change: Any) -> None:
        if change.state.value == "lost":
            self._resign("the session is lost")

    return [(Controller, "_session_changed", session_changed)]


@mutant(within=400, equivalent=True)
def requests_of_an_earlier_life_obeyed() -> list[Patch]:
    """A broker obeys requests that were meant for its registration before.

    Equivalent here: the channel to the earlier registration is closed before that to the next one opens,
    and the simulated network keeps the order of a connection.
    """
    return [
        (Controller, "is_stale_broker_epoch", lambda self, epoch: False),
        (Replicas, "_refuse", lambda self, controller_epoch, broker_epoch: None),
    ]
