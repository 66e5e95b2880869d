"""Transactions as clients and logs saw them, and what has to hold between the two (I11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ottla.protocol.records import ControlType, iter_records, read_end_transaction_marker, validate_batches
from ottla.protocol.topics import TopicPartition
from simulation.invariant_violated import InvariantViolated


class Ending(Enum):
    """How a transaction has ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass
class Attempt:
    """One transaction of a worker."""

    number: int
    worker: int
    told: Ending | None = None
    """The coordinator's response to EndTxn; None if it was lost."""
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    """Records that were acknowledged."""


class Output(NamedTuple):
    """A record of a worker: it names the transaction and the record that it was made from."""

    worker: int
    attempt: int
    offset: int
    """Offset in the worker's input partition."""
    value: bytes

    def encode(self) -> bytes:
        """Return the value of the record."""
        return b"%d %d %d %s" % (self.worker, self.attempt, self.offset, self.value)

    @classmethod
    def decode(cls, data: bytes) -> Output:
        """Read the value of a record."""
        worker, attempt, offset, value = data.split(b" ", 3)
        return cls(int(worker), int(attempt), int(offset), value)


class Written(NamedTuple):
    """An output in a log, and how its transaction has ended there."""

    at: int
    output: Output
    ending: Ending


def read_outputs(partition: TopicPartition, batches: bytes) -> list[Written]:
    """Read a log of outputs. Raises `InvariantViolated` where one marker ends two transactions."""
    pending: dict[int, list[tuple[int, Output]]] = {}
    found: list[Written] = []
    for header in validate_batches(batches) if batches else ():
        batch = batches[header.position : header.position + header.size_in_bytes]
        of_producer = pending.setdefault(header.producer_id, [])
        if not header.is_control:
            of_producer += [
                (one.offset, Output.decode(bytes(one.value or b""))) for one in iter_records(batch)
            ]
            continue
        marker = read_end_transaction_marker(batch)
        assert marker is not None
        ending = Ending.COMMITTED if marker.type is ControlType.COMMIT else Ending.ABORTED
        attempts = sorted({output.attempt for _, output in of_producer})
        if len(attempts) > 1:
            raise InvariantViolated(
                f"I11 the marker at {header.base_offset} of {partition} ends the transactions {attempts}"
            )
        found += [Written(at, output, ending) for at, output in of_producer]
        of_producer.clear()
    found += [Written(at, output, Ending.OPEN) for one in pending.values() for at, output in one]
    return sorted(found)


@dataclass
class TransactionHistory:
    """The results that workers were told, and the records that read_committed consumers got."""

    attempts: list[Attempt] = field(default_factory=list)
    delivered: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    """By partition the records that were delivered as committed, by offset."""
    positions: dict[int, int] = field(default_factory=dict)
    """By worker the committed offset of its input, read at the end."""

    def begin(self, worker: int) -> Attempt:
        """Begin a transaction."""
        attempt = Attempt(len(self.attempts), worker)
        self.attempts.append(attempt)
        return attempt

    @property
    def committed(self) -> int:
        """The number of transactions that clients know to be committed."""
        return sum(one.told is Ending.COMMITTED for one in self.attempts)

    # ---- at the end

    def check(
        self, outputs: Mapping[TopicPartition, list[Written]], inputs: Mapping[int, list[bytes]]
    ) -> None:
        """Compare it with the logs of the outputs and of each worker's input."""
        self._check_endings(outputs)
        for partition, written in outputs.items():
            self._check_delivered(partition, written)
        for worker, position in self.positions.items():
            self._check_worker(worker, position, outputs, inputs[worker])

    def _check_endings(self, outputs: Mapping[TopicPartition, list[Written]]) -> None:
        endings: dict[int, dict[Ending, TopicPartition]] = {}
        for partition, written in outputs.items():
            for one in written:
                endings.setdefault(one.output.attempt, {})[one.ending] = partition
        for number, found in sorted(endings.items()):
            told = self.attempts[number].told
            if Ending.OPEN in found:
                raise InvariantViolated(f"I11 transaction {number} has no marker in {found[Ending.OPEN]}")
            if len(found) > 1:
                raise InvariantViolated(
                    f"I11 transaction {number} is committed in {found[Ending.COMMITTED]} and aborted in "
                    f"{found[Ending.ABORTED]}"
                )
            if told is not None and told not in found:
                raise InvariantViolated(f"I11 transaction {number} is {found}, clients were told {told}")
        self._check_kept(outputs)

    def _check_kept(self, outputs: Mapping[TopicPartition, list[Written]]) -> None:
        """Every acknowledged record of a committed transaction is there."""
        for attempt in self.attempts:
            if attempt.told is not Ending.COMMITTED:
                continue
            for partition, values in attempt.sent.items():
                there = {one.output.encode() for one in outputs[partition]}
                lost = [one for one in values if one not in there]
                if lost:
                    raise InvariantViolated(
                        f"I11 {lost[0]!r} of a committed transaction is not in {partition}"
                    )

    def _check_delivered(self, partition: TopicPartition, written: list[Written]) -> None:
        committed = {one.at: one.output.encode() for one in written if one.ending is Ending.COMMITTED}
        for offset, value in sorted(self.delivered.get(partition, {}).items()):
            if committed.get(offset) != value:
                raise InvariantViolated(
                    f"I11 {value!r} was delivered at {offset} of {partition}, committed there is "
                    f"{committed.get(offset)!r}"
                )

    def _check_worker(
        self,
        worker: int,
        position: int,
        outputs: Mapping[TopicPartition, list[Written]],
        read: list[bytes],
    ) -> None:
        """Each record of the input below the committed offset was processed once, and in order."""
        by_partition = [list(_committed(worker, written)) for written in outputs.values()]
        for one in by_partition:
            if [output.offset for output in one] != sorted(output.offset for output in one):
                raise InvariantViolated(f"I11 the outputs of worker {worker} are not in order: {one}")
        done = sorted((one.offset, one.value) for outputs_there in by_partition for one in outputs_there)
        if done != list(enumerate(read[:position])):
            offsets = [offset for offset, _ in done]
            odd = sorted(set(range(position)).symmetric_difference(offsets))
            twice = sorted({one for one in offsets if offsets.count(one) > 1})
            raise InvariantViolated(
                f"I11 worker {worker} has committed offset {position}; its outputs lack or exceed {odd[:9]}, "
                f"and have {twice[:9]} twice"
            )


def _committed(worker: int, written: list[Written]) -> Iterator[Output]:
    return (one.output for one in written if one.output.worker == worker and one.ending is Ending.COMMITTED)
