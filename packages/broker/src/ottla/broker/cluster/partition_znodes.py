"""The contents of the znodes of a partition: its replicas, and its leadership."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ottla.zookeeper.frozen_classes import frozen, replace


@frozen
class Assignment:
    """The replicas of a partition, including those that are being added or removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    def towards(self, target: Sequence[int]) -> Assignment:
        """The assignment while the partition moves to `target`: its replicas first, then those before it."""
        origin = self.origin
        return Assignment(
            (*target, *(broker for broker in origin if broker not in target)),
            tuple(broker for broker in target if broker not in origin),
            tuple(broker for broker in origin if broker not in target),
        )


@frozen
class Leadership:
    """The state znode of a partition; `partition_epoch` is the znode's version."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int

    def next(self, *, leader: int, isr: tuple[int, ...], controller_epoch: int) -> Self:
        """The state that follows this one: one leader epoch later, at the same znode version."""
        return replace(
            self,
            leader=leader,
            isr=isr,
            leader_epoch=self.leader_epoch + 1,
            controller_epoch=controller_epoch,
        )
