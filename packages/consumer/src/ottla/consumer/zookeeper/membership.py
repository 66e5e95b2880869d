"""The membership in a group: register, claim a share of the partitions, read them, commit offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from ottla.client.config import Address
from ottla.client.environment import now_ms
from ottla.client.errors import ClientError
from ottla.consumer.subscription import tell
from ottla.consumer.zookeeper.assignment import ASSIGNMENTS, FILTERS, Ownership, ThreadId
from ottla.consumer.zookeeper.brokers import Brokers, OffsetStorage, StreamCommits
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.errors import ConsumerRebalanceFailed, NoBrokers, PartitionsOwned
from ottla.consumer.zookeeper.group_znodes import GroupZnodes
from ottla.consumer.zookeeper.streams import UNKNOWN, MessageStream, Offsets, Reader, StreamPositions
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.errors import SessionExpired, ZooKeeperError
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.session import Session, SessionState, StateChange, WatchEvent
from ottla.zookeeper.znodes import ConsumerRegistration

log = logging.getLogger(__name__)

OpenBrokers = Callable[[Iterable[Address], ZookeeperConsumerConfig], AbstractAsyncContextManager[Brokers]]
Streams = Mapping[tuple[str | None, int], MessageStream]
"""By topic and number; streams of a wildcard subscription serve all topics, under None."""

FAILURES = (ZooKeeperError, ClientError, KafkaError, OSError)
LEAVE_TIMEOUT_S = 10.0


class GroupMembership:
    """Rebalances whenever the group's znodes change, in the task that awaits `run`.

    Partitions that stay with their thread are left alone. The others are given up before new ones are
    claimed: delivery stops, the last record is finished, offsets are committed, claims are deleted.
    `balanced` is done after the first rebalance.
    """

    def __init__(
        self,
        config: ZookeeperConsumerConfig,
        session: Session,
        open_brokers: OpenBrokers,
        positions: StreamPositions,
        registration: ConsumerRegistration,
        streams: Streams,
        listener: object | None = None,
    ) -> None:
        self.config = config
        self.registration = registration
        self.balanced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session = session
        self._open_brokers = open_brokers
        self._positions = positions
        self._streams = streams
        self._listener = listener
        self._lost_partitions: frozenset[TopicPartition] = frozenset()
        self._brokers: Brokers | None = None
        self._addresses: frozenset[Address] = frozenset()
        self._readers: dict[MessageStream, Reader] = {}
        self._stack = AsyncExitStack()
        self._registered_in: int | None = None
        self._held: dict[TopicPartition, str] = {}
        self._doubtful: set[TopicPartition] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self.commits = StreamCommits(positions, streams.values(), self._storage)

    async def run(self) -> None:
        """Take part in the group until `stop`, then commit and leave."""
        stop_listening = self._session.listen(self._session_changed)
        async with self._stack:
            try:
                while not self._stopping:
                    await self._rebalance()
                    await self._wake.wait()
                    self._wake.clear()
            finally:
                stop_listening()
                await self._leave()

    @property
    def is_present(self) -> bool:
        """Whether the member is registered, as far as known: without a connection the session may end."""
        return self._session.connected and self._registered_in == self._session.session_number

    @property
    def streams(self) -> Collection[MessageStream]:
        """The streams of this member."""
        return self._streams.values()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that the streams own."""
        return frozenset(partition for stream in self._streams.values() for partition in stream.partitions)

    def stop(self) -> None:
        """Make `run` leave the group and return."""
        self._stopping = True
        self._wake.set()

    # --- when to rebalance

    def _changed(self, _: WatchEvent) -> None:
        self._wake.set()

    def _session_changed(self, change: StateChange) -> None:
        if change.state is SessionState.LOST:
            self._lost()
        elif change.state is SessionState.CONNECTED and self._registered_in != change.session_number:
            self._wake.set()

    def _lost(self) -> None:
        """Release all partitions: the ephemeral claims ended with the session, and others may own them."""
        self._lost_partitions |= self.partitions
        for stream in self._streams.values():
            stream.release(self._held)
        self._positions.end(self._held)
        self._held.clear()
        self._doubtful.clear()

    async def _rebalance(self) -> None:
        """Rebalance, with retries. Each time all tries failed, streams raise the error, and tries go on."""
        tries = 0
        while not self._stopping:
            try:
                await self._attempt()
                self._succeeded()
                return
            except FAILURES as error:
                last: Exception = error
                facts = {"consumer": self.registration.consumer_id, "error": str(error)}
                log.info("a rebalance failed", extra=facts)
            # A backoff that a change cut short does not count as a try: the rebalance may succeed now.
            if await self._pause():
                continue
            tries += 1
            if tries == self.config.rebalance_max_retries:
                tries = 0
                await self._failed(last)

    async def _pause(self) -> bool:
        """Wait for the backoff; return whether the znodes changed meanwhile."""
        try:
            async with asyncio.timeout(self.config.backoff_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        if not self._stopping:
            self._wake.clear()
        return True

    def _succeeded(self) -> None:
        if not self.balanced.done():
            self.balanced.set_result(None)

    async def _failed(self, last: Exception) -> None:
        error = ConsumerRebalanceFailed(
            self.registration.consumer_id, self.config.rebalance_max_retries, last
        )
        error.__cause__ = last
        if not self.balanced.done():
            self.balanced.set_exception(error)
            self.balanced.exception()  # retrieved, as the waiting task may be gone
            return
        # Streams raise it too, but only those that are iterated over.
        facts = {"consumer": self.registration.consumer_id, "error": str(error)}
        log.warning("all rebalances failed", extra=facts)
        for stream in self._streams.values():
            stream.fail(error)
        await self._release_unread()

    async def _release_unread(self) -> None:
        """Release claims of partitions that this member owns and cannot read."""
        self._doubt([partition for partition in self._held if partition not in self.partitions])
        try:
            await self._group_znodes().release(self._doubtful)
        except ZooKeeperError as error:
            log.info("claims were not released", extra={"error": str(error)})
        else:
            self._doubtful.clear()

    # --- one rebalance

    async def _attempt(self) -> None:
        lost, self._lost_partitions = self._lost_partitions, frozenset()
        await self._tell("lost", lost)
        await self._session.wait_connected()
        number, znodes = self._session.session_number, self._group_znodes()
        if self._registered_in != number:
            await znodes.register(replace(self.registration, timestamp_ms=now_ms()))
            self._registered_in = number
        if not await self._reach_brokers(znodes):
            return
        view = await znodes.view(self._changed, exclude_internal=self.config.exclude_internal_topics)
        owners = ASSIGNMENTS[self.config.partition_assignment_strategy](view)
        mine = {
            partition: thread
            for partition, thread in owners.items()
            if thread.consumer_id == self.registration.consumer_id
        }
        await self._give_up(znodes, [p for p, owner in self._held.items() if str(mine.get(p)) != owner])
        await self._claim(znodes, mine, number)
        await self._read(mine, number)

    def _group_znodes(self) -> GroupZnodes:
        return GroupZnodes(self._session.bound(), self._session.session_id, self.config.group_id)

    async def _reach_brokers(self, znodes: GroupZnodes) -> bool:
        """Connect to the cluster; return false while there is no broker, whose registration is watched."""
        protocol = self.config.security.security_protocol
        addresses = await znodes.brokers(protocol, self._changed)
        if self._brokers is not None and addresses and self._addresses.isdisjoint(addresses):
            # All brokers moved at once: the known addresses lead nowhere.
            await self._leave_brokers()
        self._addresses = frozenset(addresses or self._addresses)
        if self._brokers is None and addresses:
            brokers = self._open_brokers(addresses, self.config)
            self._brokers = await self._stack.enter_async_context(brokers)
        if self._brokers is None:
            log.warning("cannot rebalance, no broker has a listener", extra={"protocol": protocol})
        return self._brokers is not None

    async def _leave_brokers(self) -> None:
        """Stop reading, but keep the claims; `_read` starts reading again."""
        for stream in self._streams.values():
            await stream.detach()
        self._readers.clear()
        self._brokers = None
        await self._stack.aclose()

    async def _give_up(self, znodes: GroupZnodes, going: Collection[TopicPartition]) -> None:
        for stream in self._streams.values():
            stream.release(going)
        await self._until_done_with(going)
        await self._tell("revoked", going)
        # Commit before deleting our claim: once the znode is gone another member may start from the old
        # offset and deliver everything since then again.
        if self.config.auto_commit_enable:
            await self.commits.finished(going)
        self._positions.end(going)
        self._doubt(going)
        await znodes.release(self._doubtful)
        self._doubtful.clear()

    async def _until_done_with(self, going: Collection[TopicPartition]) -> None:
        """Wait for the application to finish its last records; briefly, as other members wait."""
        try:
            async with asyncio.timeout(self.config.backoff_s / 2):
                for stream in self._streams.values():
                    await stream.done_with(going)
        except TimeoutError:
            log.info("records of partitions that move are still being handled")

    def _doubt(self, partitions: Collection[TopicPartition]) -> None:
        """Treat claims as possibly present, until their deletion was answered."""
        self._doubtful.update(partitions)
        for partition in partitions:
            self._held.pop(partition, None)

    async def _claim(self, znodes: GroupZnodes, mine: Ownership, number: int) -> None:
        claims = {partition: str(thread) for partition, thread in mine.items() if partition not in self._held}
        self._doubtful.update(claims)
        try:
            await znodes.claim(claims, self._changed)
        except PartitionsOwned:
            self._doubtful.difference_update(claims)
            raise
        # The session may have ended since the answer; its claims do not belong to the next session.
        self._check(number)
        self._doubtful.difference_update(claims)
        self._held.update(claims)

    async def _read(self, mine: Ownership, number: int) -> None:
        """Start reading partitions that are claimed and not read yet, at the group's offsets."""
        wanted: dict[MessageStream, list[TopicPartition]] = {}
        for partition, thread in mine.items():
            stream = self._stream(partition, thread)
            if partition not in stream.partitions:
                wanted.setdefault(stream, []).append(partition)
        # After the claims: the previous owner committed before it gave the partitions up.
        stored, starts = await self._starts([partition for some in wanted.values() for partition in some])
        readers = {stream: await self._reader(stream) for stream in wanted}
        await self._tell("assigned", [partition for some in wanted.values() for partition in some])
        self._check(number)
        for stream, partitions in wanted.items():
            begins = {p: self._positions.begin(p, starts.get(p, UNKNOWN), stored.get(p)) for p in partitions}
            stream.own(readers[stream], {p: None if at == UNKNOWN else at for p, at in begins.items()})
        if wanted:
            owned = ", ".join(sorted(str(partition) for partition in mine))
            facts = {"consumer": self.registration.consumer_id, "partitions": owned}
            log.info("partitions assigned", extra=facts)

    def _check(self, number: int) -> None:
        """Raise SessionExpired if the session in which the rebalance began has ended."""
        if self._session.session_number != number:
            raise SessionExpired("", "the session ended during a rebalance")

    async def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Call the listener. Its errors are logged: other members wait for the rebalance."""
        if self._listener is None or not partitions:
            return
        timeout_s = self.config.backoff_s * self.config.rebalance_max_retries
        try:
            await tell(self._listener, what, frozenset(partitions), timeout_s)
        except Exception:
            log.exception("a rebalance listener failed")

    def _stream(self, partition: TopicPartition, thread: ThreadId) -> MessageStream:
        topic = None if self.registration.pattern in FILTERS else partition.topic
        return self._streams[topic, thread.number]

    async def _reader(self, stream: MessageStream) -> Reader:
        if stream not in self._readers:
            self._readers[stream] = await self._known_brokers().reader()
        return self._readers[stream]

    async def _starts(self, partitions: Collection[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Return the committed offsets, and the offsets to start at: committed, else by the reset policy."""
        stored = await self._storage().read(partitions)
        missing = [partition for partition in partitions if partition not in stored]
        if not missing or self.config.smallest is None:
            return stored, stored
        try:
            # Now, not when the first record is asked for: records written in between must be read.
            bounds = await self._known_brokers().bounds(missing, smallest=self.config.smallest)
        except (ClientError, KafkaError) as error:
            facts = {"error": str(error)}
            log.warning("start offsets were not found and are left to the readers", extra=facts)
            return stored, stored
        return stored, {**bounds, **stored}

    def _storage(self) -> OffsetStorage:
        return OffsetStorage(self.config, self._group_znodes(), self._known_brokers())

    def _known_brokers(self) -> Brokers:
        if self._brokers is None:
            raise NoBrokers("ZooKeeper knows no broker")
        return self._brokers

    # --- leaving

    async def _leave(self) -> None:
        """Stop delivery, commit, and delete claims and registration, within a timeout; errors are logged."""
        for stream in self._streams.values():
            await stream.close()
        if not self.is_present:
            return
        znodes = self._group_znodes()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._tell("revoked", self._held)
                if self.config.auto_commit_enable and self._held:
                    await self.commits.finished()
                await znodes.release(self._doubtful.union(self._held))
                await znodes.unregister(self.registration.consumer_id)
        except (*FAILURES, TimeoutError) as error:
            log.warning("leaving the group failed", extra={"error": str(error)})
