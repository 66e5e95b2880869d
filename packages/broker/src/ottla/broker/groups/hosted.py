"""The groups this broker coordinates, by the partition of `__consumer_offsets` that keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ottla.broker.groups.events import GroupState
from ottla.broker.groups.group import Group
from ottla.broker.groups.offsets import GroupOffsets


@dataclass(slots=True, eq=False)
class HostedGroup:
    """A group and its offsets."""

    group: Group
    partition: int
    offsets: GroupOffsets = field(default_factory=GroupOffsets)

    @property
    def is_void(self) -> bool:
        """Whether forgetting it would lose nothing: no member, no generation, no offset."""
        group = self.group
        return (
            group.state is GroupState.EMPTY
            and group.generation == 0
            and not group.pending_members
            and self.offsets.is_idle
        )


@dataclass(slots=True, eq=False)
class HostedPartition:
    """A partition led here. Until it is `loaded` its groups are not known."""

    number: int
    leader_epoch: int
    loaded: bool = False
    groups: dict[str, HostedGroup] = field(default_factory=dict)


class HostedPartitions:
    """All partitions led here."""

    def __init__(self) -> None:
        self._partitions: dict[int, HostedPartition] = {}

    def __iter__(self) -> Iterator[HostedPartition]:
        return iter(list(self._partitions.values()))

    def get(self, number: int) -> HostedPartition | None:
        """A partition led here, or None."""
        return self._partitions.get(number)

    def add(self, partition: HostedPartition) -> None:
        """Lead one more partition."""
        self._partitions[partition.number] = partition

    def remove(self, number: int) -> None:
        """Lead one partition less."""
        self._partitions.pop(number, None)

    def groups(self) -> Iterator[HostedGroup]:
        """All groups; safe against changes while iterating."""
        for partition in self:
            yield from list(partition.groups.values())

    def count(self, state: GroupState) -> int:
        """How many groups there are in that state."""
        return sum(hosted.group.state is state for hosted in self.groups())

    @property
    def is_loading(self) -> bool:
        """Whether some groups are not known yet."""
        return any(not partition.loaded for partition in self)
