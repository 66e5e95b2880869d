"""What producers and consumers tell each other of a group: how far it has read, and who speaks for it."""

from __future__ import annotations

from typing import NamedTuple

NO_EPOCH = -1
NO_GENERATION = -1


class OffsetAndMetadata(NamedTuple):
    """How far a group has read a partition: the offset of the next record, with a note of the application.

    `leader_epoch` is that of the last record that was read, -1 if it is not known; with it a log that was
    truncated since is noticed (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


class GroupMetadata(NamedTuple):
    """A consumer group, and the member that speaks for it (KIP-447).

    Without a generation it speaks from outside, which the broker permits while the group has no members.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
