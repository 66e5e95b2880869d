"""Znodes of topics and partitions."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, array, by_number, encode, integer, integer32, text

NO_LEADER = -1
RECOVERED = 0
RECOVERING = 1
SLICE = 1_000


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Return a topic id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(value: object) -> uuid.UUID:
    """Read a topic id as Kafka prints it; raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text(value) + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{value!r} is not a topic id") from error


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/[topic]`: the replicas of each partition, the preferred leader first.

    Written as version 3 with a topic id and as version 2 without; versions 1 to 3 are read.
    `adding_replicas` and `removing_replicas` name only partitions under reassignment (KIP-455).
    """

    topic: str
    partitions: Mapping[int, tuple[int, ...]]
    topic_id: uuid.UUID | None = None
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.topic(self.topic)

    def encode(self) -> bytes:
        """Return the JSON of version 3, or 2 without a topic id."""
        value: dict[str, object] = {}
        if self.topic_id is not None:
            value["topic_id"] = encode_topic_id(self.topic_id)
        value["adding_replicas"] = _replicas_json(self.adding_replicas)
        value["removing_replicas"] = _replicas_json(self.removing_replicas)
        value["version"] = 2 if self.topic_id is None else 3
        return b'{"partitions":%b,%b' % (_encode_in_slices(self.partitions), encode(value)[1:])

    @classmethod
    def decode(cls, topic: str, data: bytes) -> TopicAssignment:
        """Read any version from 1 to 3."""
        fields = Fields.of(paths.topic(topic), data)
        fields.version(1, 2, 3)
        replicas = by_number(array(integer32))
        topic_id = fields.optional("topic_id", text, "")
        return cls(
            topic,
            fields.required("partitions", replicas),
            fields.required("topic_id", decode_topic_id) if topic_id else None,
            fields.optional("adding_replicas", replicas, {}),
            fields.optional("removing_replicas", replicas, {}),
        )


def _encode_in_slices(assignment: Mapping[int, Sequence[int]]) -> bytes:
    """Encode many partitions without holding the interpreter throughout, which one call of `json` would."""
    replicas = sorted(assignment.items())
    slices = (dict(replicas[first : first + SLICE]) for first in range(0, len(replicas), SLICE))
    return b"{%b}" % b",".join(encode(_replicas_json(part))[1:-1] for part in slices)


def _replicas_json(assignment: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(replicas) for partition, replicas in sorted(assignment.items())}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`/brokers/topics/[t]/partitions/[p]/state`: leader and ISR as the controller decided them.

    The znode's version is the partition epoch. `leader` is -1 when there is none.
    `leader_recovery_state` is 1 after an unclean election until the leader recovered (KIP-704).
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = RECOVERED

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.partition_state(self.topic, self.partition)

    def encode(self) -> bytes:
        """Return the JSON; the recovery state only if it is not 0."""
        value: dict[str, object] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        if self.leader_recovery_state != RECOVERED:
            value["leader_recovery_state"] = self.leader_recovery_state
        return encode(value)

    @classmethod
    def decode(cls, topic: str, partition: int, data: bytes) -> PartitionState:
        """Read the state."""
        fields = Fields.of(paths.partition_state(topic, partition), data)
        return cls(
            topic,
            partition,
            fields.required("leader", integer32),
            fields.required("leader_epoch", integer32),
            fields.required("isr", array(integer32)),
            fields.required("controller_epoch", integer32),
            fields.optional("leader_recovery_state", integer, RECOVERED),
        )
