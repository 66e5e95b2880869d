"""Offsets and metadata of a consumer group, as a consumer gives them to a transactional producer."""

from __future__ import annotations

from typing import NamedTuple

NO_EPOCH = -1
NO_GENERATION = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the offset of the next record to read, with a note of the application.

    `leader_epoch` is that of the last record that was read, -1 if unknown. It shows whether the log was
    truncated since (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


class GroupMetadata(NamedTuple):
    """A consumer group and the member that commits for it (KIP-447).

    Without a generation the commit has no member; the broker accepts it while the group is empty.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
