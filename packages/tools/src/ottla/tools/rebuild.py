"""The znodes of a cluster, rebuilt from its log directories and the readable part of its coordinator's files.

Pure: partitions and znodes in, znodes and a report out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.cluster.topics import internal_topic
from ottla.broker.config import BrokerConfig
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.session import NULL
from ottla.zookeeper.znodes import (
    ClusterId,
    ConfigEntity,
    ControllerEpoch,
    PartitionState,
    ProducerIdBlock,
    TopicAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE: Final = 1_000

KEEP_EVERYTHING: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic whose own are lost: its retention may have been longer than the default."""

_NOT_KEPT: Final = (
    paths.BROKER_IDS,
    paths.BROKER_TOPICS,
    paths.CONFIG_CHANGES,
    paths.ISR_CHANGE_NOTIFICATION,
    paths.LOG_DIR_EVENT_NOTIFICATION,
    paths.DELETE_TOPICS,
    paths.REASSIGN_PARTITIONS,
    paths.PREFERRED_REPLICA_ELECTION,
    paths.LATEST_PRODUCER_ID_BLOCK,
    paths.CONTROLLER,
)
"""Znodes that are made anew, and requests under way, which may have been for topics that are no more."""


@dataclass(frozen=True)
class FoundPartition:
    """One partition's directory on one broker."""

    topic: str
    partition: int
    broker_id: int
    topic_id: UUID | None
    leader_epoch: int = 0
    log_end_offset: int = 0
    is_compacted: bool = False


@dataclass
class Rebuilt:
    """The znodes to be written, by path, and what a user should know, line by line."""

    znodes: dict[str, bytes] = field(default_factory=dict)
    report: list[str] = field(default_factory=list)


class TopicIdsDiffer(RuntimeError):
    """Directories of one name belong to several topics; the message names them."""


def rebuild(
    found: Iterable[FoundPartition],
    kept: Mapping[str, bytes],
    cluster_id: str,
    *,
    is_whole: bool,
    new_id: Callable[[], UUID],
    now_ms: int,
) -> Rebuilt:
    """Return the znodes of the cluster whose partitions were `found`.

    `kept` is what its coordinator still knows; `is_whole` says that nothing of that was lost. Raises
    TopicIdsDiffer.
    """
    made = Rebuilt()
    for path, data in kept.items():
        if not any(path == top or path.startswith(f"{top}/") for top in _NOT_KEPT):
            made.znodes[path] = data
    made.znodes[paths.CLUSTER_ID] = ClusterId(cluster_id).encode()
    by_topic: dict[str, list[FoundPartition]] = {}
    for replica in found:
        by_topic.setdefault(replica.topic, []).append(replica)
    controller_epoch = _controller_epoch(kept, made)
    for topic, its in sorted(by_topic.items()):
        _Topic(topic, its, kept, made).make(controller_epoch, new_id)
    _without_directories(kept, by_topic.keys(), made)
    _producer_ids(kept, made, is_whole=is_whole, now_ms=now_ms)
    return made


@dataclass
class _Topic:
    """One topic of which there are directories."""

    name: str
    found: Sequence[FoundPartition]
    kept: Mapping[str, bytes]
    made: Rebuilt

    def make(self, controller_epoch: int, new_id: Callable[[], UUID]) -> None:
        """Add its assignment, states and settings."""
        topic_id = self._topic_id()
        before = self._assignment()
        is_other = before is not None and topic_id is not None and before.topic_id not in (None, topic_id)
        if is_other:
            self._say("is another topic than the one of this name that the coordinator knew")
            before = None
        if topic_id is None:
            topic_id = before.topic_id if before is not None else None
        if topic_id is None:
            topic_id = new_id()
            self._say("gets a new topic id: it has no partition.metadata")
        assignment = self._replicas(before)
        self.made.znodes[paths.topic(self.name)] = TopicAssignment(self.name, assignment, topic_id).encode()
        self.made.znodes[paths.partitions(self.name)] = NULL
        for partition, replicas in assignment.items():
            self._state(partition, replicas, controller_epoch, known=before is not None)
        self._settings(known=not is_other)

    def _say(self, what: str) -> None:
        self.made.report.append(f"topic {self.name} {what}")

    def _topic_id(self) -> UUID | None:
        ids = {replica.topic_id for replica in self.found if replica.topic_id is not None}
        if len(ids) > 1:
            places = ", ".join(
                f"{replica.partition} on broker {replica.broker_id}: {replica.topic_id}"
                for replica in self.found
            )
            raise TopicIdsDiffer(
                f"the directories of {self.name} belong to several topics (partition {places}): "
                "move those away that are not wanted"
            )
        return next(iter(ids), None)

    def _assignment(self) -> TopicAssignment | None:
        data = self.kept.get(paths.topic(self.name))
        try:
            return TopicAssignment.decode(self.name, data) if data else None
        except MalformedZnode as error:
            self._say(f"had an unreadable znode: {error.detail}")
            return None

    def _replicas(self, before: TopicAssignment | None) -> dict[int, tuple[int, ...]]:
        """Return the replicas by partition: as they were known, else where directories are."""
        known = dict(before.partitions) if before is not None else {}
        count = max(1 + max(replica.partition for replica in self.found), len(known))
        missing = []
        for partition in range(count):
            if partition not in known:
                there = sorted(
                    {replica.broker_id for replica in self.found if replica.partition == partition}
                )
                if not there:
                    missing.append(str(partition))
                    there = sorted({replica.broker_id for replica in self.found})[:1]
                known[partition] = tuple(there)
        if missing:
            self._say(f"has no directory of partition {', '.join(missing)}: it begins empty")
        if before is None:
            self._say(f"is made anew with {count} partitions; it may have had more, without directories")
        return dict(sorted(known.items()))

    def _state(
        self, partition: int, replicas: tuple[int, ...], controller_epoch: int, *, known: bool
    ) -> None:
        """Keep a partition's state; without one, or if the log has a newer epoch, the longest log leads."""
        path = paths.partition_state(self.name, partition)
        here = [replica for replica in self.found if replica.partition == partition]
        newest = max((replica.leader_epoch for replica in here), default=0)
        if known and (data := self.kept.get(path)):
            try:
                state = PartitionState.decode(self.name, partition, data)
            except MalformedZnode:
                state = None
            if state is not None and state.leader_epoch >= newest:
                self._put_state(path, data)
                return
        if not here:
            return  # the controller makes the state of a partition that has no log
        leader = max(
            here, key=lambda replica: (replica.leader_epoch, replica.log_end_offset, -replica.broker_id)
        ).broker_id
        made = PartitionState(self.name, partition, leader, newest, (leader,), controller_epoch)
        if leader in replicas:
            self._put_state(path, made.encode())

    def _put_state(self, path: str, data: bytes) -> None:
        self.made.znodes[path.rpartition("/")[0]] = NULL
        self.made.znodes[path] = data

    def _settings(self, *, known: bool) -> None:
        node = ConfigEntity(f"topics/{self.name}", self._unknown_settings())
        if known and node.path in self.kept:
            self.made.znodes[node.path] = self.kept[node.path]
            return
        self.made.znodes[node.path] = node.encode()
        if self.name not in INTERNAL_TOPICS:
            shown = ", ".join(f"{key}={value}" for key, value in sorted(node.config.items()))
            self._say(f"has lost its settings; until you set them it has {shown}")

    def _unknown_settings(self) -> dict[str, str]:
        if self.name in INTERNAL_TOPICS:
            brokers = len({replica.broker_id for replica in self.found})
            configs = internal_topic(self.name, BrokerConfig(), brokers).configs
            return {key: value for key, value in configs.items() if value is not None}
        if any(replica.is_compacted for replica in self.found):
            return {"cleanup.policy": "compact"}
        return dict(KEEP_EVERYTHING)


def _controller_epoch(kept: Mapping[str, bytes], made: Rebuilt) -> int:
    try:
        epoch = ControllerEpoch.decode(kept[paths.CONTROLLER_EPOCH]).epoch
    except (KeyError, MalformedZnode):
        epoch = 1
    made.znodes[paths.CONTROLLER_EPOCH] = ControllerEpoch(epoch).encode()
    return epoch


def _without_directories(kept: Mapping[str, bytes], found: Iterable[str], made: Rebuilt) -> None:
    """Keep topics that the coordinator knew and of which there is no directory, and say so."""
    present = set(found)
    for path in sorted(kept):
        if not path.startswith(f"{paths.BROKER_TOPICS}/"):
            continue
        topic = path.split("/")[3]
        if topic in present:
            continue
        made.znodes[path] = kept[path]
        if path == f"{paths.BROKER_TOPICS}/{topic}":
            made.report.append(
                f"topic {topic} has no directory here and begins empty; delete it if it was deleted before"
            )


def _producer_ids(kept: Mapping[str, bytes], made: Rebuilt, *, is_whole: bool, now_ms: int) -> None:
    """Keep the block of producer ids, or begin above every id that can have been given."""
    path = paths.LATEST_PRODUCER_ID_BLOCK
    if is_whole and path in kept:
        made.znodes[path] = kept[path]
        return
    # Ids are given in blocks of a thousand from 0 on; nobody claims a block per millisecond since 1970.
    first = now_ms * BLOCK_SIZE
    made.znodes[path] = ProducerIdBlock(0, first, first + BLOCK_SIZE - 1).encode()
    made.report.append(f"producer ids go on behind {first}, above every id that has been given")


def is_topic_name(name: str) -> bool:
    """Whether a directory's name can be that of a topic."""
    try:
        paths.topic_segment(name)
    except IllegalName:
        return False
    return True
