"""Changed rules of share groups. The schedules of `share_groups` have to notice each of them."""

from __future__ import annotations

from math import inf
from typing import Any, Final

from ottla.broker.share import coordinator as share_coordinator
from ottla.broker.share import state as share_state
from ottla.broker.share.coordinator import ShareCoordinator
from ottla.broker.share.in_flight import RecordState, Run
from ottla.broker.share.partition import SharePartition
from simulation.mutants import NamedMutants, Patch

SHARE_MUTANTS: Final = NamedMutants()
mutant: Final = SHARE_MUTANTS.add


@mutant
def pending_release_is_available() -> list[Patch]:
    """Released records are delivered before their release is persisted."""
    return [(Run, "is_available", property(lambda run: run.state is RecordState.AVAILABLE))]


@mutant
def start_offset_passes_pending_records() -> list[Patch]:
    """The start offset moves over records whose end is not persisted."""
    return [(Run, "is_finished", property(lambda run: run.state.is_final))]


@mutant
def failed_write_finishes() -> list[Patch]:
    """A write that failed counts as persisted."""
    original = SharePartition.persisted

    def persisted(self: Any, number: int, now_ms: float, *, failed: bool = False) -> bool:
        return original(self, number, now_ms)

    return [(SharePartition, "persisted", persisted)]


@mutant
def failed_write_keeps_an_ended_lock() -> list[Patch]:
    """After a failed write a member holds records whose lock is over."""
    original = SharePartition._roll_back

    def roll_back(self: Any, runs: Any, now_ms: float) -> None:
        original(self, runs, -inf)

    return [(SharePartition, "_roll_back", roll_back)]


@mutant
def locks_never_end() -> list[Patch]:
    """Locks have no end."""
    return [(SharePartition, "expire", lambda self, now_ms: None)]


@mutant
def delivery_limit_is_not_kept() -> list[Patch]:
    """Records are delivered as often as they are released."""
    return [(SharePartition, "_limited", lambda self, run, state: state)]


@mutant
def expiry_ends_every_lock() -> list[Patch]:
    """With the first lock all others end."""
    original = SharePartition.expire

    def expire(self: Any, now_ms: float) -> Any:
        return original(self, inf)

    return [(SharePartition, "expire", expire)]


@mutant
def renewal_is_forgotten() -> list[Patch]:
    """A renewed lock ends when it would have ended."""
    return [(SharePartition, "_renew", lambda self, run, now_ms: None)]


@mutant
def aborted_records_are_delivered() -> list[Patch]:
    """Members get records of aborted transactions."""
    return [(SharePartition, "_without_aborted", lambda self, acquired, aborted: acquired)]


@mutant
def compacted_records_stay_available() -> list[Patch]:
    """Offsets that the log has lost are waited for."""
    return [(SharePartition, "_archive_missing", lambda self, first, end: None)]


@mutant
def older_leader_is_not_fenced() -> list[Patch]:
    """The coordinator takes writes of a leader that is one no longer."""
    return [(ShareCoordinator, "_check_epoch", lambda self, partition, key, leader_epoch: None)]


@mutant
def snapshot_forgets_what_was_before() -> list[Patch]:
    """A snapshot has the last write alone."""
    original = share_state.combined

    def combined(before: Any, changes: Any, start_offset: int) -> Any:
        return original((), changes, start_offset)

    return [(share_coordinator, "combined", combined)]


@mutant
def start_offset_is_not_persisted() -> list[Patch]:
    """Updates keep the start offset of the snapshot."""
    original = share_state.merged

    def merged(state: Any, update: Any) -> Any:
        from dataclasses import replace

        return original(state, replace(update, start_offset=state.start_offset + 3))

    return [(share_state, "merged", merged)]


@mutant
def another_member_may_acknowledge() -> list[Patch]:
    """A member loses its records to the release of another."""
    original = SharePartition.release

    def release(self: Any, member_id: str) -> Any:
        first = next((run for run in self.runs() if run.is_acquired), None)
        return original(self, member_id if first is None else first.member_id)

    return [(SharePartition, "release", release)]


@mutant
def loaded_states_are_available() -> list[Patch]:
    """A new leader takes finished records for available ones."""
    original = SharePartition._load

    def load(self: Any, batch: Any) -> None:
        original(self, batch._replace(delivery_state=0))

    return [(SharePartition, "_load", load)]


@mutant
def rejected_records_have_no_letter() -> list[Patch]:
    """Rejected records are archived at once, also with a dead-letter topic."""
    original = SharePartition._begin

    def begin(self: Any, run: Any, state: Any) -> None:
        original(self, run, RecordState.ARCHIVED if state is RecordState.ARCHIVING else state)

    return [(SharePartition, "_begin", begin)]


@mutant
def exhausted_records_have_no_letter() -> list[Patch]:
    """Records at the delivery limit are archived at once, also with a dead-letter topic."""
    original = SharePartition._limited

    def limited(self: Any, run: Any, state: Any) -> Any:
        found = original(self, run, state)
        return RecordState.ARCHIVED if found is not state else state

    return [(SharePartition, "_limited", limited)]


@mutant
def letters_of_the_leader_before_are_lost() -> list[Patch]:
    """A new leader archives what was on its way to the dead-letter topic."""
    original = SharePartition._load

    def load(self: Any, batch: Any) -> None:
        original(self, batch._replace(delivery_state=4) if batch.delivery_state == 3 else batch)

    return [(SharePartition, "_load", load)]


@mutant
def letters_are_written_before_their_records_end() -> list[Patch]:
    """A dead letter is handed on before its state is persisted."""
    original = SharePartition._begin

    def begin(self: Any, run: Any, state: Any) -> None:
        original(self, run, state)
        self._hand_on(run)

    return [(SharePartition, "_begin", begin)]


@mutant
def dead_records_are_never_buried() -> list[Patch]:
    """The start offset waits for records whose dead letter is written."""
    return [(SharePartition, "buried", lambda self, letters: None)]


@mutant
def a_buried_neighbour_buries_all() -> list[Patch]:
    """With the first of neighbouring letters all of them are finished."""
    original = SharePartition.buried

    def buried(self: Any, letters: Any) -> Any:
        return original(self, letters._replace(last_offset=letters.last_offset + 2))

    return [(SharePartition, "buried", buried)]
