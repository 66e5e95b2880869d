"""Invariants of the controllers of one cluster, checked on the history of an ensemble in memory."""

from __future__ import annotations

from contextlib import suppress

from ottla.zookeeper import paths
from ottla.zookeeper.embedded.data_tree import DataSet, NodeCreated, NodeDeleted, Transaction
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.znodes import ControllerEpoch, PartitionState, TopicAssignment


class InvariantViolated(AssertionError):
    """The cluster broke an invariant."""


class Invariants:
    """Checks the history of the ensemble.

    I1: one session per controller epoch. I2: no write of an older controller after one of a newer.
    I5: leader epoch, partition epoch and controller epoch never decrease. I6: leader in ISR in assignment.
    """

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self._ensemble = ensemble
        self._looked_at = 0
        self._owners: dict[int, int] = {}
        self._epoch = 0
        self._states: dict[str, PartitionState] = {}
        self._assignments: dict[str, TopicAssignment] = {}
        self.elections = 0

    def check(self) -> None:
        """Check every change since the last check; raises `InvariantViolated`."""
        for transaction in self._ensemble.history[self._looked_at :]:
            self._take(transaction)
        self._looked_at = len(self._ensemble.history)

    def _take(self, transaction: Transaction) -> None:
        changes = {
            change.path: change
            for change in transaction.changes
            if isinstance(change, NodeCreated | NodeDeleted | DataSet)
        }
        if paths.CONTROLLER_EPOCH in changes and (
            data := getattr(changes[paths.CONTROLLER_EPOCH], "data", b"")
        ):
            self._controller_epoch(ControllerEpoch.decode(data).epoch, changes.get(paths.CONTROLLER))
        for path, change in changes.items():
            if isinstance(change, NodeDeleted):
                self._states.pop(path, None)
            elif path.endswith("/state") and path.startswith(paths.BROKER_TOPICS):
                self._state(path, change.data)
            elif path.startswith(paths.BROKER_TOPICS + "/") and path.count("/") == 3:
                name = paths.name_of(path)
                with suppress(MalformedZnode):  # written by a test
                    self._assignments[name] = TopicAssignment.decode(name, change.data)

    def _controller_epoch(self, epoch: int, claimed: object) -> None:
        if epoch < self._epoch:
            raise InvariantViolated(f"I5: controller epoch {epoch} after {self._epoch}")
        self._epoch = epoch
        if epoch == 0:
            return
        if not isinstance(claimed, NodeCreated):
            raise InvariantViolated(f"I1: controller epoch {epoch} raised without a new controllership")
        if self._owners.setdefault(epoch, claimed.owner) != claimed.owner:
            raise InvariantViolated(f"I1: two sessions with controller epoch {epoch}")
        self.elections += 1

    def _state(self, path: str, data: bytes) -> None:
        _, _, _, topic, _, number, _ = path.split("/")
        try:
            state = PartitionState.decode(topic, int(number), data)
        except MalformedZnode:
            return  # written by a test
        if state.controller_epoch < self._epoch:
            raise InvariantViolated(
                f"I2: epoch {state.controller_epoch} wrote {path} after {self._epoch} was there"
            )
        before = self._states.get(path)
        if before is not None and state.leader_epoch < before.leader_epoch:
            raise InvariantViolated(f"I5: {path} went from {before} to {state}")
        replicas = self._assignments[topic].partitions[int(number)]
        if not (state.leader == -1 or state.leader in state.isr) or not set(state.isr) <= set(replicas):
            raise InvariantViolated(f"I6: {path} holds {state}, assigned to {replicas}")
        self._states[path] = state
