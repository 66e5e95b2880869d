"""Registration of a broker in the cluster: cluster id, broker id, and the ephemeral znode."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.features import NEWEST, SUPPORTED
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.log.files.file_system import Files, write_atomically
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.session import (
    NULL,
    BadVersion,
    Create,
    NodeExists,
    NoNode,
    Operations,
    Session,
    SessionExpired,
    SetData,
    Stat,
    ZooKeeperError,
)
from ottla.zookeeper.znodes import BrokerRegistration, ClusterId, ControllerNode, Endpoint

if TYPE_CHECKING:
    from random import Random

    from ottla.broker.config import BrokerConfig
    from ottla.broker.runtime.environment import Environment

_log = logging.getLogger(__name__)

SESSION_FILE: Final = "coordination.session"


class StartupRefused(RuntimeError):
    """The broker cannot start as configured; the message is one line that says what to do."""


async def make_roots(operations: Operations) -> None:
    """Create the persistent znodes of a cluster, if they are missing."""
    parents = list(dict.fromkeys(parent for path in paths.PERSISTENT_ROOTS for parent in _lineage(path)))
    if await retrying(lambda: _create_all(operations, parents)):
        return
    for path in parents:
        await retrying(lambda path=path: _create_quietly(operations, path))  # type: ignore[misc]
    await retrying(lambda: _empty_as_kafka_does(operations))


async def _create_all(operations: Operations, parents: list[str]) -> bool:
    """Create the znodes of a new cluster, with its feature levels, in one round trip; False if one exists."""
    if await operations.exists(parents[0]) is not None:
        return False
    try:
        levels = (Create(paths.OTTLA, NULL), Create(NEWEST.path, NEWEST.encode()))
        await operations.multi([*(Create(path, NULL) for path in parents), *levels])
    except NodeExists:
        return False
    return True


def _lineage(path: str) -> list[str]:
    steps = path.strip("/").split("/")
    return ["/" + "/".join(steps[: count + 1]) for count in range(len(steps))]


async def _empty_as_kafka_does(operations: Operations) -> None:
    """Replace empty data of the producer id block, which earlier versions wrote: Apache Kafka ends at it."""
    path = paths.LATEST_PRODUCER_ID_BLOCK
    data, stat = await operations.get(path)
    if not data and data is not NULL:
        try:
            await operations.set(path, NULL, stat.version)
        except BadVersion:
            return  # another broker has claimed the first block meanwhile


async def _create_quietly(operations: Operations, path: str, data: bytes = NULL) -> None:
    if await operations.exists(path) is not None:
        return
    try:
        await operations.create(path, data)
    except NodeExists:
        return


async def cluster_id(operations: Operations, random: Random) -> str:
    """Return the cluster id; the first broker of a cluster generates it."""
    made = base64.urlsafe_b64encode(random.getrandbits(128).to_bytes(16, "big")).rstrip(b"=").decode()
    await retrying(lambda: _create_quietly(operations, paths.CLUSTER))
    await retrying(lambda: _create_quietly(operations, paths.CLUSTER_ID, ClusterId(made).encode()))
    data, _ = await retrying(lambda: operations.get(paths.CLUSTER_ID))
    return ClusterId.decode(data).id


def choose_broker_id(configured: int, stored: int | None) -> int | None:
    """Return the id from the configuration or from `meta.properties`; None if one has to be generated.

    Raises StartupRefused when they differ.
    """
    if configured >= 0 and stored is not None and configured != stored:
        raise StartupRefused(
            f"broker.id is {configured}, but the data directory belongs to broker {stored}: "
            f"set broker.id={stored} or use another log.dirs"
        )
    return configured if configured >= 0 else stored


async def generate_broker_id(operations: Operations, config: BrokerConfig) -> int:
    """Reserve the next id above reserved.broker.max.id."""
    if not config.broker_id_generation_enable:
        raise StartupRefused("broker.id is not set and broker.id.generation.enable is false: set broker.id")
    stat = await retrying(lambda: operations.set(paths.BROKER_SEQUENCE_ID, b""))
    return stat.version + config.reserved_broker_max_id


class Registration:
    """The ephemeral znode that says that this broker is alive; written again in each session."""

    def __init__(
        self,
        session: Session,
        config: BrokerConfig,
        environment: Environment,
        *,
        broker_id: int,
        endpoints: Iterable[Endpoint],
        data_dirs: Sequence[Path],
        files: Files,
    ) -> None:
        self._session = session
        self._config = config
        self._environment = environment
        self._broker_id = broker_id
        self.endpoints = tuple(endpoints)
        """Where this broker is: of the present registration, and of those to come."""
        self._files = files
        self._session_file = data_dirs[0] / SESSION_FILE
        # A directory put before the others has no file yet: that of the next one is this broker's, too.
        known = (_read_session(files, directory / SESSION_FILE) for directory in data_dirs)
        self._earlier_session = next((session_id for session_id in known if session_id is not None), None)

    async def register(self) -> int:
        """Write the znode in the present session; return its czxid, the broker epoch.

        Raises StartupRefused when another live broker has this id. A znode that an earlier session of this
        data directory left is deleted: no other process can own it, because the directory is locked.
        """
        bound, session_id = self._session.bound(), self._session.session_id
        node = self._node()
        epoch = await retrying(lambda: self._write(bound, session_id, node))
        if node.endpoints != self.endpoints:
            await self._rewrite()
        await self._delete_stale_controllership(bound, session_id)
        self._remember(session_id)
        _log.info("registered", extra={"broker": self._broker_id, "broker_epoch": epoch})
        return epoch

    async def check_addresses(self) -> None:
        """Check that no other broker is registered at an address of this one, as Kafka does at its start.

        Raises StartupRefused, and ZooKeeperError.
        """
        others = [int(name) for name in await self._session.children(paths.BROKER_IDS) if name.isdigit()]
        for broker_id in sorted(set(others) - {self._broker_id}):
            with suppress(NoNode, MalformedZnode):
                data, _ = await self._session.get(paths.broker(broker_id))
                registered = BrokerRegistration.decode(broker_id, data).endpoints
                if taken := taken_addresses(self.endpoints, registered):
                    raise StartupRefused(
                        f"Configured end points {taken} in advertised listeners are already registered by "
                        f"broker {broker_id}: give this one other addresses, or wait one session timeout if "
                        "that one has just died"
                    )

    async def move_to(self, config: BrokerConfig, endpoints: tuple[Endpoint, ...]) -> None:
        """Register other endpoints: in the znode of the present session, which keeps its broker epoch."""
        self._config = config
        if endpoints == self.endpoints:
            return
        self.endpoints = endpoints
        await self._rewrite()
        where = ", ".join(map(str, endpoints))
        _log.info("addresses registered", extra={"broker": self._broker_id, "endpoints": where})

    async def _rewrite(self) -> None:
        """Write the present endpoints; without a znode of this session they come with the next one."""
        bound, session_id = self._session.bound(), self._session.session_id
        try:
            await retrying(lambda: self._write_again(bound, session_id))
        except SessionExpired:
            return

    async def _write_again(self, bound: Operations, session_id: int) -> None:
        while True:
            node = self._node()
            stat = await bound.exists(node.path)
            if stat is None or stat.ephemeral_owner != session_id:
                return
            with suppress(NoNode, BadVersion):  # another change of the endpoints was written meanwhile
                await bound.set(node.path, node.encode(), version=stat.version)
                return

    def _node(self) -> BrokerRegistration:
        protocols = {listener.name: listener.security_protocol for listener in self._config.parsed_listeners}
        return BrokerRegistration(
            self._broker_id,
            self.endpoints,
            protocols,
            self._environment.clock.now_ms(),
            rack=self._config.broker_rack,
            ottla_features=SUPPORTED,
        )

    async def _write(self, bound: Operations, session_id: int, node: BrokerRegistration) -> int:
        create = Create(node.path, node.encode(), ephemeral=True)
        try:
            # The write after the create returns the czxid in the same transaction.
            results = await bound.multi([create, SetData(node.path, node.encode())])
        except NodeExists:
            return await self._already_there(bound, session_id, node)
        stat = results[1]
        assert isinstance(stat, Stat)
        return stat.czxid

    async def _already_there(self, bound: Operations, session_id: int, node: BrokerRegistration) -> int:
        stat = await bound.exists(node.path)
        if stat is None:
            return await self._write(bound, session_id, node)
        if stat.ephemeral_owner == session_id:
            return stat.czxid
        if stat.ephemeral_owner != self._earlier_session:
            raise StartupRefused(
                f"a broker with id {self._broker_id} is registered already: give this one another broker.id, "
                "or wait one session timeout if it has just died"
            )
        await _delete_quietly(bound, node.path, stat.version)
        return await self._write(bound, session_id, node)

    async def _delete_stale_controllership(self, bound: Operations, session_id: int) -> None:
        """Delete the controller znode of an earlier session of this data directory."""
        try:
            data, stat = await bound.get(paths.CONTROLLER)
        except (NoNode, ZooKeeperError):
            return
        earlier = (
            self._earlier_session not in (None, session_id) and stat.ephemeral_owner == self._earlier_session
        )
        if earlier and ControllerNode.decode(data).broker_id == self._broker_id:
            await retrying(lambda: _delete_quietly(bound, paths.CONTROLLER, stat.version))

    def _remember(self, session_id: int) -> None:
        if session_id != self._earlier_session:
            self._earlier_session = session_id
            try:
                write_atomically(self._files, self._session_file, f"{session_id}\n".encode(), sync=False)
            except OSError as error:
                # A start after a kill then waits until this session expires.
                _log.warning("session not remembered", extra={"reason": str(error)})


class At(Protocol):
    """An address of a broker."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


def taken_addresses(own: Iterable[At], others: Iterable[At]) -> str:
    """Return the addresses of a broker that are another's, too, separated by commas."""
    taken = {(found.host, found.port) for found in others}
    return ",".join(f"{found.host}:{found.port}" for found in own if (found.host, found.port) in taken)


async def _delete_quietly(bound: Operations, path: str, version: int) -> None:
    try:
        await bound.delete(path, version)
    except (NoNode, BadVersion):
        return


def _read_session(files: Files, path: Path) -> int | None:
    try:
        return int(files.read(path))
    except (OSError, ValueError):
        return None
