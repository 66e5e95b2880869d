"""The topics of the cluster as groups read them, and a hash that changes with them."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ottla.broker.cluster.metadata import NO_ID

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import KnownTopic, MetadataCache

_HASH_BYTES: Final = 8
_MODULUS: Final = 1 << 64


def kept_once(names: Iterable[str]) -> frozenset[str]:
    """Return the names of topics that a member reads; each is in memory once for all its readers."""
    return frozenset(map(sys.intern, names))


class GroupTopics:
    """The topics that can be assigned, by name and by id: those with an id."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._hashes: dict[str, tuple[KnownTopic, int]] = {}

    @property
    def version(self) -> int:
        """Rises with every new topic."""
        return self._metadata.topics_version

    def names(self) -> list[str]:
        """The names of all topics."""
        return self._metadata.topic_names

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic; None for one that does not exist."""
        return self._metadata.topic_name(topic_id)

    def id_of(self, name: str) -> UUID | None:
        """Return the id of a topic; None for one that does not exist."""
        topic_id = self._metadata.topic_id(name)
        return None if topic_id == NO_ID else topic_id

    def ids_of(self, names: Iterable[str]) -> frozenset[UUID]:
        """Return the ids of those topics that exist."""
        return frozenset(topic_id for name in names if (topic_id := self.id_of(name)) is not None)

    def partition_count(self, topic_id: UUID) -> int:
        """Return how many partitions a topic has; 0 for one that does not exist."""
        name = self.name_of(topic_id)
        return 0 if name is None else self._metadata.partition_count(name)

    def forget_hashes(self, names: Iterable[str]) -> None:
        """Compute the hashes of topics again that were published again."""
        for name in names:
            self._hashes.pop(name, None)

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a hash of these topics: of their ids, partitions and the racks of each; 0 without a topic.

        It is a signed number of 64 bits, as records store it.
        """
        total = sum(self._hash_of(name) for name in names) % _MODULUS
        return total - _MODULUS if total >= _MODULUS >> 1 else total

    def _hash_of(self, name: str) -> int:
        topic, known = self._metadata.topic(name), self._hashes.get(name)
        if known is not None and known[0] is topic:
            return known[1]  # soon: each member that joins a group asks for all topics that it reads
        if topic is None or topic.id == NO_ID:
            return 0
        known = self._hashes[name] = topic, self._compute(topic)
        return known[1]

    def _compute(self, topic: KnownTopic) -> int:
        digest = blake2b(topic.id.bytes, digest_size=_HASH_BYTES)
        digest.update(f"{topic.name}\0{len(topic.partitions)}".encode())
        racks = {broker.id: broker.rack for broker in self._metadata.brokers if broker.rack is not None}
        for index, partition in sorted(topic.partitions.items()) if racks else ():
            of_partition = sorted({racks[replica] for replica in partition.replicas if replica in racks})
            digest.update(f"\0{index}\0".encode() + "\0".join(of_partition).encode())
        number: int = struct.unpack(">Q", digest.digest())[0]
        return number


def add(counts: Counter[Any], keys: Iterable[Any], by: int) -> None:
    """Count each key once more or less; one that nothing counts any more goes."""
    for key in keys:
        counts[key] += by
        if counts[key] <= 0:
            del counts[key]
