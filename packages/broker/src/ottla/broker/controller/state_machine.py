"""The controller's decisions as a pure state machine: an event in, effects out, changes to the context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.broker.cluster.features import Members
from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller_context import (
    NO_LEADER,
    ControllerContext,
    LiveBroker,
    PartitionState,
    Replica,
    ReplicaState,
    Topic,
)
from ottla.broker.controller.events import (
    AlterReassignments,
    BalanceLeaders,
    BrokersRead,
    DeletionsGoOn,
    DropMarker,
    Elected,
    ElectLeaders,
    Event,
    ListReassignments,
    PartitionStates,
    ReplicasFailed,
    ReplyReceived,
    StatesRead,
    Steps,
    TopicsRead,
    UncleanElectionAllowed,
    UpdateFeatures,
    WriteFeatures,
)
from ottla.broker.controller.isr_changes import IsrChanges
from ottla.broker.controller.leadership_changes import Leaderships
from ottla.broker.controller.reassignments import Reassignments
from ottla.broker.controller.requested_elections import RequestedElections
from ottla.broker.controller.topic_deletion import Deletion
from ottla.broker.peers.controller_requests import AlterPartition, Answers, ControlledShutdown
from ottla.broker.runtime.loop_budget import EndOfSlice, slices
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace


class Machine:
    """One controllership, from its election to its end."""

    def __init__(self, context: ControllerContext, inter_broker_listener: str = "PLAINTEXT") -> None:
        self.context = context
        self.batch = ControlRequestBatch(context, inter_broker_listener)
        self.deletion = Deletion(context, self.batch)
        self.leaderships = Leaderships(context, self.batch)
        self.elections = RequestedElections(context, self.batch, self.leaderships)
        self.isr_changes = IsrChanges(context, self.batch, self.leaderships)
        self.reassignments = Reassignments(context, self.batch, self.leaderships)

    def step(self, event: Event) -> Steps[Answers]:
        """Process one event: yields effects, is sent the result of each, returns the answer to the event."""
        answers = Answers()
        match event:
            case Elected():
                yield from self._take_over(event)
            case BrokersRead():
                yield from self._brokers_read(dict(event.brokers))
            case TopicsRead():
                yield from self._topics_read(event)
            case ReplyReceived():
                yield from self._reply_received(event)
            case ElectLeaders():
                yield from self.elections.elect(event, answers)
            case UncleanElectionAllowed():
                yield from self._unclean_election_allowed(event.topic)
            case ControlledShutdown():
                yield from self.elections.controlled_shutdown(event, answers)
            case AlterPartition():
                yield from self.isr_changes.alter_partition(event, answers)
            case BalanceLeaders():
                yield from self.elections.balance(event.allowed_imbalance)
            case AlterReassignments():
                yield from self.reassignments.alter(event, answers)
            case ListReassignments():
                self.reassignments.list_moving(event, answers)
            case StatesRead():
                self._states_read(event.states)
            case ReplicasFailed():
                self._resend_leader_and_isr(event.broker_id)
            case UpdateFeatures():
                yield from self._update_features(event, answers)
            case DeletionsGoOn():
                yield from self.deletion.go_on()
        # After an event of any kind: a reassignment or a deletion may have waited for it as the last one.
        yield from self._go_on()
        yield from self._flush()
        return answers

    def _go_on(self) -> Steps[None]:
        """Do what the event has made possible: complete reassignments, then delete what waited for them."""
        yield from self.reassignments.advance()
        context = self.context
        if free := {name for name in context.deletions_waiting if not context.is_moving(name)}:
            context.deletions_waiting -= free
            yield from self._delete_topics(free)

    def _flush(self) -> Steps[None]:
        yield from self.batch.requests()

    # ---- taking over

    def _take_over(self, event: Elected) -> Steps[None]:
        context = self.context
        yield from self._suspend_features(event.brokers)
        context.live = dict(event.brokers)
        context.topics = dict(event.topics)
        context.leaderships = dict(event.states.leaderships)
        context.unreadable = set(event.states.unreadable)
        for some in slices(context.partitions()):
            context.reassigning.update(p for p in some if context.assignment(p).is_reassigning)
            yield EndOfSlice()
        marked = set(event.deletions & context.topics.keys())
        context.deletions_waiting = {name for name in marked if context.is_moving(name)}
        context.deleting = marked - context.deletions_waiting
        yield from self._initial_states()
        # Followers find their leader's address in the metadata, so every broker first gets the live brokers;
        # and all partitions, for a broker that has just started answers clients from then on.
        self.batch.metadata(context.live, context.partitions())
        yield from self._flush()
        for some in slices(context.partitions()):
            for partition in some:
                if partition in context.leaderships and not context.is_deleting(partition):
                    self.batch.lead_or_follow(partition, context.assignment(partition).replicas)
            yield EndOfSlice()
        yield from self._bring_online()
        yield from self.reassignments.resume()
        yield from self._delete_topics(event.deletions)

    # ---- features

    def _suspend_features(self, live: Mapping[int, LiveBroker]) -> Steps[None]:
        """Suspend features that a live broker lacks, before it is given a partition; resume the others."""
        yield WriteFeatures(_members(live))

    def _update_features(self, event: UpdateFeatures, answers: Answers) -> Steps[None]:
        wanted = WriteFeatures(_members(self.context.live), event.updates, event.validate_only)
        refusal: str | None = yield wanted
        if refusal is not None:
            answers.top, answers.message = ErrorCode.INVALID_UPDATE_VERSION, refusal

    def _initial_states(self) -> Steps[None]:
        for some in slices(self.context.partitions()):
            for partition in some:
                self._initial_state(partition)
            yield EndOfSlice()

    def _initial_state(self, partition: TopicPartition) -> None:
        context = self.context
        leadership = context.leaderships.get(partition)
        context.enter_state(partition, self.leaderships.state_of(leadership))
        is_deleting = context.is_deleting(partition)
        dead = ReplicaState.DELETION_INELIGIBLE if is_deleting else ReplicaState.OFFLINE
        for broker in context.assignment(partition).replicas:
            alive = context.is_alive(partition, broker)
            context.replica_states[(partition, broker)] = ReplicaState.ONLINE if alive else dead

    def _bring_online(self) -> Steps[None]:
        """Create missing partition states, and elect leaders for partitions that can have one."""
        wanted = [p for p in self.context.partitions() if not self.context.is_deleting(p)]
        yield from self.leaderships.create_states(p for p in wanted if p not in self.context.leaderships)
        yield from self.leaderships.settle(p for p in wanted if p in self.context.leaderships)

    def _unclean_election_allowed(self, topic: str | None) -> Steps[None]:
        context = self.context
        partitions = list(context.partitions()) if topic is None else context.partitions_of(topic)
        yield from self.leaderships.settle(
            p for p in partitions if p in context.leaderships and not context.is_deleting(p)
        )

    # ---- brokers start and fail

    def _brokers_read(self, now: dict[int, LiveBroker]) -> Steps[None]:
        before = self.context.live
        yield from self._suspend_features(now)
        bounced = {b for b in before.keys() & now.keys() if before[b].epoch != now[b].epoch}
        failed = (before.keys() - now.keys()) | bounced
        started = (now.keys() - before.keys()) | bounced
        if failed:
            self.context.live = {b: broker for b, broker in before.items() if b not in failed}
            yield from self._brokers_failed(failed)
            yield from self.reassignments.brokers_gone(failed - now.keys())
            yield from self._flush()
        moved = any(before[b] != now[b] for b in now.keys() & before.keys())
        self.context.live = now
        if started:
            yield from self._brokers_started(started)
        elif moved:
            self.batch.metadata(now, ())

    def _brokers_failed(self, failed: set[int]) -> Steps[None]:
        context = self.context
        context.shutting_down -= failed
        for replica in [replica for replica in context.failed_replicas if replica[1] in failed]:
            context.mark_usable(replica)
        affected = context.partitions_on(failed)
        for some in slices(affected):
            for partition in some:
                for broker in failed.intersection(context.assignment(partition).replicas):
                    self._replica_lost(partition, broker)
            yield EndOfSlice()
        self.batch.metadata(context.live, affected)
        yield from self.leaderships.settle(p for p in affected if not context.is_deleting(p))

    def _replica_lost(self, partition: TopicPartition, broker: int) -> None:
        state = self.context.replica_state(partition, broker)
        if state is ReplicaState.DELETION_STARTED:
            self.context.move_replica(partition, broker, ReplicaState.DELETION_INELIGIBLE)
        elif state in (ReplicaState.NEW, ReplicaState.ONLINE):
            self.context.move_replica(partition, broker, ReplicaState.OFFLINE)

    def _brokers_started(self, started: set[int]) -> Steps[None]:
        context = self.context
        self.batch.metadata(context.live.keys() - started, ())
        self.batch.metadata(started, context.partitions())
        yield from self._flush()
        for some in slices(context.partitions_on(started)):
            for partition in some:
                if not context.is_deleting(partition):
                    self._replicas_back(partition, started)
            yield EndOfSlice()
        self.reassignments.brokers_started(started)
        yield from self._bring_online()
        yield from self._delete_topics(())

    def _replicas_back(self, partition: TopicPartition, started: set[int]) -> None:
        back = started.intersection(self.context.assignment(partition).replicas)
        for broker in back:
            self.context.move_replica(partition, broker, ReplicaState.ONLINE)
        if partition in self.context.leaderships:
            self.batch.lead_or_follow(partition, back)

    # ---- topics are created, enlarged and deleted

    def _topics_read(self, event: TopicsRead) -> Steps[None]:
        context = self.context
        # Most topics are as they were: the same objects, at which no longer look is taken.
        present = event.topics
        for name in [
            name
            for name, known in context.topics.items()
            if (read := present.get(name)) is not known and (read is None or read.id != known.id)
        ]:
            context.forget_topic(name)
        changed = [name for name, read in present.items() if read is not context.topics.get(name)]
        created: list[TopicPartition] = []
        for name in changed:
            if name not in context.deleting:
                created += self._merge_topic(name, present[name])
        yield from self._read_again(event.states)
        for some in slices(created):
            for partition in some:
                context.move_partition(partition, PartitionState.NEW)
                for broker in context.assignment(partition).replicas:
                    context.move_replica(partition, broker, ReplicaState.NEW)
            yield EndOfSlice()
        # Including those that had no live replica at the last attempt.
        waiting = [partition for partition in context.new_partitions if not context.is_deleting(partition)]
        yield from self.leaderships.create_states(waiting)
        yield from self._flush()
        yield from self._delete_topics(event.deletions)

    def _read_again(self, states: PartitionStates) -> Steps[None]:
        """Serve partitions whose state has become readable; those without a state now get one as new ones."""
        context = self.context
        context.unreadable = {p for p in states.unreadable if p in context}
        readable = {p: state for p, state in states.leaderships.items() if p in context}
        for partition, leadership in readable.items():
            context.store_leadership(partition, leadership)
        for partition in readable:
            self.batch.lead_or_follow(partition, context.assignment(partition).replicas)
        yield from self.leaderships.settle(readable)

    def _merge_topic(self, name: str, topic: Topic) -> list[TopicPartition]:
        known = self.context.topics.get(name)
        if known is not None:
            # Only an edit of the znode by hand removes partitions from it.
            for number in known.partitions.keys() - topic.partitions.keys():
                self.context.forget_partition(TopicPartition(name, number))
        old = known.partitions if known else {}
        # The known replicas of a partition change by reassignment alone: the znode may be behind it.
        partitions = {number: old.get(number, read) for number, read in topic.partitions.items()}
        self.context.topics[name] = replace(topic, partitions=partitions)
        created = [TopicPartition(name, number) for number in topic.partitions if number not in old]
        self.context.assign({p: self.context.assignment(p) for p in created})
        return created

    def _delete_topics(self, markers: Iterable[str]) -> Steps[None]:
        for name in sorted(markers):
            if name in self.context.topics:
                waits = name not in self.context.deleting and self.context.is_moving(name)
                (self.context.deletions_waiting if waits else self.context.deleting).add(name)
            else:
                yield DropMarker(name)
        yield from self.deletion.resume()

    def _states_read(self, states: PartitionStates) -> None:
        """Take states that leaders wrote themselves, as brokers without AlterPartition do."""
        context = self.context
        newer = {
            partition
            for partition, read in states.leaderships.items()
            if (known := context.leaderships.get(partition)) and read.partition_epoch > known.partition_epoch
        }
        for partition in newer:
            context.store_leadership(partition, states.leaderships[partition])
        self.batch.metadata(context.live, newer)

    # ---- responses of brokers

    def _reply_received(self, event: ReplyReceived) -> Steps[None]:
        current = self.context.live.get(event.broker.id)
        if current is None or current.epoch != event.broker.epoch:
            return
        if isinstance(event.response, LeaderAndIsrResponse):
            yield from self._leader_and_isr_answered(event)
        elif isinstance(event.response, StopReplicaResponse) and isinstance(
            event.request, StopReplicaRequest
        ):
            yield from self.deletion.answered(event.broker.id, event.request, event.response)
            if event.response.error_code == ErrorCode.NONE:
                yield from self.reassignments.stopped(event.broker.id, event.request)

    def _leader_and_isr_answered(self, event: ReplyReceived) -> Steps[None]:
        broker, request, response = event.broker.id, event.request, event.response
        assert isinstance(request, LeaderAndIsrRequest)
        assert isinstance(response, LeaderAndIsrResponse)
        errors = [(p.topic_name, p) for p in response.partition_errors]
        names = {
            state.topic_id: state.topic_name
            for state in request.topic_states
            if (topic := self.context.topics.get(state.topic_name)) and topic.id == state.topic_id
        }
        for answered in response.topics:
            errors += [(names.get(answered.topic_id, ""), p) for p in answered.partition_errors]
        lost, back = set(), set()
        for name, error in errors:
            replica = (TopicPartition(name, error.partition_index), broker)
            if error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                lost.add(replica)
            elif error.error_code == ErrorCode.NONE and replica in self.context.failed_replicas:
                back.add(replica)
        yield from self._replicas_changed(lost, back, _without_leader(request, broker) if lost else set())

    def _replicas_changed(
        self, lost: set[Replica], back: set[Replica], awaited: set[TopicPartition]
    ) -> Steps[None]:
        """Elect other leaders; a lost replica of the `awaited` partitions had been asked for as the last."""
        known = {
            r for r in lost | back if r in self.context.replica_states and not self.context.is_deleting(r[0])
        }
        for replica in lost & known:
            self.context.mark_failed(replica, for_good=replica[0] in awaited)
        for replica in back:
            self.context.mark_usable(replica)
        for partition, broker in known:
            lost_now = (partition, broker) in lost
            self.context.move_replica(
                partition, broker, ReplicaState.OFFLINE if lost_now else ReplicaState.ONLINE
            )
        if known:
            self.batch.metadata(self.context.live, {partition for partition, _ in known})
            yield from self.leaderships.settle({partition for partition, _ in known})

    def _resend_leader_and_isr(self, broker: int) -> None:
        """Repeat LeaderAndIsr to a broker with a failed directory: its response names the lost replicas."""
        for partition in self.context.partitions_on([broker]):
            if partition in self.context.leaderships and not self.context.is_deleting(partition):
                self.batch.lead_or_follow(partition, [broker])


def _without_leader(request: LeaderAndIsrRequest, broker: int) -> set[TopicPartition]:
    """The partitions of a request that have no leader, and that broker in their ISR."""
    return {
        TopicPartition(topic.topic_name, state.partition_index)
        for topic in request.topic_states
        for state in topic.partition_states
        if state.leader == NO_LEADER and broker in state.isr
    }


def _members(live: Mapping[int, LiveBroker]) -> Members:
    return {broker.id: broker.features for broker in live.values()}
