"""Znodes of the controller, and of requests to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, array, encode, integer, integer32, number_text, text
from ottla.zookeeper.errors import IllegalName
from ottla.zookeeper.frozen_classes import frozen


def _legal_topic(value: object) -> str:
    try:
        return paths.topic_segment(text(value))
    except IllegalName as error:
        raise ValueError(error.detail) from error


@frozen
class ControllerNode:
    """`/controller`, ephemeral: which broker is the controller. Versions 1 and 2 are read.

    `kraft_controller_epoch` is that of a migration to KRaft (KIP-866), -1 without one.
    """

    broker_id: int
    timestamp_ms: int
    kraft_controller_epoch: int = -1

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.CONTROLLER

    def encode(self) -> bytes:
        """Return the JSON of version 2."""
        return encode(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": self.kraft_controller_epoch,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ControllerNode:
        """Read the controller."""
        fields = Fields.of(paths.CONTROLLER, data)
        return cls(
            fields.required("brokerid", integer),
            fields.optional("timestamp", integer, -1),
            fields.optional("kraftControllerEpoch", integer, -1),
        )


@frozen
class ControllerEpoch:
    """`/controller_epoch`: counts the controllers; the znode's version fences every write of one."""

    epoch: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.CONTROLLER_EPOCH

    def encode(self) -> bytes:
        """Return the number as text."""
        return str(self.epoch).encode()

    @classmethod
    def decode(cls, data: bytes) -> ControllerEpoch:
        """Read the number."""
        return cls(number_text(paths.CONTROLLER_EPOCH, data, integer32))


def _topic_partition(value: object) -> tuple[str, int]:
    fields = Fields("", value)
    return fields.required("topic", _legal_topic), fields.required("partition", integer)


def _topic_partitions_json(partitions: Sequence[tuple[str, int]]) -> bytes:
    return encode(
        {"version": 1, "partitions": [{"topic": topic, "partition": number} for topic, number in partitions]}
    )


@frozen
class ReassignPartitions:
    """`/admin/reassign_partitions`: written by a tool, deleted by the controller when empty."""

    replicas: Mapping[tuple[str, int], tuple[int, ...]]

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.REASSIGN_PARTITIONS

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": number, "replicas": list(replicas)}
                    for (topic, number), replicas in self.replicas.items()
                ],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ReassignPartitions:
        """Read the request; `version` may be missing, as old tools left it out."""
        fields = Fields.of(paths.REASSIGN_PARTITIONS, data)

        def entry(value: object) -> tuple[tuple[str, int], tuple[int, ...]]:
            return _topic_partition(value), Fields("", value).required("replicas", array(integer))

        return cls(dict(fields.required("partitions", array(entry))))


@frozen
class PreferredReplicaElection:
    """`/admin/preferred_replica_election`: written by a tool, deleted by the controller."""

    partitions: tuple[tuple[str, int], ...]

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.PREFERRED_REPLICA_ELECTION

    def encode(self) -> bytes:
        """Return the JSON."""
        return _topic_partitions_json(self.partitions)

    @classmethod
    def decode(cls, data: bytes) -> PreferredReplicaElection:
        """Read the request; partitions as strings and a missing version are taken too."""
        fields = Fields.of(paths.PREFERRED_REPLICA_ELECTION, data)
        return cls(fields.required("partitions", array(_topic_partition)))


@frozen
class IsrChange:
    """`/isr_change_notification/isr_change_[seq]`: makes the controller re-read partition states."""

    partitions: tuple[tuple[str, int], ...]

    @property
    def path(self) -> str:
        """The prefix to create it under, sequentially."""
        return paths.ISR_CHANGE_PREFIX

    def encode(self) -> bytes:
        """Return the JSON."""
        return _topic_partitions_json(self.partitions)

    @classmethod
    def decode(cls, data: bytes) -> IsrChange:
        """Read the partitions."""
        fields = Fields.of(paths.ISR_CHANGE_NOTIFICATION, data)
        return cls(fields.required("partitions", array(_topic_partition)))


@frozen
class LogDirEvent:
    """`/log_dir_event_notification/log_dir_event_[seq]`: a broker lost a log directory (event 1)."""

    broker_id: int
    event: int = 1

    @property
    def path(self) -> str:
        """The prefix to create it under, sequentially."""
        return paths.LOG_DIR_EVENT_PREFIX

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode({"version": 1, "broker": self.broker_id, "event": self.event})

    @classmethod
    def decode(cls, data: bytes) -> LogDirEvent:
        """Read the broker."""
        fields = Fields.of(paths.LOG_DIR_EVENT_NOTIFICATION, data)
        return cls(fields.required("broker", integer), fields.optional("event", integer, 1))
