"""Controller election: one ZooKeeper transaction creates the controller znode and raises the epoch."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from ottla.broker.peers.client import ADVICE, LEVEL
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen
from ottla.zookeeper.session import (
    BadVersion,
    ConnectionLoss,
    Create,
    NodeExists,
    NoNode,
    Operations,
    OperationTimeout,
    SetData,
    Watch,
)
from ottla.zookeeper.znodes import ControllerEpoch, ControllerNode, FeatureNode

_log = logging.getLogger("controller")

NO_CONTROLLER = -1
BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 5_000
FORGIVEN_AFTER_MS: Final = 60_000
"""A failure this long after the last one counts as the first."""


@frozen
class Controllership:
    """A won election: the controller epoch, and the version of the epoch znode that fences writes."""

    epoch: int
    epoch_version: int


@frozen
class ActiveController:
    """The broker that is the controller now; `mine` when the znode belongs to the present session."""

    broker_id: int
    mine: bool = False


class Candidacy:
    """Exponential backoff before this broker stands for election again after its controllership failed.

    Another broker may be able to do what this one cannot.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._failed_ms = -FORGIVEN_AFTER_MS
        self._from_ms = 0.0

    def failed(self, now_ms: float) -> None:
        """Count a failure."""
        self._failures = 0 if now_ms - self._failed_ms > FORGIVEN_AFTER_MS else self._failures + 1
        self._failed_ms = int(now_ms)
        self._from_ms = now_ms + min(MAX_BACKOFF_MS, BACKOFF_MS * 2 ** min(self._failures, 10))

    def wait_ms(self, now_ms: float) -> float:
        """How long not to run for election; 0 when it is free to."""
        return max(0.0, self._from_ms - now_ms)


async def read_active_controller(
    session: Operations, session_id: int, broker_id: int, watch: Watch | None = None
) -> ActiveController:
    """Read which broker is the controller, and watch for a change.

    Only the session that owns the znode counts: a znode that an earlier session of this broker left is not
    `mine`.
    """
    while True:
        # The watch is set on existence too, so that the election of another controller is noticed.
        if await session.exists(paths.CONTROLLER, watch) is None:
            return ActiveController(NO_CONTROLLER)
        try:
            data, stat = await session.get(paths.CONTROLLER)
        except NoNode:
            continue
        node = ControllerNode.decode(data)
        mine = node.broker_id == broker_id and stat.ephemeral_owner == session_id
        return ActiveController(node.broker_id, mine)


async def run_for_election(
    session: Operations, session_id: int, broker_id: int, now_ms: int
) -> Controllership | None:
    """Try once to become the controller; None when another broker won, or when the outcome is unknown."""
    epoch, version = await _read_epoch(session)
    node = ControllerNode(broker_id=broker_id, timestamp_ms=now_ms)
    won = Controllership(epoch + 1, version + 1)
    try:
        await session.multi(
            [
                Create(paths.CONTROLLER, node.encode(), ephemeral=True),
                SetData(paths.CONTROLLER_EPOCH, ControllerEpoch(epoch + 1).encode(), version),
            ]
        )
    except (NodeExists, BadVersion, ConnectionLoss, OperationTimeout):
        # An earlier try may have succeeded although its answer was lost: the znodes decide.
        if not await _is_mine(session, session_id, broker_id, won):
            return None
    await _enable_features(session)
    return won


async def _enable_features(session: Operations) -> None:
    """Write, once for the cluster, that features can be finalized (KIP-584); none has been."""
    node = FeatureNode()
    try:
        data, _ = await session.get(node.path)
    except NoNode:
        with suppress(NodeExists):
            await session.create(node.path, node.encode())
        return
    try:
        version = FeatureNode.decode(data).version
    except MalformedZnode as error:
        _log.error("features not read", extra={"path": node.path, "reason": str(error)})
        return
    if version > node.version:
        _log.error(
            "a broker has run with a later inter.broker.protocol.version",
            extra={"level": LEVEL, "advice": f"{ADVICE}, and remove the znode {node.path}"},
        )


async def resign(session: Operations, session_id: int) -> None:
    """Remove the controller znode that this session owns."""
    try:
        _, stat = await session.get(paths.CONTROLLER)
        if stat.ephemeral_owner == session_id:
            await session.delete(paths.CONTROLLER, stat.version)
    except (NoNode, BadVersion):
        return


async def _read_epoch(session: Operations) -> tuple[int, int]:
    try:
        data, stat = await session.get(paths.CONTROLLER_EPOCH)
    except NoNode:
        await _create_epoch(session)
        data, stat = await session.get(paths.CONTROLLER_EPOCH)
    return ControllerEpoch.decode(data).epoch, stat.version


async def _create_epoch(session: Operations) -> None:
    try:
        await session.create(paths.CONTROLLER_EPOCH, ControllerEpoch(0).encode())
    except NodeExists:
        return


async def _is_mine(session: Operations, session_id: int, broker_id: int, wanted: Controllership) -> bool:
    active = await read_active_controller(session, session_id, broker_id)
    epoch, version = await _read_epoch(session)
    return active.mine and (epoch, version) == (wanted.epoch, wanted.epoch_version)
