"""One broker: the order in which its parts start and stop, and what it does when it cannot go on.

The module has over 500 lines because the steps of a start refer to each other, and stand in their order.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ottla.broker.api.routes import ROUTES
from ottla.broker.cluster.inter_broker_access import check_brokers_may_act
from ottla.broker.cluster.registration import (
    Registration,
    StartupRefused,
    choose_broker_id,
    cluster_id,
    generate_broker_id,
    make_roots,
)
from ottla.broker.cluster.zookeeper_session import SessionLease, measure_session, retrying
from ottla.broker.config.logins import has_logins
from ottla.broker.config.metrics import metrics_access_of
from ottla.broker.config.zookeeper_client import zookeeper_security_of
from ottla.broker.controller.channels import RemoteSender, Sender
from ottla.broker.controller.control_request_batch import endpoint_of
from ottla.broker.controller.controllership import NO_CONTROLLER
from ottla.broker.log.files.file_system import NO_SPACE, DiskFiles, Files
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.metrics import Metrics
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.listener import Server
from ottla.broker.peers import Address
from ottla.broker.requests.authorization import RequestAuthorization
from ottla.broker.requests.routes import Routes
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import Turn
from ottla.broker.security.authorizer import ALLOW_ALL
from ottla.broker.security.tls.listeners import TlsOfListeners
from ottla.broker.server.broker_listeners import BrokerListeners
from ottla.broker.server.composition import Composition, Parts
from ottla.broker.server.leadership_handover import FullDirectoryHandover
from ottla.broker.server.local_control_requests import LocalSender
from ottla.broker.server.periodic_tasks import schedule
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.znodes import LogDirEvent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ottla.broker.api.services import Services
    from ottla.broker.cluster.metadata import KnownBroker
    from ottla.broker.cluster.zookeeper_access import ZooKeeperAccess
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller_context import LiveBroker
    from ottla.broker.server.listener_logins import BrokerLogins
    from ottla.zookeeper.embedded.access import Access
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

READY_WITHIN_S: Final = 30.0
CERTIFICATES_EVERY_MS: Final = 500.0
"""How often the files of certificates are looked at: a new one holds for logins a second later."""


class EveryDirectoryFailed(RuntimeError):
    """Every log directory is offline."""


class Broker:
    """A broker that serves while it is entered.

    `async with Broker(config) as broker:` returns once clients can connect, know the topics and
    find their leaders; leaving hands leaderships over, closes the logs cleanly and gives the
    registration back. Raises `StartupRefused`, with one line that says what to do, when it
    cannot start as configured.
    """

    def __init__(
        self, config: BrokerConfig, environment: Environment | None = None, files: Files | None = None
    ) -> None:
        self.config = config
        self.write_first: Callable[[Session], Awaitable[None]] | None = None  # users, for instance
        self.environment = environment or Environment()
        self._files: Files = files or DiskFiles()
        self.metrics = Metrics()
        self.tls = TlsOfListeners()
        self.broker_id = -1
        self.cluster_id = ""
        self.services: Services
        self.parts: Parts
        self.listeners: BrokerListeners
        self._ended = asyncio.Event()
        self._end: Exception | None = None
        self._changing_listeners = asyncio.Lock()
        self._access: ZooKeeperAccess | None = None
        self._stack = AsyncExitStack()

    # ---- lifetime

    async def __aenter__(self) -> Self:
        try:
            self._metrics_access = await asyncio.to_thread(metrics_access_of, self.config)
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        _log.info("stopped", extra={"broker": self.broker_id})

    async def serve_forever(self) -> None:
        """Serve until cancelled, or until the broker cannot go on.

        Raises `EveryDirectoryFailed`, `CoordinatorFailed`, or `StartupRefused` when its id was taken.
        """
        await self._ended.wait()
        assert self._end is not None
        raise self._end

    @property
    def address(self) -> str:
        """`host:port` of the first listener, as it is bound."""
        host, port = self.listeners.first
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.listeners.first[1]

    # ---- starting: parts stop in the reverse order

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        logs = LogRegistry(self.config, self.environment, self.metrics, self._files)
        await logs.lock()
        self._stack.push_async_callback(logs.unlock)
        session = await self._coordination(logs)
        await self._identify(session, logs)
        control = self._control = BackgroundTasks(self.metrics, self.environment.clock)
        parts = self.parts = Composition(
            config=self.config,
            environment=self.environment,
            metrics=self.metrics,
            broker_id=self.broker_id,
            cluster_id=self.cluster_id,
            zookeeper=session,
            logs=logs,
            tls=self.tls,
            register=self._register,
            connect=self._connect,
            spawn=control.lasting,
        ).compose()
        services = self.services = parts.services
        self._stack.push_async_callback(parts.active_controller.close)
        await enter(control)  # its tasks ask the active controller: they end before that is closed
        self._subscribe(services)
        logins = await self._load_settings(services)
        await logs.open(services.configs.log_config)
        self._stack.push_async_callback(logs.close)
        self._stack.callback(services.record_threads.close)
        await services.replicas.load()
        self._stack.push_async_callback(services.replicas.checkpoint_high_watermarks)
        await enter(parts.followers)
        await enter(parts.share_connections)  # closed once the tasks below have ended
        for part in (services.groups, services.transactions, services.verification, parts.share_tasks):
            await enter(part)
        scheduler = await enter(BackgroundTasks(self.metrics, self.environment.clock))
        self._server = await enter(self._make_server(services))
        self.listeners = BrokerListeners(self._server, self.tls, self._open_logins, logins, self._others)
        await self.listeners.bind(services.config)
        if self.config.zookeeper_connect is not None:  # a coordinator of this process sleeps with it
            now_ms = self.environment.clock.monotonic_ms
            lease = SessionLease(session, self.broker_id, self._server.lease, now_ms)
            # Before the broker is registered: from then on it may be asked, and may sleep.
            scheduler.lasting(lease.run(), "session-lease")
        await self._join_cluster(session, control)
        await self._until_known()
        self._schedule(scheduler, services)
        self._full_directories.schedule(scheduler)
        await self._metrics_endpoint(scheduler)
        self._stack.push_async_callback(self._hand_over)

    def _others(self) -> list[KnownBroker]:
        return [broker for broker in self.services.metadata.brokers if broker.id != self.broker_id]

    def _start_tls(self, services: Services) -> None:
        """Read certificates with the settings that were altered before this start, and follow changes."""
        self.tls.start(services.configs.broker)
        services.configs.checks.append(self.tls.check)
        services.configs.on_broker_change.append(self.tls.configure)

    async def _coordination(self, logs: LogRegistry) -> Session:
        """Connect to ZooKeeper, or start the embedded coordinator and connect to it."""
        from ottla.zookeeper.embedded.access import access_for
        from ottla.zookeeper.kazoo_session import KazooSession, open_acl
        from ottla.zookeeper.paths import secure_acl

        connect, timeout_ms = self.config.zookeeper_connect, self.config.zookeeper_session_timeout_ms
        timeout_ms = self.config.zookeeper_connection_timeout_ms or timeout_ms
        if connect is None:
            hosts, credentials = await self._own_coordinator(logs)
        else:
            hosts, credentials = await access_for(connect, timeout_ms / 1000)
        security = await asyncio.to_thread(zookeeper_security_of, self.config)
        session = await self._stack.enter_async_context(
            KazooSession(
                hosts,
                session_timeout_ms=self.config.zookeeper_session_timeout_ms,
                connection_timeout_ms=timeout_ms,
                max_in_flight=self.config.zookeeper_max_in_flight_requests,
                credentials=credentials,
                security=security,
                acl_policy=secure_acl if self.config.zookeeper_set_acl else open_acl,
                took_ms=self.metrics.histogram(
                    "kafka.server", "ZooKeeperClientMetrics", "ZooKeeperRequestLatencyMs"
                ).update,
            )
        )
        measure_session(session, self.metrics)
        if not credentials:  # an embedded coordinator checks no ACLs
            from ottla.broker.cluster.zookeeper_access import ZooKeeperAccess

            self._access = ZooKeeperAccess(session, security, sets_acls=self.config.zookeeper_set_acl)
            await self._access.check_may_write()
        await make_roots(session)
        if self.write_first is not None:
            await self.write_first(session)
        return session

    async def _own_coordinator(self, logs: LogRegistry) -> Access:
        from ottla.broker.cluster import own_coordinator

        stored = logs.meta_properties
        return await own_coordinator.start(
            self._stack, self._data_dirs, stored.cluster_id if stored else None, self._cannot_go_on
        )

    @property
    def _data_dirs(self) -> list[Path]:
        return [Path(directory) for directory in self.config.data_dirs]

    async def _identify(self, session: Session, logs: LogRegistry) -> None:
        """Determine the cluster id and the broker id, and write them into `meta.properties`."""
        self.cluster_id = await cluster_id(session, self.environment.random)
        stored = logs.meta_properties
        if stored is not None and stored.cluster_id not in (None, self.cluster_id):
            raise StartupRefused(
                f"the data directory belongs to cluster {stored.cluster_id}, not to {self.cluster_id}: "
                "check zookeeper.connect or use another log.dirs"
            )
        chosen = choose_broker_id(self.config.broker_id, stored.broker_id if stored else None)
        self.broker_id = await generate_broker_id(session, self.config) if chosen is None else chosen
        if self._access is not None:
            await self._access.check_others(self.broker_id)
        elif self.config.zookeeper_connect is not None and self.config.authorizer_class_name:
            from ottla.broker.cluster.own_coordinator import check_brokers_are_here

            await retrying(lambda: check_brokers_are_here(session, self.broker_id))
        logs.identify(self.broker_id, self.cluster_id)

    def _make_server(self, services: Services) -> Server:
        return Server(
            Dispatcher(
                Routes(ROUTES),
                services,
                max_elements=services.config.request_max_elements,
                access=RequestAuthorization(
                    services.inter_broker, ALLOW_ALL if services.acls is None else services.acls.authorizer
                ),
                budget=self.environment.budget,
                quotas=services.client_quotas,
            ),
            config=services.config,  # with the settings that were altered before this start
            clock=self.environment.clock,
            budget=self.environment.budget,
            metrics=self.metrics,
            is_broker=services.inter_broker.admits_now,
        )

    def _schedule(self, scheduler: BackgroundTasks, services: Services) -> None:
        schedule(scheduler, self.config, services, self.metrics)
        scheduler.every("certificates", CERTIFICATES_EVERY_MS, self.tls.read_changed_files)

    def _subscribe(self, services: Services) -> None:
        self._full_directories = FullDirectoryHandover(
            services.logs, services.replicas, self._announce, self.environment.clock.monotonic_ms
        )
        services.logs.on_directory_failed.append(self._directory_failed)
        services.configs.on_topic_change.append(self._topic_changed)
        services.configs.on_broker_change.append(self._broker_changed)
        services.replicas.subscribe(services.produce_fast_path.known)
        services.replicas.subscribe(services.fetch_fast_path.known)
        services.replicas.subscribe(services.topic_metrics)

    async def _load_settings(self, services: Services) -> BrokerLogins | None:
        """Read settings, certificates, users and ACLs, and refuse a start that would lock out the brokers.

        A broker that is a cluster of its own needs no permission. Users are read where clients log in.
        """
        logins, configs = None, services.configs
        if any(map(has_logins, self.config.parsed_listeners)):
            logins = await self._begin_logins(services)
        await retrying(services.features.load)
        await configs.brokers.renew_passwords()
        await configs.load()
        if logins is not None:
            await logins.configure(configs.broker)
        self._start_tls(services)
        if services.delegation_tokens is not None:
            await retrying(services.delegation_tokens.load)
        if services.acls is not None:
            await retrying(services.acls.load)
            tls = self.tls.of(self.config.interbroker_listener)
            own_name = logins.own_name if logins else lambda: None
            check_brokers_may_act(self.config, services.acls.authorizer, tls, own_name)
        return logins

    async def _begin_logins(self, services: Services) -> BrokerLogins:
        from ottla.broker.server.listener_logins import BrokerLogins  # not needed where none logs in

        logins = await BrokerLogins.open(services, self._control, self.metrics)
        self._stack.callback(logins.close)
        self.parts.peers.use_tokens(logins.tokens)
        return logins

    async def _open_logins(self) -> BrokerLogins:
        """Begin to follow users while the broker runs, with the first listener that has logins."""
        logins = await self._begin_logins(self.services)
        await retrying(self.services.configs.client_entities.load)
        return logins

    def _forget_partitions(self) -> None:
        """Send every client down the general path at once: an ACL has changed.

        The indexes of thousands of sessions are freed in steps.
        """
        if dropped := self._server.connections.forget_partitions():
            self._control.spawn(self.environment.budget.turn().drop(dropped), "dropped-partitions")

    def _topic_changed(self, topic: str, config: Any) -> None:
        for log in self.services.logs.of_topic(topic):
            log.configure(config)
        self.services.produce_fast_path.known.retire_topic(topic)
        if config.unclean_leader_election_enable:
            self.services.controller.unclean_election_allowed(topic)

    def _directory_failed(self, partitions: list[TopicPartition]) -> None:
        """Stop serving the partitions of a failed directory: the controller elects other leaders."""
        self.services.replicas.directory_failed(partitions)
        if self.services.logs.all_offline:
            first = next(iter(self.services.logs.describe()))
            cause = first.error and (first.error.strerror or first.error)
            reason = f"every log directory has failed ({first.path}: {cause})"
            _log.critical("broker stops", extra={"reason": reason})
            is_full = first.error is not None and first.error.errno in NO_SPACE
            advice = "make room" if is_full else "replace the disk"
            self._cannot_go_on(EveryDirectoryFailed(f"{reason}: {advice} and start the broker again"))
        else:
            self._announce()

    def _announce(self) -> None:
        """Ask the controller to repeat this broker's assignments: the answers name the usable replicas."""
        self._control.spawn(self._write_log_dir_event(), "log-dir-event")

    async def _write_log_dir_event(self) -> None:
        event = LogDirEvent(self.broker_id)
        zookeeper = self.services.zookeeper
        await retrying(
            lambda: zookeeper.create(event.path, event.encode(), sequential=True, make_parents=True)
        )

    def _broker_changed(self, config: BrokerConfig) -> None:
        services = self.services
        services.config = services.topics.config = config
        services.fetch_fast_path.fetch_max_bytes = config.fetch_max_bytes
        services.logs.configure(config)
        self.parts.followers.configure(config)
        services.replication_quotas.configure(config)
        if config.unclean_leader_election_enable:
            services.controller.unclean_election_allowed(None)

    # ---- joining the cluster

    async def _join_cluster(self, session: Session, control: BackgroundTasks) -> None:
        services = self.services
        self._registration = Registration(
            session,
            services.config,
            self.environment,
            broker_id=self.broker_id,
            endpoints=self.listeners.endpoints(services.config),
            data_dirs=self._data_dirs,
            files=self._files,
        )
        await retrying(self._registration.check_addresses)
        self.parts.peers.configure(services.config)
        services.configs.on_broker_change.append(self._server.set_limits)
        services.configs.checks.insert(0, self.listeners.check)
        services.configs.on_broker_change.append(self._listeners_changed)
        control.lasting(services.configs.follow(), "config-changes")
        services.controller.on_active_controller_change.append(services.features.wake)
        control.lasting(services.features.follow(), "feature-levels")
        if services.delegation_tokens is not None:
            control.lasting(services.delegation_tokens.follow(), "delegation-token-changes")
        if services.acls is not None:
            services.acls.on_change.append(self._forget_partitions)
            control.lasting(services.acls.follow(), "acl-changes")
        control.lasting(services.controller.run(), "controller")
        control.lasting(self.parts.alter_partition_requests.run(services.replicas), "isr-proposals")

    def _listeners_changed(self, _: BrokerConfig) -> None:
        self._control.spawn(self._change_listeners(), "listeners")

    async def _change_listeners(self) -> None:
        """Open, close and register listeners, and then connect from there: before, others refuse it."""
        async with self._changing_listeners:
            config = self.services.config
            await self.listeners.change(config)
            await self._registration.move_to(config, self.listeners.endpoints(config))
            self.parts.peers.configure(config)

    async def _register(self) -> int:
        try:
            epoch = await self._registration.register()
            if self._access is not None:
                await self._access.prove(self.broker_id)
        except StartupRefused as error:
            self._lost_its_id(error)
            await asyncio.Event().wait()  # until the broker, which ends now, cancels this task
            raise
        self.services.replicas.broker_epoch = epoch
        return epoch

    def _lost_its_id(self, refusal: StartupRefused) -> None:
        """End, because another broker has this id: at once, for that one has the partitions now."""
        self._server.stop_accepting()
        for connection in self._server.connections.all():
            connection.abort()
        self._cannot_go_on(refusal)

    def _cannot_go_on(self, reason: Exception) -> None:
        """End the broker: `serve_forever`, or the start that is under way, raises `reason`."""
        self._end = self._end or reason
        self._ended.set()
        if hasattr(self, "services"):
            self.services.metadata.wake()

    async def _hand_over(self) -> None:
        """Hand leaderships over, unless they are no longer this broker's."""
        if not isinstance(self._end, StartupRefused):
            await self.parts.handover.run()

    async def _until_known(self) -> None:
        """Begin to serve, and wait until a controller has sent this broker the cluster's metadata.

        If this broker is the controller, it accepts connections only after that, so that clients get true
        metadata from the start. Another controller has to connect first.
        """
        metadata, controller = self.services.metadata, self.services.controller

        def led_elsewhere() -> bool:
            return controller.active_controller_id not in (NO_CONTROLLER, self.broker_id)

        await self._wait(lambda: metadata.is_alive(self.broker_id) or led_elsewhere())
        await self._server.serve()
        await self._wait(lambda: metadata.is_alive(self.broker_id))

    async def _wait(self, condition: Callable[[], bool]) -> None:
        def over() -> bool:
            return self._end is not None or condition()

        if not await self.services.metadata.within(READY_WITHIN_S * 1000, over):
            refusal = self.services.inter_broker.last_refusal
            cause = f"it refused {refusal}" if refusal else "check the other brokers"
            raise StartupRefused(f"no controller contacted this broker within {READY_WITHIN_S:g} s: {cause}")
        if self._end is not None:
            raise self._end

    def _connect(self, broker: LiveBroker) -> Sender:
        if broker.id == self.broker_id:
            return LocalSender(self.services)
        endpoint = endpoint_of(broker, self.config.controller_listener)
        address, timeout_ms = Address(endpoint.host, endpoint.port), self.config.controller_socket_timeout_ms
        return RemoteSender(self.parts.peers.registered(address, timeout_ms))

    # ---- running

    async def _metrics_endpoint(self, tasks: BackgroundTasks) -> None:
        if self.config.metrics_port >= 0:
            from ottla.broker.groups.hosting.group_lag import ENDS_EVERY_MS, ClusterLogEnds, GroupLag
            from ottla.broker.metrics.prometheus import Pages, prometheus_endpoint
            from ottla.broker.metrics.snapshot import MadeOnLoop

            services, timeout_ms = self.services, self.config.request_timeout_ms
            connect = partial(self.parts.peers.broker, purpose="group-lag", timeout_ms=timeout_ms)
            ends = ClusterLogEnds(services.replicas, services.metadata, connect)
            lag = GroupLag(services.groups.groups, ends, self.config.metrics_group_partitions_max)
            self.metrics.families.append(lag.samples)
            tasks.every("group-log-ends", ENDS_EVERY_MS, ends.refresh)
            pages = Pages(self.metrics, self.environment.budget, asyncio.get_running_loop())
            tasks.lasting(pages.run(), "metrics-pages")
            clients = MadeOnLoop(self._clients_page, asyncio.get_running_loop())
            tasks.lasting(clients.run(), "clients-pages")
            self.metrics_port = await self._stack.enter_async_context(
                prometheus_endpoint(
                    pages,
                    self.config.metrics_host,
                    self.config.metrics_port,
                    self._metrics_access,
                    clients=clients,
                )
            )

    async def _clients_page(self) -> bytes:
        from ottla.broker.server.connected_clients import page_of

        return await page_of(
            self._server.connections.all(),
            self.broker_id,
            self.environment.clock.monotonic_ms(),
            Turn(self.environment.budget.metrics),
        )
