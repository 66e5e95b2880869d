"""The controller's decisions: an event in, effects out, nothing but the context touched.

Two rules hold everywhere. What a step knows of a partition it knows from ZooKeeper's answer, so
a write that met a conflict is decided again from what is really there. And what was written is
told to the brokers, also when it is not certain that this controller wrote it: telling twice is
harmless, telling nobody leaves a partition without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.broker.controller import elections
from ottla.broker.controller.batch import Batch
from ottla.broker.controller.deletion import Deletion
from ottla.broker.controller.events import (
    AlterPartition,
    Answers,
    BalanceLeaders,
    BrokersRead,
    ControlledShutdown,
    DropMarker,
    Elected,
    ElectLeaders,
    Event,
    LeaderElected,
    ProposedIsr,
    ReplicasFailed,
    ReplyReceived,
    Steps,
    TopicsRead,
    WriteLeaderships,
    WriteResults,
)
from ottla.broker.controller.model import (
    NO_LEADER,
    ControllerContext,
    Leadership,
    LiveBroker,
    PartitionState,
    ReplicaState,
    Topic,
)
from ottla.broker.values import replace
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.topics import TopicPartition

Decision = Callable[[TopicPartition], Leadership | None]


class Machine:
    """One controllership, from its election to its end."""

    def __init__(self, context: ControllerContext, inter_broker_listener: str = "PLAINTEXT") -> None:
        self.context = context
        self.batch = Batch(context, inter_broker_listener)
        self.deletion = Deletion(context, self.batch)

    def step(self, event: Event) -> Steps[Answers]:
        """Process one event to its end: yields effects, takes their results, returns the answer."""
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
                yield from self._elect_leaders(event, answers)
            case ControlledShutdown():
                yield from self._controlled_shutdown(event, answers)
            case AlterPartition():
                yield from self._alter_partition(event, answers)
            case BalanceLeaders():
                yield from self._balance(event.allowed_imbalance)
            case ReplicasFailed():
                self._ask_again(event.broker_id)
        yield from self._flush()
        return answers

    def _flush(self) -> Steps[None]:
        yield from self.batch.requests()

    # ---- taking over

    def _take_over(self, event: Elected) -> Steps[None]:
        context = self.context
        context.live = dict(event.brokers)
        context.topics = dict(event.topics)
        context.leaderships = dict(event.leaderships)
        context.deleting = set(event.deletions & context.topics.keys())
        self._initial_states()
        # Followers look their leader's address up in the metadata, so everybody first learns who is alive.
        self.batch.metadata(context.live, ())
        yield from self._flush()
        for partition in context.partitions():
            if partition in context.leaderships and not context.is_deleting(partition):
                self.batch.lead_or_follow(partition, context.assignment(partition).replicas)
        yield from self._bring_online()
        yield from self._delete_topics(event.deletions)

    def _initial_states(self) -> None:
        context = self.context
        for partition in context.partitions():
            leadership = context.leaderships.get(partition)
            context.partition_states[partition] = self._state_of(leadership)
            for broker in context.assignment(partition).replicas:
                alive = context.is_alive(partition, broker)
                dead = (
                    ReplicaState.DELETION_INELIGIBLE
                    if context.is_deleting(partition)
                    else ReplicaState.OFFLINE
                )
                context.replica_states[(partition, broker)] = ReplicaState.ONLINE if alive else dead

    def _state_of(self, leadership: Leadership | None) -> PartitionState:
        if leadership is None:
            return PartitionState.NEW
        return PartitionState.ONLINE if leadership.leader in self.context.live else PartitionState.OFFLINE

    def _bring_online(self) -> Steps[None]:
        """Create what has no state yet, and lead again what can be led."""
        wanted = [p for p in self.context.partitions() if not self.context.is_deleting(p)]
        yield from self._create_states(p for p in wanted if p not in self.context.leaderships)
        yield from self._settle(p for p in wanted if p in self.context.leaderships)

    # ---- brokers come and go

    def _brokers_read(self, now: dict[int, LiveBroker]) -> Steps[None]:
        before = self.context.live
        bounced = {b for b in before.keys() & now.keys() if before[b].epoch != now[b].epoch}
        failed = (before.keys() - now.keys()) | bounced
        started = (now.keys() - before.keys()) | bounced
        if failed:
            self.context.live = {b: broker for b, broker in before.items() if b not in failed}
            yield from self._brokers_failed(failed)
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
        context.failed_replicas = {replica for replica in context.failed_replicas if replica[1] not in failed}
        affected = context.partitions_on(failed)
        for partition in affected:
            for broker in failed.intersection(context.assignment(partition).replicas):
                self._replica_lost(partition, broker)
        self.batch.metadata(context.live, affected)
        yield from self._settle(p for p in affected if not context.is_deleting(p))

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
        for partition in context.partitions_on(started):
            if not context.is_deleting(partition):
                self._replicas_back(partition, started)
        yield from self._bring_online()
        yield from self._delete_topics(())

    def _replicas_back(self, partition: TopicPartition, started: set[int]) -> None:
        back = started.intersection(self.context.assignment(partition).replicas)
        for broker in back:
            self.context.move_replica(partition, broker, ReplicaState.ONLINE)
        if partition in self.context.leaderships:
            self.batch.lead_or_follow(partition, back)

    # ---- topics come and go

    def _topics_read(self, event: TopicsRead) -> Steps[None]:
        context = self.context
        for name in [
            n for n, t in context.topics.items() if n not in event.topics or event.topics[n].id != t.id
        ]:
            context.forget_topic(name)
        created: list[TopicPartition] = []
        for name, topic in event.topics.items():
            if name not in context.deleting:
                created += self._merge_topic(name, topic)
        for partition in created:
            context.move_partition(partition, PartitionState.NEW)
            for broker in context.assignment(partition).replicas:
                context.move_replica(partition, broker, ReplicaState.NEW)
        # Also those that found no living replica the last time they were looked at.
        waiting = [p for p, s in context.partition_states.items() if s is PartitionState.NEW]
        yield from self._create_states(p for p in waiting if not context.is_deleting(p))
        yield from self._flush()
        yield from self._delete_topics(event.deletions)

    def _merge_topic(self, name: str, topic: Topic) -> list[TopicPartition]:
        known = self.context.topics.get(name)
        self.context.topics[name] = topic
        old = known.partitions if known else {}
        return [TopicPartition(name, number) for number in topic.partitions if number not in old]

    def _create_states(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Take New partitions Online, led by the first living replica."""
        context = self.context
        wanted = {p: first for p in partitions if (first := self._first_leadership(p))}
        if not wanted:
            return
        results: WriteResults = yield WriteLeaderships(wanted)
        adopted = self._adopt(results)
        for partition in results.keys() & context.leaderships.keys():
            self.batch.lead_or_follow(partition, context.assignment(partition).replicas, is_new=True)
            self._enter_state(partition)
            for broker in context.assignment(partition).replicas:
                alive = context.is_alive(partition, broker)
                context.move_replica(
                    partition, broker, ReplicaState.ONLINE if alive else ReplicaState.OFFLINE
                )
        yield from self._settle(adopted)

    def _first_leadership(self, partition: TopicPartition) -> Leadership | None:
        replicas = self.context.assignment(partition).replicas
        alive = tuple(broker for broker in replicas if self.context.is_alive(partition, broker))
        return Leadership(alive[0], 0, alive, self.context.epoch, -1) if alive else None

    def _delete_topics(self, markers: Iterable[str]) -> Steps[None]:
        for name in sorted(markers):
            if name in self.context.topics:
                self.context.deleting.add(name)
            else:
                yield DropMarker(name)
        yield from self.deletion.resume()

    # ---- leaderships

    def _settle(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Give partitions the leader and the ISR that the living allow."""
        partitions = list(partitions)
        yield from self._update(partitions, self._settled)
        for partition in partitions:
            if partition in self.context.leaderships:
                self._enter_state(partition)

    def _settled(self, partition: TopicPartition) -> Leadership | None:
        """The leadership that should follow, or None when the present one is right."""
        context = self.context
        now = context.leaderships[partition]

        def alive(broker: int) -> bool:
            return context.is_alive(partition, broker)

        choice = elections.elect_for_offline(
            context.assignment(partition).replicas,
            now.isr,
            alive,
            unclean_allowed=context.unclean_allowed(partition.topic),
        )
        if choice is None:
            # The last in-sync replica keeps its place: it alone is known to hold what was acknowledged.
            leader, isr = NO_LEADER, now.isr
        else:
            leader, isr = (now.leader if alive(now.leader) else choice.leader), choice.isr
        if (leader, isr) == (now.leader, now.isr):
            return None
        return now.next(leader=leader, isr=isr, controller_epoch=context.epoch)

    def _update(self, partitions: Iterable[TopicPartition], decide: Decision) -> Steps[set[TopicPartition]]:
        """Write what `decide` wants until nothing conflicts; return and publish what was touched."""
        touched: set[TopicPartition] = set()
        pending = set(partitions)
        while pending:
            wanted = {p: new for p in sorted(pending) if p in self.context.leaderships and (new := decide(p))}
            if not wanted:
                break
            before = {p: self.context.leaderships[p] for p in wanted}
            results: WriteResults = yield WriteLeaderships(wanted)
            pending = self._adopt(results)
            touched |= results.keys()
            for partition, result in results.items():
                if result.ours and result.leadership and result.leadership.leader != before[partition].leader:
                    unclean = result.leadership.leader not in (NO_LEADER, *before[partition].isr)
                    yield LeaderElected(partition, result.leadership, unclean)
        for partition in touched & self.context.leaderships.keys():
            self.batch.lead_or_follow(partition, self.context.assignment(partition).replicas)
        return touched

    def _adopt(self, results: WriteResults) -> set[TopicPartition]:
        """Remember what ZooKeeper holds; return where that is somebody else's."""
        for partition, result in results.items():
            if result.leadership is None:
                self.context.leaderships.pop(partition, None)
            else:
                self.context.leaderships[partition] = result.leadership
        return {p for p, result in results.items() if not result.ours and result.leadership is not None}

    def _enter_state(self, partition: TopicPartition) -> None:
        self.context.move_partition(partition, self._state_of(self.context.leaderships[partition]))

    # ---- answers of brokers

    def _reply_received(self, event: ReplyReceived) -> Steps[None]:
        current = self.context.live.get(event.broker.id)
        if current is None or current.epoch != event.broker.epoch:
            return
        if isinstance(event.response, LeaderAndIsrResponse):
            yield from self._leader_and_isr_answered(event.broker.id, event.response)
        elif isinstance(event.response, StopReplicaResponse) and isinstance(
            event.request, StopReplicaRequest
        ):
            yield from self.deletion.answered(event.broker.id, event.request, event.response)

    def _leader_and_isr_answered(self, broker: int, response: LeaderAndIsrResponse) -> Steps[None]:
        errors = [(p.topic_name, p) for p in response.partition_errors]
        names = {topic.id: name for name, topic in self.context.topics.items()} if response.topics else {}
        for topic in response.topics:
            errors += [(names.get(topic.topic_id, ""), p) for p in topic.partition_errors]
        lost, back = set(), set()
        for name, error in errors:
            replica = (TopicPartition(name, error.partition_index), broker)
            if error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                lost.add(replica)
            elif error.error_code == ErrorCode.NONE and replica in self.context.failed_replicas:
                back.add(replica)
        yield from self._replicas_changed(lost, back)

    def _replicas_changed(
        self, lost: set[tuple[TopicPartition, int]], back: set[tuple[TopicPartition, int]]
    ) -> Steps[None]:
        known = {
            r for r in lost | back if r in self.context.replica_states and not self.context.is_deleting(r[0])
        }
        self.context.failed_replicas |= lost & known
        self.context.failed_replicas -= back
        for partition, broker in known:
            lost_now = (partition, broker) in lost
            self.context.move_replica(
                partition, broker, ReplicaState.OFFLINE if lost_now else ReplicaState.ONLINE
            )
        if known:
            self.batch.metadata(self.context.live, {partition for partition, _ in known})
            yield from self._settle({partition for partition, _ in known})

    def _ask_again(self, broker: int) -> None:
        """Repeat LeaderAndIsr to a broker with a failed directory: its answers name the lost replicas."""
        for partition in self.context.partitions_on([broker]):
            if partition in self.context.leaderships and not self.context.is_deleting(partition):
                self.batch.lead_or_follow(partition, [broker])

    # ---- what others ask for

    def _elect_leaders(self, event: ElectLeaders, answers: Answers) -> Steps[None]:
        asked = list(self.context.partitions()) if event.partitions is None else list(event.partitions)
        electable: dict[TopicPartition, elections.Choice] = {}
        for partition in asked:
            answer = self._electable(partition, unclean=event.unclean)
            if isinstance(answer, elections.Choice):
                electable[partition] = answer
            elif answer != ErrorCode.ELECTION_NOT_NEEDED or event.partitions is not None:
                answers.partitions[partition] = answer
        yield from self._update(electable, lambda p: self._elected(p, unclean=event.unclean))
        for partition in electable:
            self._enter_state(partition)
            answers.partitions[partition] = ErrorCode.NONE

    def _electable(self, partition: TopicPartition, *, unclean: bool) -> elections.Choice | ErrorCode:
        context = self.context
        if partition not in context.leaderships or context.is_deleting(partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now, replicas = context.leaderships[partition], context.assignment(partition).replicas

        def alive(broker: int) -> bool:
            return context.is_alive(partition, broker)

        if (unclean and alive(now.leader)) or (not unclean and now.leader == replicas[0]):
            return ErrorCode.ELECTION_NOT_NEEDED
        if unclean:
            choice = elections.elect_for_offline(replicas, now.isr, alive, unclean_allowed=True)
            return choice or ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return elections.elect_preferred(replicas, now.isr, alive) or ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    def _elected(self, partition: TopicPartition, *, unclean: bool) -> Leadership | None:
        choice = self._electable(partition, unclean=unclean)
        if not isinstance(choice, elections.Choice):
            return None
        now = self.context.leaderships[partition]
        return now.next(leader=choice.leader, isr=choice.isr, controller_epoch=self.context.epoch)

    def _balance(self, allowed: float) -> Steps[None]:
        preferring: dict[int, list[TopicPartition]] = {}
        for partition in self.context.leaderships:
            if not self.context.is_deleting(partition):
                preferring.setdefault(self.context.assignment(partition).replicas[0], []).append(partition)
        for partitions in preferring.values():
            elsewhere = [p for p in partitions if self._could_return(p)]
            if elections.imbalance(len(partitions), len(elsewhere)) > allowed:
                yield from self._elect_leaders(ElectLeaders(frozenset(elsewhere)), Answers())

    def _could_return(self, partition: TopicPartition) -> bool:
        return isinstance(self._electable(partition, unclean=False), elections.Choice)

    def _controlled_shutdown(self, event: ControlledShutdown, answers: Answers) -> Steps[None]:
        context, leaving = self.context, event.broker_id
        broker = context.live.get(leaving)
        if broker is None:
            answers.top = ErrorCode.BROKER_NOT_AVAILABLE
            return
        if event.broker_epoch not in (-1, broker.epoch):
            answers.top = ErrorCode.STALE_BROKER_EPOCH
            return
        # Marked first: otherwise its own requests would put it back into ISRs it has just left.
        context.shutting_down.add(leaving)
        shared = [
            p
            for p in context.partitions_on([leaving])
            if p in context.leaderships
            and len(context.assignment(p).replicas) > 1
            and not context.is_deleting(p)
        ]
        yield from self._update(shared, lambda p: self._without(p, leaving))
        for partition in shared:
            if context.leaderships[partition].leader == leaving:
                answers.remaining.append(partition)
            else:
                self.batch.stop(partition, leaving, delete=False)

    def _without(self, partition: TopicPartition, leaving: int) -> Leadership | None:
        now = self.context.leaderships[partition]
        if now.leader != leaving:
            if leaving not in now.isr or len(now.isr) == 1:
                return None
            isr = tuple(member for member in now.isr if member != leaving)
            return now.next(leader=now.leader, isr=isr, controller_epoch=self.context.epoch)
        choice = elections.elect_for_shutdown(
            self.context.assignment(partition).replicas,
            now.isr,
            lambda broker: self.context.is_alive(partition, broker),
            self.context.shutting_down,
        )
        if choice is None:
            return None
        return now.next(leader=choice.leader, isr=choice.isr, controller_epoch=self.context.epoch)

    def _alter_partition(self, event: AlterPartition, answers: Answers) -> Steps[None]:
        broker = self.context.live.get(event.broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            answers.top = ErrorCode.STALE_BROKER_EPOCH
            return
        wanted: dict[TopicPartition, Leadership] = {}
        for partition, proposal in event.proposals.items():
            error = self._why_not_alter(partition, proposal, event.broker_id)
            if error is not None:
                answers.partitions[partition] = error
                continue
            now = self.context.leaderships[partition]
            answers.leaderships[partition] = now
            if set(now.isr) != set(proposal.isr):
                wanted[partition] = replace(now, isr=proposal.isr, controller_epoch=self.context.epoch)
        if not wanted:
            return
        results: WriteResults = yield WriteLeaderships(wanted)
        self._adopt(results)
        for partition, result in results.items():
            answers.leaderships.pop(partition, None)
            if result.ours and result.leadership:
                answers.leaderships[partition] = result.leadership
            else:
                answers.partitions[partition] = ErrorCode.INVALID_UPDATE_VERSION
        self.batch.metadata(self.context.live, results.keys() & self.context.leaderships.keys())

    def _why_not_alter(
        self, partition: TopicPartition, proposal: ProposedIsr, leader: int
    ) -> ErrorCode | None:
        now = self.context.leaderships.get(partition)
        if now is None or self.context.is_deleting(partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if proposal.leader_epoch > now.leader_epoch or proposal.partition_epoch > now.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if proposal.leader_epoch < now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader != now.leader or leader not in proposal.isr:
            return ErrorCode.INVALID_REQUEST
        if not set(proposal.isr) <= set(self.context.assignment(partition).replicas):
            return ErrorCode.INVALID_REQUEST
        if proposal.partition_epoch < now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        joining = set(proposal.isr) - set(now.isr)
        able = all(
            self.context.is_alive(partition, b) and b not in self.context.shutting_down for b in joining
        )
        return None if able else ErrorCode.INELIGIBLE_REPLICA
