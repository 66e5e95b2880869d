"""Changed rules of followers: truncation, and what an answer may change."""

from __future__ import annotations

from typing import Any

from ottla.broker.replication import follower_rules
from ottla.broker.replication.follower_rules import Ignore, PartitionFetch, TruncateTo
from ottla.broker.replication.partition import Partition
from simulation.mutants import Patch, mutant


@mutant(within=100, scenario="two records in one answer")
def truncated_to_the_watermark() -> list[Patch]:
    """A follower that diverges drops everything above its high watermark (before KIP-101)."""

    def truncation_to(log: Any, epoch: int, end_offset: int) -> TruncateTo:
        return TruncateTo(max(log.high_watermark, log.log_start_offset))

    return [(follower_rules, "truncation_to", truncation_to)]


@mutant()
def divergence_ignored() -> list[Patch]:
    """A follower that is told where its log diverges does not truncate it."""
    original = PartitionFetch.on_answer

    def on_answer(self: PartitionFetch, asked: Any, log: Any, answer: Any) -> Any:
        decision = original(self, asked, log, answer)
        return Ignore() if isinstance(decision, TruncateTo) else decision

    return [(PartitionFetch, "on_answer", on_answer)]


@mutant(within=8, scenario="two epochs apart")
def truncated_to_the_end_of_the_leader() -> list[Patch]:
    """A follower does not look for its own end of the epoch that the leader names (KIP-101 alone)."""

    def truncation_to(log: Any, epoch: int, end_offset: int) -> TruncateTo:
        return TruncateTo(min(end_offset, log.log_end_offset))

    return [(follower_rules, "truncation_to", truncation_to)]


@mutant(within=400, equivalent=True)
def answer_of_an_earlier_role_taken() -> list[Patch]:
    """An answer counts though the partition has changed since the request.

    Equivalent: the log itself refuses records that do not continue it, and the leader told a follower of
    another epoch nothing, because Fetch carries the leader epoch.
    """
    original = PartitionFetch.on_answer

    def on_answer(self: PartitionFetch, asked: Any, log: Any, answer: Any) -> Any:
        asked = asked._replace(leader_epoch=self.leader_epoch, offset=log.log_end_offset)
        return original(self, asked, log, answer)

    return [(PartitionFetch, "on_answer", on_answer)]


@mutant()
def watermark_of_the_leader_taken_whole() -> list[Patch]:
    """A follower takes the leader's high watermark though its own log ends below."""

    def copied(self: Partition, log_end_offset: int, leader_high_watermark: int) -> list[Any]:
        self.log_end_offset = log_end_offset
        self.watermark.offset = max(self.watermark.offset, leader_high_watermark)
        return []

    return [(Partition, "copied", copied)]


@mutant()
def epoch_not_named_in_fetches() -> list[Patch]:
    """A follower does not say which epoch its last record has, so that nobody sees its log diverge."""

    def position(self: PartitionFetch, log: Any) -> Any:
        return follower_rules.FetchPosition(log.log_end_offset, self.leader_epoch, -1, log.log_start_offset)

    return [(PartitionFetch, "position", position)]
