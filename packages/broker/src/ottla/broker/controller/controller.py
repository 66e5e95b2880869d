"""The controller of one broker: it runs for election and, once elected, performs what the machine decides.

One task owns all state. Watches, responses of brokers and requests only add to its queue. Whatever fails ends
the controllership, never the task: its znode is removed, and a broker is elected that reads everything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.placement import new_id
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.controller import controllership, znode_requests
from ottla.broker.controller.channels import Channels, Sender, Spawn
from ottla.broker.controller.control_request_batch import ControlRequest, Publish
from ottla.broker.controller.controller_context import ControllerContext, LiveBroker
from ottla.broker.controller.controller_state import ControllerState, state_in
from ottla.broker.controller.controllership import Candidacy
from ottla.broker.controller.event_queue import EventQueue, QueuedEvent
from ottla.broker.controller.events import (
    BalanceLeaders,
    BrokersRead,
    ControlResponse,
    DeleteTopics,
    DropMarker,
    DropReassignments,
    Effect,
    Elected,
    Event,
    Later,
    LeaderElected,
    ReadUncleanTopics,
    ReplyReceived,
    TopicsRead,
    UncleanElectionAllowed,
    WriteAssignments,
    WriteFeatures,
    WriteLeaderships,
    WriteResults,
)
from ottla.broker.controller.metrics import measure_controller
from ottla.broker.controller.state_machine import Machine
from ottla.broker.controller.znode_requests import ZnodeRequests
from ottla.broker.controller.zookeeper_store import Fenced, Store
from ottla.broker.peers.controller_requests import Answers
from ottla.protocol.errors import NotController
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import (
    Session,
    SessionExpired,
    SessionState,
    StateChange,
    WatchEvent,
    ZooKeeperError,
)

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment

_log = logging.getLogger("controller")
_state_change = logging.getLogger("state-change")

NO_EPOCH: Final = -1

_CONTROLLERSHIP: Final = "controllership"
_BROKERS: Final = "brokers"
_TOPICS: Final = "topics"
_STATES: Final = {
    _CONTROLLERSHIP: ControllerState.CONTROLLER_CHANGE,
    _BROKERS: ControllerState.BROKER_CHANGE,
    _TOPICS: ControllerState.TOPIC_CHANGE,
    **znode_requests.SIGNALS,
}


Result = WriteResults | frozenset[str] | frozenset[TopicPartition] | str | None
UncleanTopics = Callable[[frozenset[str]], Awaitable[frozenset[str]]]


class Controller:
    """Runs for election, and controls the cluster while elected.

    `register` is awaited before each election: the broker has to be in `/brokers/ids` in the present
    session first. It returns the broker epoch. `unclean_topics` reads which of the given topics allow
    unclean elections.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        session: Session,
        environment: Environment,
        metrics: Metrics,
        register: Callable[[], Awaitable[int]],
        connect: Callable[[LiveBroker], Sender],
        spawn: Spawn,
        unclean_topics: UncleanTopics,
        inter_broker_listener: str = "PLAINTEXT",
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_EPOCH
        self.active_controller_id = controllership.NO_CONTROLLER
        """The broker that the controller znode names; -1 without one."""
        self._session = session
        self._environment = environment
        self._register = register
        self._connect = connect
        self._spawn = spawn
        self._metrics = metrics
        self._unclean_topics = unclean_topics
        self.on_active_controller_change: list[Callable[[], None]] = []
        self._listener = inter_broker_listener
        self._signals: dict[str, None] = {}
        self._dirty_topics: set[str] = set()
        self._wakeup = asyncio.Event()
        self._queue = EventQueue(environment.clock.monotonic_ms, self._wakeup.set)
        self._state = ControllerState.IDLE
        self._machine: Machine | None = None
        self._store: Store | None = None
        self._channels: Channels | None = None
        self._controllership_session = -1
        self._registered_session = -1
        self._closing = False
        self._candidacy = Candidacy()
        self._watches: dict[str, Callable[[WatchEvent], None]] = {}
        self._topic_watches: dict[str, Callable[[WatchEvent], None]] = {}
        self._znode_requests = ZnodeRequests(self._watch, self._signal)
        self._stop_listening: Callable[[], None] | None = None
        self._elections = metrics.meter("kafka.controller", "ControllerStats", "LeaderElectionsPerSec")
        self._unclean = metrics.meter("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec")
        self._queue_time = metrics.histogram("kafka.controller", "ControllerEventManager", "EventQueueTimeMs")
        measure_controller(self, metrics)

    # ---- reading

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller."""
        return self._machine is not None

    @property
    def context(self) -> ControllerContext | None:
        """The controller's view of the cluster, for reading only; None when another broker is controller."""
        return self._machine.context if self._machine else None

    @property
    def state(self) -> ControllerState:
        """The kind of event that the controller is processing, as Kafka's ControllerState."""
        return self._state

    @property
    def waiting_events(self) -> int:
        """Events in the queue."""
        return len(self._queue)

    @property
    def waiting_requests(self) -> int:
        """Requests to brokers that have not been sent."""
        return self._channels.waiting() if self._channels else 0

    def is_stale_broker_epoch(self, epoch: int) -> bool:
        """Whether a request was meant for an earlier registration of this broker."""
        return epoch != NO_EPOCH and epoch < self.broker_epoch

    async def ask(self, event: Event) -> Answers:
        """Queue an event for the controller and return its answer; raises NotController elsewhere."""
        if self._machine is None:
            raise NotController
        return await self._queue.ask(event)

    def balance_leaders(self, allowed_imbalance: float) -> None:
        """Queue a check whether leaderships should return to the preferred replicas."""
        if self._machine is not None:
            self._queue.put(BalanceLeaders(allowed_imbalance))

    def unclean_election_allowed(self, topic: str | None) -> None:
        """Queue elections for what has no leader: a topic, or with None the default, allows unclean ones."""
        if self._machine is not None:
            self._queue.put(UncleanElectionAllowed(topic))

    # ---- the one task

    async def run(self) -> None:
        """Run for election and process events until cancelled."""
        self._stop_listening = self._session.listen(self._session_changed)
        self._signal(_CONTROLLERSHIP)
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                await self._drain()
        finally:
            self._closing = True
            self._stop_listening()
            self._resign("the broker stops")

    async def _drain(self) -> None:
        while self._signals or self._queue:
            try:
                await self._next()
            except SessionExpired:
                self._resign("the session is over")
                self._signal(_CONTROLLERSHIP)
                await asyncio.sleep(0)
            except Fenced:
                self._resign("another controller has been elected")
                self._signal(_CONTROLLERSHIP)
            except ZooKeeperError as error:
                _log.warning("ZooKeeper operation failed", extra={"reason": str(error)})
                await self._step_down("a ZooKeeper operation failed")
            except StartupRefused:
                raise  # another broker has this id: there is nothing to control
            except Exception:
                _log.exception("the controller failed")
                await self._step_down("it failed")
            finally:
                self._state = ControllerState.IDLE

    async def _next(self) -> None:
        if self._signals:
            signal = next(iter(self._signals))
            del self._signals[signal]
            self._state = _STATES[signal]
            await self._follow(signal)
        else:
            asked = self._queue.take()
            self._queue_time.update(self._environment.clock.monotonic_ms() - asked.queued_ms)
            self._state = state_in(asked.event)
            await self._answer(asked)

    async def _step_down(self, reason: str) -> None:
        """Resign, remove our controller znode, and run for election later, which reads everything again."""
        self._resign(reason)
        self._candidacy.failed(self._environment.clock.monotonic_ms())
        self._defer_candidacy()
        try:
            await controllership.resign(self._session.bound(), self._session.session_id)
        except ZooKeeperError:
            return  # the next check of the controllership finds it

    def _defer_candidacy(self) -> bool:
        """Return whether it is too early to run for election, and check the controllership when it is not."""
        wait_ms = self._candidacy.wait_ms(self._environment.clock.monotonic_ms())
        if wait_ms:
            asyncio.get_running_loop().call_later(wait_ms / 1000, self._signal, _CONTROLLERSHIP)
        return wait_ms > 0

    async def _follow(self, signal: str) -> None:
        if signal == _CONTROLLERSHIP:
            await self._check_controllership()
        elif self._machine is None:
            return
        elif signal == _BROKERS:
            await self._read_brokers()
        elif signal == _TOPICS:
            await self._read_topics()
        else:
            machine, store = self._current()
            await self._znode_requests.follow(signal, store, partial(self._perform, machine))

    # ---- the queue

    def _signal(self, signal: str) -> None:
        self._signals[signal] = None
        self._wakeup.set()

    def _watch(self, signal: str) -> Callable[[WatchEvent], None]:
        if signal not in self._watches:
            self._watches[signal] = lambda _: self._signal(signal)
        return self._watches[signal]

    def _watch_topic(self, topic: str) -> Callable[[WatchEvent], None]:
        if topic not in self._topic_watches:
            self._topic_watches[topic] = lambda _: self._topic_moved(topic)
        return self._topic_watches[topic]

    def _topic_moved(self, topic: str) -> None:
        self._dirty_topics.add(topic)
        self._signal(_TOPICS)

    def _session_changed(self, change: StateChange) -> None:
        if change.state is SessionState.LOST:
            # At once, before all queued events: from here on another broker may be elected.
            self._resign("the session is lost")
        elif change.state is SessionState.CONNECTED:
            self._signal(_CONTROLLERSHIP)

    # ---- controllership

    async def _check_controllership(self) -> None:
        """Register in a new session, read which broker is the controller, and run for election if none is."""
        if self._closing or not self._session.connected:
            return
        number, session_id = self._session.session_number, self._session.session_id
        if self._registered_session != number:
            self.broker_epoch = await self._register()
            self._registered_session = number
        bound = self._session.bound(number)
        active = await controllership.read_active_controller(
            bound, session_id, self.broker_id, self._watch(_CONTROLLERSHIP)
        )
        self._see(active.broker_id)
        if active.mine and self._machine is not None and self._controllership_session == number:
            return
        self._resign("another broker is the controller")
        if active.mine:
            # The znode of a controllership that ended within this session.
            await controllership.resign(bound, session_id)
            self._signal(_CONTROLLERSHIP)
        elif active.broker_id == controllership.NO_CONTROLLER and not self._defer_candidacy():
            await self._run_for_election(number, session_id)

    def _see(self, broker_id: int) -> None:
        self.active_controller_id = broker_id
        for changed in self.on_active_controller_change:
            changed()

    async def _run_for_election(self, number: int, session_id: int) -> None:
        bound = self._session.bound(number)
        now_ms = self._environment.clock.now_ms()
        won = await controllership.run_for_election(bound, session_id, self.broker_id, now_ms)
        if won is None:
            self._signal(_CONTROLLERSHIP)
            return
        if self._session.session_number != number:
            raise SessionExpired(paths.CONTROLLER)
        await self._take_over(won, number)

    async def _take_over(self, won: controllership.Controllership, number: int) -> None:
        _log.info("elected controller", extra={"epoch": won.epoch, "broker": self.broker_id})
        self._see(self.broker_id)
        self._controllership_session = number
        machine = Machine(ControllerContext(self.broker_id, won.epoch), self._listener)
        make_id = partial(new_id, self._environment.random)
        self._store = Store(self._session.bound(number), won, make_id, self._watch_topic)
        self._channels = Channels(self._connect, self._replied, self._spawn, self._metrics)
        self._machine = machine
        self._dirty_topics.clear()
        await self._perform(machine, await self._read_everything(self._store))
        for signal in znode_requests.SIGNALS:
            self._signal(signal)

    async def _read_everything(self, store: Store) -> Elected:
        # Each read sets its watch first, so no later change is missed.
        brokers = await store.brokers(self._watch(_BROKERS))
        deletions = await store.deletions(self._watch(_TOPICS))
        names = await store.topic_names(self._watch(_TOPICS))
        topics = await store.topics(names)
        partitions = [
            TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions
        ]
        states = await store.states(partitions)
        if self._channels is not None:
            self._channels.follow(brokers)
        return Elected(brokers, topics, states, deletions)

    def _resign(self, reason: str) -> None:
        """End the controllership at once; queued requests are answered with NotController."""
        if self._machine is not None:
            _log.info("no longer controller", extra={"reason": reason, "broker": self.broker_id})
        self._machine = None
        self._store = None
        if self._channels is not None:
            self._channels.close()
            self._channels = None
        self._queue.refuse_all()

    # ---- reading changes from ZooKeeper

    async def _read_brokers(self) -> None:
        machine, store = self._current()
        brokers = await store.brokers(self._watch(_BROKERS))
        if self._channels is not None:
            self._channels.follow(brokers)
        await self._perform(machine, BrokersRead(brokers))

    async def _read_topics(self) -> None:
        machine, store = self._current()
        dirty, self._dirty_topics = self._dirty_topics, set()
        try:
            # Markers first: a marker whose topic is missing in the later list belongs to a deleted topic.
            deletions = await store.deletions(self._watch(_TOPICS))
            known = machine.context.topics
            names = await store.topic_names(self._watch(_TOPICS), known)
            fresh = await store.topics(n for n in names if n in dirty or n not in known)
            states = await store.states(sorted(machine.context.unreadable))
        except BaseException:
            self._dirty_topics |= dirty
            raise
        for gone in self._topic_watches.keys() - set(names):
            del self._topic_watches[gone]
        topics = {name: topic for name in names if (topic := fresh.get(name) or known.get(name))}
        await self._perform(machine, TopicsRead(topics, deletions, states))

    # ---- events and effects

    async def _answer(self, asked: QueuedEvent) -> None:
        if self._machine is None:
            asked.refuse()
            return
        try:
            answers = await self._perform(self._machine, asked.event)
        except BaseException:
            asked.refuse()
            raise
        asked.answer(answers)

    def _current(self) -> tuple[Machine, Store]:
        if self._machine is None or self._store is None:
            raise SessionExpired(paths.CONTROLLER)
        return self._machine, self._store

    async def _perform(self, machine: Machine, event: Event) -> Answers:
        """Run one step of the machine: perform each effect before the next one is computed."""
        steps, turn = machine.step(event), self._environment.budget.turn()
        result: Result = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as done:
                answers: Answers = done.value
                return answers
            if self._machine is not machine or self._store is None:
                raise SessionExpired(paths.CONTROLLER)
            result = await self._carry_out(effect, self._store)
            await turn.yield_if_spent()
            if self._machine is not machine:
                raise SessionExpired(paths.CONTROLLER)

    async def _carry_out(self, effect: Effect, store: Store) -> Result:
        match effect:
            case WriteLeaderships():
                return await store.write_leaderships(effect.leaderships)
            case WriteAssignments():
                return await store.write_assignments(effect.assignments)
            case DropReassignments():
                await self._znode_requests.drop_reassignments(store, effect.partitions)
            case ReadUncleanTopics():
                return await self._unclean_topics(effect.topics)
            case Publish():
                if self._channels is not None:
                    self._channels.send(effect.broker, effect.request)
            case DeleteTopics():
                await store.delete_topics(effect.topics)
                for topic in effect.topics:
                    _log.info("topic deleted", extra={"topic": topic})
            case Later():
                self._queue.put(effect.event)
            case DropMarker():
                await store.drop_marker(effect.topic)
            case LeaderElected():
                self._note(effect)
            case WriteFeatures():
                return await store.write_features(effect)
        return None

    def _note(self, effect: LeaderElected) -> None:
        self._elections.mark()
        if effect.unclean:
            self._unclean.mark()
            _log.warning("unclean leader election", extra={"partition": str(effect.partition)})
        _state_change.info(
            "leader elected",
            extra={"partition": str(effect.partition), "leader": effect.leadership.leader,
                   "leader_epoch": effect.leadership.leader_epoch, "isr": effect.leadership.isr},
        )  # fmt: skip

    def _replied(self, broker: LiveBroker, request: ControlRequest, response: ControlResponse) -> None:
        if self._machine is not None:
            self._queue.put(ReplyReceived(broker, request, response))
