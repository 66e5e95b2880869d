"""Spread replicas and preferred leaders evenly over brokers, with as few moves as possible.

Pure. A replica weighs 1, or its size in bytes: the sum on each broker is to be even. Three steps: keep the
replicas that are on wanted brokers; fill what is missing on the lightest brokers, in racks that the partition
does not use yet; then move from heavy to light brokers as long as that makes them more even. At last replicas
change their order so that each broker is preferred leader of about as many partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.protocol.topics import TopicPartition

Assignment = dict[TopicPartition, tuple[int, ...]]


class TooFewBrokers(ValueError):
    """A partition is to have more replicas than there are brokers."""


def balanced(
    current: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    *,
    weights: Mapping[TopicPartition, int] | None = None,
    replication_factor: int | None = None,
) -> Assignment:
    """Return an even assignment of partitions to the brokers in `racks`.

    Without `weights` all replicas weigh the same; without `replication_factor` each partition keeps its
    number of replicas. Raises TooFewBrokers.
    """
    spread = _Spread(racks, {partition: (weights or {}).get(partition, 0) + 1 for partition in current})
    for partition, replicas in sorted(current.items()):
        wanted = replication_factor or len(replicas)
        if wanted > len(racks):
            raise TooFewBrokers(
                f"{partition} is to have {wanted} replicas, but there are {len(racks)} brokers: "
                "name more, or ask for fewer replicas with --replication-factor"
            )
        spread.keep(partition, [broker for broker in replicas if broker in racks][:wanted])
    for partition in sorted(current, key=lambda partition: (-spread.weights[partition], partition)):
        spread.fill(partition, replication_factor or len(current[partition]))
    spread.even_out()
    return _with_even_leaders(spread.replicas, racks)


@dataclass(slots=True)
class _Spread:
    racks: Mapping[int, str | None]
    weights: Mapping[TopicPartition, int]
    replicas: Assignment = field(default_factory=dict)
    loads: Counter[int] = field(default_factory=Counter)

    def keep(self, partition: TopicPartition, replicas: Sequence[int]) -> None:
        self.replicas[partition] = tuple(replicas)
        for broker in replicas:
            self.loads[broker] += self.weights[partition]

    def fill(self, partition: TopicPartition, wanted: int) -> None:
        """Add replicas on the lightest brokers, first in racks that the partition does not use."""
        while len(replicas := self.replicas[partition]) < wanted:
            free = (broker for broker in self.racks if broker not in replicas)
            chosen = min(
                free, key=lambda broker: (self._shares_rack(broker, replicas), self.loads[broker], broker)
            )
            self.keep(partition, (*replicas, chosen))
            for broker in replicas:  # `keep` has counted them again
                self.loads[broker] -= self.weights[partition]

    def even_out(self) -> None:
        """Move replicas from heavy to light brokers; each move makes the sum of squared loads smaller."""
        while (move := next(self._improvements(), None)) is not None:
            partition, source, target = move
            replicas = self.replicas[partition]
            self.replicas[partition] = tuple(target if replica == source else replica for replica in replicas)
            self.loads[source] -= self.weights[partition]
            self.loads[target] += self.weights[partition]

    def _improvements(self) -> Iterator[tuple[TopicPartition, int, int]]:
        order = sorted(self.racks, key=lambda broker: (self.loads[broker], broker))
        for source in reversed(order):
            for target in order:
                difference = self.loads[source] - self.loads[target]
                best = self._best(source, target, difference) if difference > 1 else None
                if best is not None:
                    yield best, source, target

    def _best(self, source: int, target: int, difference: int) -> TopicPartition | None:
        """Return the partition of which a move brings two brokers nearest to each other."""
        movable = (
            partition
            for partition, replicas in self.replicas.items()
            if source in replicas
            and target not in replicas
            and self.weights[partition] < difference
            and not self._loses_rack(partition, source, target)
        )
        return min(
            movable,
            key=lambda partition: (abs(difference - 2 * self.weights[partition]), partition),
            default=None,
        )

    def _loses_rack(self, partition: TopicPartition, source: int, target: int) -> bool:
        others = [replica for replica in self.replicas[partition] if replica != source]
        return self._shares_rack(target, others) and not self._shares_rack(source, others)

    def _shares_rack(self, broker: int, others: Sequence[int]) -> bool:
        rack = self.racks[broker]
        return rack is not None and any(self.racks.get(other) == rack for other in others)


def _with_even_leaders(replicas: Assignment, brokers: Mapping[int, object]) -> Assignment:
    """Reorder replicas until no swap of a first replica makes the numbers of leaderships more even."""
    result = dict(replicas)
    leads = Counter(dict.fromkeys(brokers, 0)) + Counter(replicas[0] for replicas in result.values())
    changed = True
    while changed:
        changed = False
        for partition, assigned in result.items():
            lightest = min(assigned, key=lambda broker: (leads[broker], assigned.index(broker)))
            if leads[assigned[0]] - leads[lightest] > 1:
                leads[assigned[0]] -= 1
                leads[lightest] += 1
                result[partition] = (lightest, *(broker for broker in assigned if broker != lightest))
                changed = True
    return result
