"""Connections of the console to its clusters, opened when a page first asks, and the samples of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ottla.admin import Admin, Broker, ClusterDescription, ClusterState, GroupListing, LogDir
from ottla.admin.groups import GroupProgress, read_progress
from ottla.admin.reassigning import CopyRates
from ottla.console.clusters.metrics_pages import Acquired, MetricsPages
from ottla.console.clusters.samples import FRESH_S, HIDDEN_REASON, NoSample, Sample, Sampled
from ottla.console.connect.client import ConnectClient
from ottla.console.logins.access import OWNER, Need, Role, Viewer, seen_progress, seen_state
from ottla.console.records.masking import Mask, MaskRule, full_mask
from ottla.console.registry.processes import DecodingProcess
from ottla.console.registry.values import Registry
from ottla.console.settings import REQUEST_TIMEOUT_MS, ClusterSettings
from ottla.registry.rest import RestClient
from ottla.zookeeper.errors import ZooKeeperError

if TYPE_CHECKING:
    from ottla.zookeeper.kazoo_session import KazooSession

_log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_SAMPLES: Final = 2_000
"""Questions whose answers one cluster keeps; the one that was not read for longest goes first."""
MOST_SAMPLE_BYTES: Final = 64 << 20
"""Memory that they take; the answer that was read last stays in any case."""


@dataclass(frozen=True, slots=True)
class LastSeen:
    """A broker and its log directories when it was last seen."""

    broker: Broker
    log_dirs: tuple[LogDir, ...]


class Connection:
    """The connection to one cluster: an admin client, connected with the first question, and the answers."""

    def __init__(
        self, settings: ClusterSettings, tasks: asyncio.TaskGroup, stack: AsyncExitStack,
        now_s: Callable[[], float], decoding: DecodingProcess, *, most_bytes: int = MOST_SAMPLE_BYTES,
    ) -> None:  # fmt: skip
        self.name = settings.name
        self._most_bytes = most_bytes
        self.registry = (
            None if settings.registry is None
            else Registry(RestClient(settings.registry), decoding, now_s)
        )  # fmt: skip
        self.connects = {
            service.name: ConnectClient(service.name, RestClient(service, f"Connect cluster {service.name}"))
            for service in settings.connects
        }
        self.metrics = None if settings.metrics is None else MetricsPages(settings.metrics)
        self.bootstrap_servers = settings.bootstrap_servers
        self.profile = settings.profile
        self.zookeeper = settings.zookeeper
        self._settings = settings
        self._tasks = tasks
        self._stack = stack
        self._now_s = now_s
        self._admin: Admin | None = None
        self._connecting = asyncio.Lock()
        self._session: KazooSession | None = None
        self._entering = asyncio.Lock()
        self._samples: dict[tuple[str, ...], Sampled[Any]] = {}
        self._behind: set[asyncio.Task[None]] = set()
        self.copies = CopyRates()
        self._derived: dict[str, tuple[tuple[object, ...], Any]] = {}
        self.last_seen: dict[int, LastSeen] = {}
        """The brokers of the last state, and those of earlier ones that have replicas and are away."""
        self.first_seen: ClusterDescription | None = None
        """The brokers as they were described before the first state, which takes longer."""

    async def admin(self) -> Admin:
        """Return the connected client. Raises ClientError, and NoSample where a secret cannot be read."""
        async with self._connecting:
            if self._admin is None:
                try:  # secrets of a profile may come from a command, which takes its time
                    config = await asyncio.to_thread(self._settings.config)
                except (ValueError, OSError) as error:
                    raise NoSample(" ".join(str(error).split())) from None
                bounded = replace(
                    config, request_timeout_ms=REQUEST_TIMEOUT_MS, bootstrap_timeout_ms=REQUEST_TIMEOUT_MS,
                    default_api_timeout_ms=2 * REQUEST_TIMEOUT_MS,
                )  # fmt: skip
                admin = Admin(self.bootstrap_servers, bounded)
                self._admin = await self._stack.enter_async_context(admin)
            return self._admin

    async def read_state(self, admin: Admin) -> ClusterState:
        """Return the state of the cluster, and note which brokers are there."""
        if self.first_seen is None:
            self.first_seen = await admin.brokers.describe()
        state = await admin.cluster_state()
        there = {broker.id: self._seen_now(broker, state) for broker in state.brokers}
        if lost := self.last_seen.keys() - there.keys():
            held = await asyncio.to_thread(
                lambda: {replica for health in state.partitions for replica in health.replicas}
            )
            there |= {broker: self.last_seen[broker] for broker in lost & held}
        self.last_seen = there
        return state

    def _seen_now(self, broker: Broker, state: ClusterState) -> LastSeen:
        """Return a broker as it is; one that dies is listed still and describes no log directories."""
        found = tuple(log_dir for log_dir in state.log_dirs if log_dir.broker == broker.id)
        last = self.last_seen.get(broker.id)
        return LastSeen(broker, last.log_dirs if not found and last is not None else found)

    def knows(self, *key: str) -> bool:
        """Whether a question has an answer, or a reason why there is none."""
        return key in self._samples and self._samples[key].is_known

    async def close_services(self) -> None:
        """Close the connections to services."""
        services = list(self.connects.values())
        await asyncio.gather(*(service.close() for service in services))
        if self.registry is not None:
            await self.registry.close()
        if self.metrics is not None:
            await self.metrics.close()

    async def session(self) -> KazooSession:
        """Return the session with ZooKeeper. Raises ClientError."""
        from ottla.console.clusters.znodes import ZooKeeperRefused, connected

        if self.zookeeper is None:
            raise ZooKeeperRefused("the profile names no ZooKeeper")
        async with self._entering:
            if self._session is None:
                session = await connected(self.zookeeper)
                try:
                    self._session = await self._stack.enter_async_context(session)
                except ZooKeeperError as error:
                    raise ZooKeeperRefused(" ".join(str(error).split())) from None
            return self._session

    def forget(self) -> None:
        """Ask everything again at the next look."""
        for sampled in self._samples.values():
            sampled.forget()

    def cancel(self) -> None:
        """Give up all questions that wait for answers, and the work behind changes."""
        for sampled in self._samples.values():
            sampled.cancel()
        for task in self._behind:
            task.cancel()

    def begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work that is left behind a change, in its time; it ends with the console."""

        async def guarded() -> None:
            try:
                await work()
            except Exception:  # of one change: the others of the group go on
                _log.exception("the work behind a change failed", extra={"cluster": self.name})

        task = self._tasks.create_task(guarded())
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def sample(
        self, key: tuple[str, ...], question: Callable[[Admin], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        """Return the answer to a question to the brokers, which `key` names."""

        async def ask() -> T:
            return await question(await self.admin())

        return await self.sample_of(key, ask, fresh_s=fresh_s)

    async def sample_znodes(
        self, key: tuple[str, ...], question: Callable[[KazooSession], Awaitable[T]]
    ) -> Sample[T]:
        """Return the answer to a question to ZooKeeper, which `key` names."""

        async def ask() -> T:
            session = await self.session()
            try:
                return await question(session)
            except ZooKeeperError as error:
                raise ValueError(" ".join(str(error).split())) from None

        return await self.sample_of(("znodes", *key), ask)

    async def derived(self, key: str, sources: tuple[object, ...], derive: Callable[[], T]) -> T:
        """Return that which a thread derives from answers; kept until one of them is another."""
        known = self._derived.get(key)
        if known is None or any(was is not now for was, now in zip(known[0], sources, strict=True)):
            known = self._derived[key] = sources, await asyncio.to_thread(derive)
        found: T = known[1]
        return found

    async def sample_of(
        self, key: tuple[str, ...], ask: Callable[[], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        """Return the answer to a question that is not for the brokers."""
        if (sampled := self._samples.get(key)) is None:
            if len(self._samples) >= MOST_SAMPLES:
                oldest = min(self._samples, key=lambda known: self._samples[known].used_s)
                self._samples.pop(oldest).cancel()
            sampled = self._samples[key] = Sampled(ask, self._tasks, self._now_s, fresh_s=fresh_s)
        found: Sample[T] = await sampled.get()
        self._drop_oldest()
        return found

    def _drop_oldest(self) -> None:
        """Drop the answers that were not read for longest, until the others fit into memory."""
        total = sum(sampled.size_bytes for sampled in self._samples.values())
        if total <= self._most_bytes:
            return
        *others, _ = sorted(self._samples, key=lambda key: self._samples[key].used_s)
        for key in others:
            total -= self._samples[key].size_bytes
            self._samples.pop(key).cancel()
            if total <= self._most_bytes:
                return


class ShownCluster:
    """One cluster as its viewer may see it: the topics and groups of other people are left out.

    `ask` and `admin` answer everything: their pages ask `may` for that which they show, or declare in their
    route that they need the whole cluster.
    """

    def __init__(
        self, connection: Connection, viewer: Viewer = OWNER, mask_rules: tuple[MaskRule, ...] = ()
    ) -> None:
        self.name = connection.name
        self.bootstrap_servers = connection.bootstrap_servers
        self.profile = connection.profile
        self.registry = connection.registry
        self.connects = connection.connects
        self.viewer = viewer
        self._connection = connection
        self._mask_rules = mask_rules

    def seen_by(self, viewer: Viewer, mask_rules: tuple[MaskRule, ...]) -> ShownCluster:
        """Return the same cluster for a viewer."""
        return ShownCluster(self._connection, viewer, mask_rules)

    def may(self, role: Role = Role.VIEWER, *, topic: str | None = None, group: str | None = None) -> bool:
        """Whether the viewer has a role over a topic or group; over the whole cluster where none is named."""
        is_whole = topic is None and group is None
        return self.viewer.may(Need(role, self.name, topic, group, is_whole))

    def mask(self, topic: str) -> Mask:
        """Return the parts of a topic's records that the viewer may not read."""
        return full_mask(self._mask_rules, self.viewer, self.name, topic)

    def hides_data(self, topics: Collection[str]) -> bool:
        """Whether a part of keys or values of these topics is masked; of any topic where none is named."""
        if topics:
            return any(self.mask(topic).hides_data for topic in topics)
        origins = self.mask("").origins
        return origins is not None and any(rule.hides_data for rule in origins.rules)

    async def admin(self) -> Admin:
        """Return the connected client. Raises ClientError, NoSample."""
        return await self._connection.admin()

    def begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work that is left behind a change, in its time."""
        self._connection.begin(work)

    @property
    def copies(self) -> CopyRates:
        """The rates at which partitions are copied, as pages have seen them."""
        return self._connection.copies

    async def state(self) -> Sample[ClusterState]:
        """Return brokers, partitions and log directories."""
        found = await self._sample(("state",), self._connection.read_state)
        if self.may():
            return found
        seen = await asyncio.to_thread(seen_state, self.viewer, self.name, found.value)
        return replace(found, value=seen)

    async def state_within(self, most_s: float) -> Sample[ClusterState] | None:
        """Return the state; None for a cluster that was never asked before and takes longer than that."""
        if self._connection.knows("state"):
            return await self.state()
        try:
            async with asyncio.timeout(most_s):
                return await self.state()
        except TimeoutError:
            return None

    @property
    def first_seen(self) -> ClusterDescription | None:
        """The brokers as they were described before the first state was there."""
        return self._connection.first_seen

    def last_seen(self, broker: int) -> LastSeen | None:
        """Return a broker as it was last seen; its log directories only to viewers of the whole cluster."""
        found = self._connection.last_seen.get(broker)
        return found if found is None or self.may() else replace(found, log_dirs=())

    async def derived(self, key: str, sources: tuple[object, ...], derive: Callable[[], T]) -> T:
        """Return that which a thread derives from answers, as `key` names it.

        It is kept for those who see the whole cluster: to the others each answer is another object.
        """
        if self.may():
            return await self._connection.derived(key, sources, derive)
        return await asyncio.to_thread(derive)

    async def groups(self) -> Sample[list[GroupListing]]:
        """Return all groups."""
        found = await self._sample(("groups",), lambda admin: admin.groups.list())
        if self.may():
            return found
        seen = await asyncio.to_thread(lambda: [group for group in found.value if self.may(group=group.name)])
        return replace(found, value=seen)

    async def progress(self, group: str) -> Sample[GroupProgress]:
        """Return the members and the lag of a group."""
        found = await self._sample(
            ("progress", group),
            lambda admin: read_progress(admin.groups, admin.offsets, admin.topics, group),
        )
        return replace(found, value=seen_progress(self.viewer, self.name, found.value))

    async def acquired(self) -> Acquired | None:
        """Return the records that members of share groups hold; None where no metrics page is named.

        Raises NoSample. It has all groups: a page shows those that its viewer may see.
        """
        if (pages := self._connection.metrics) is None:
            return None
        found = (await self.ask_service(("acquired",), pages.acquired)).value
        if self.may() or not found.failures:
            return found
        return replace(found, failures=(HIDDEN_REASON,))

    @property
    def has_zookeeper(self) -> bool:
        """Whether the profile names ZooKeeper."""
        return self._connection.zookeeper is not None

    async def ask_zookeeper(
        self, key: tuple[str, ...], question: Callable[[KazooSession], Awaitable[T]]
    ) -> Sample[T]:
        """Return the answer of ZooKeeper to a question of a page, which `key` names."""
        return await self._seen(self._connection.sample_znodes(key, question))

    async def zookeeper_groups(self) -> Sample[list[str]]:
        """Return the names of the groups in ZooKeeper."""
        from ottla.console.clusters.znodes import read_zookeeper_groups

        found = await self.ask_zookeeper(("groups",), read_zookeeper_groups)
        return replace(found, value=[name for name in found.value if self.may(group=name)])

    async def zookeeper_progress(self, group: str) -> Sample[GroupProgress]:
        """Return the members and the lag of a group in ZooKeeper."""
        from ottla.console.clusters.znodes import read_zookeeper_progress

        async def read(session: KazooSession) -> GroupProgress:
            return await read_zookeeper_progress(session, await self.admin(), group)

        found = await self.ask_zookeeper(("progress", group), read)
        return replace(found, value=seen_progress(self.viewer, self.name, found.value))

    async def ask(
        self, key: tuple[str, ...], question: Callable[[Admin], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        """Return the answer to a question of a page, which `key` names."""
        return await self._sample(("page", *key), question, fresh_s=fresh_s)

    async def ask_service(
        self, key: tuple[str, ...], question: Callable[[], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        """Return the answer to a question to a service beside the brokers: these may be away."""
        return await self._seen(self._connection.sample_of(("service", *key), question, fresh_s=fresh_s))

    def forget(self) -> None:
        """Ask everything again at the next look."""
        self._connection.forget()

    async def _sample(
        self, key: tuple[str, ...], question: Callable[[Admin], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        return await self._seen(self._connection.sample(key, question, fresh_s=fresh_s))

    async def _seen(self, asked: Awaitable[Sample[T]]) -> Sample[T]:
        """Return an answer whose failure names nothing that the viewer may not see. Raises NoSample."""
        if self.may():
            return await asked
        try:
            found = await asked
        except NoSample as error:
            raise NoSample(error.nameless) from None
        return replace(found, failure=found.nameless)


class ShownClusters:
    """All clusters of the console; inside `async with` they can be asked."""

    def __init__(self, clusters: Iterable[ClusterSettings], now_s: Callable[[], float]) -> None:
        self._settings = tuple(clusters)
        self._now_s = now_s
        self._tasks = asyncio.TaskGroup()
        self._stack = AsyncExitStack()
        self._connections: dict[str, Connection] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        await self._stack.__aenter__()
        decoding = await self._stack.enter_async_context(DecodingProcess())
        for settings in self._settings:
            connection = Connection(settings, self._tasks, self._stack, self._now_s, decoding)
            self._stack.push_async_callback(connection.close_services)
            self._connections[settings.name] = connection
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A question that still connects would leave its connection open behind the stack.
        for connection in self._connections.values():
            connection.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._stack.aclose()

    def __iter__(self) -> Iterator[ShownCluster]:
        return map(ShownCluster, self._connections.values())

    def get(self, name: str) -> ShownCluster | None:
        """Return a cluster; None for an unknown name."""
        connection = self._connections.get(name)
        return None if connection is None else ShownCluster(connection)


class SeenClusters:
    """The clusters that a viewer may see, each as they may see it."""

    def __init__(
        self, clusters: ShownClusters, viewer: Viewer, mask_rules: tuple[MaskRule, ...] = ()
    ) -> None:
        self._clusters = clusters
        self._viewer = viewer
        self._mask_rules = mask_rules

    def __iter__(self) -> Iterator[ShownCluster]:
        return (
            cluster.seen_by(self._viewer, self._mask_rules)
            for cluster in self._clusters
            if self._viewer.may(Need(cluster=cluster.name))
        )

    def get(self, name: str) -> ShownCluster | None:
        """Return a cluster; None for an unknown name, or one that the viewer may not see."""
        return next((cluster for cluster in self if cluster.name == name), None)
