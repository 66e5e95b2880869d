"""Errors of stream processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from ottla.client.errors import ClientError
from ottla.producer import RecordTooLarge
from ottla.protocol.errors import MessageTooLarge, RecordListTooLarge
from ottla.protocol.topics import TopicPartition

TOO_LARGE: Final = (RecordTooLarge, MessageTooLarge, RecordListTooLarge)
"""What producer and broker raise for a record that is too large: sending it again is in vain."""


class StreamsError(ClientError):
    """The base of all errors of stream processing; the message says what to check."""


class RecordError(StreamsError):
    """An error about one record: it carries the partition and the offset."""

    def __init__(
        self, what: str, partition: TopicPartition, offset: int, cause: BaseException | None
    ) -> None:
        because = "" if cause is None else f": {type(cause).__name__}: {cause}"
        super().__init__(
            f"{what} (topic {partition.topic}, partition {partition.partition}, offset {offset}){because}"
        )
        self.partition = partition
        self.offset = offset
        self.cause = cause


_AFTER_UNDECODABLE = (
    "to go on after such records set dead_letter_topic, or on_error={RecordUndecodable: 'skip'}"
)


class HandlerFailed(RecordError):
    """A handler failed and its failure stops the processor. Nothing is committed at or past the record."""

    def __init__(
        self, partition: TopicPartition, offset: int, cause: BaseException, attempts: int = 1
    ) -> None:
        super().__init__(f"the handler failed in attempt {attempts}", partition, offset, cause)
        if isinstance(cause, RecordUndecodable):  # the handler was not called
            self.args = (f"{cause}; {_AFTER_UNDECODABLE}",)
        if isinstance(cause, StateUndecodable):  # it names the record too, and the handler is not at fault
            self.args = (str(cause),)
        self.attempts = attempts


class HandlerTimedOut(RecordError):
    """A handler ran longer than `handler_timeout_ms` and was cancelled."""

    def __init__(self, partition: TopicPartition, offset: int, timeout_ms: int) -> None:
        super().__init__(f"the handler did not end within {timeout_ms} ms", partition, offset, None)
        self.timeout_ms = timeout_ms


class HandlerCancelled(RecordError):
    """A handler was cancelled, and not by the processor: by itself, by a library, or by what it awaited."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__("the handler was cancelled by itself", partition, offset, None)


class OrderFailed(RecordError):
    """The function that orders records failed for a record, or returned a key that cannot be hashed."""

    def __init__(self, partition: TopicPartition, offset: int, cause: BaseException) -> None:
        super().__init__("the order function failed", partition, offset, cause)


class OutputFailed(RecordError):
    """A record was handled, and what it sent was not acknowledged. The record is not finished."""

    def __init__(self, partition: TopicPartition, offset: int, cause: BaseException) -> None:
        super().__init__("the outputs of a record were not acknowledged", partition, offset, cause)


class TransactionsRefused(StreamsError):
    """The brokers refused the transactions that exactly-once needs: they have none, or an ACL is missing."""

    def __init__(self, transactional_id: str, servers: str, cause: BaseException) -> None:
        super().__init__(
            f'processing_guarantee="exactly-once" needs transactions, and {servers} refused those of '
            f"transactional id {transactional_id!r}: {cause} Leave out processing_guarantee to handle "
            "records at least once, or use brokers with transactions; on Apache Kafka an ACL may be missing"
        )
        self.transactional_id = transactional_id
        self.cause = cause


class InvalidHandler(StreamsError):
    """A function cannot be a handler as it is declared; the message says what to change."""


class ContextMisused(StreamsError):
    """A handler used its context in a way that its kind of function cannot."""


class RecordUndecodable(RecordError):
    """A record cannot be decoded as its handler or stream says. It is never retried, nor given to a handler.

    `how` completes the message, such as "as Order from JSON"; `part` is the key or the value of the record.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        cause: BaseException,
        how: str = "",
        part: Literal["key", "value"] = "value",
    ) -> None:
        what = f"the {part} of a record cannot be decoded {how}".rstrip()
        super().__init__(what, partition, offset, cause)
        self.how = how
        self.part = part

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.partition, self.offset, self.cause, self.how, self.part)


class StateUndecodable(RecordError):
    """A row of a table, or the state of a store, cannot be decoded, and a record of a stream needs it.

    The record is not at fault, so the processor stops; `on_error` may name this class.
    """

    def __init__(
        self, partition: TopicPartition, offset: int, cause: BaseException, where: str, remedy: str
    ) -> None:
        super().__init__(f"{where} cannot be decoded, which a record needs", partition, offset, cause)
        self.args = (f"{self}; {remedy}, or set on_error={{StateUndecodable: 'dead-letter'}}",)
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.partition, self.offset, self.cause, self.where, self.remedy)


class BatchUndecodable(StreamsError):
    """Some records of a batch cannot be decoded; the handler was not called."""

    def __init__(self, errors: Sequence[RecordUndecodable]) -> None:
        super().__init__(f"{len(errors)} records of a batch cannot be decoded; the first: {errors[0]}")
        self.errors = tuple(errors)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors,)


class WorkerProcessDied(StreamsError):
    """A worker process ended while it handled records: killed, out of memory, or by its handler."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"worker process {pid} ended while its handler ran")
        self.pid = pid


class WorkerProcessesNotStarted(StreamsError):
    """The worker processes ended while they imported the program."""

    def __init__(self) -> None:
        super().__init__(
            "the worker processes ended while they started; they import the program, so start the app under "
            'if __name__ == "__main__": (another reason is printed above)'
        )


class ThreadsExhausted(StreamsError):
    """So many threads hang in a handler that no further one is started; the processor stops."""

    def __init__(self, handler: str, lost_threads: int) -> None:
        super().__init__(
            f"{lost_threads} threads hang in handler {handler} after their time-out, and threads cannot be "
            "ended; give the calls inside it time-outs of their own, or set run_on='processes'"
        )
        self.handler = handler
        self.lost_threads = lost_threads


class RemoteError(StreamsError):
    """A handler on a worker process raised an exception that cannot be pickled.

    `kind` is the most specific class of it that can be imported; `on_error` decides by that class.
    """

    def __init__(self, kind: type[BaseException], name: str, message: str, trace: str) -> None:
        super().__init__(f"{name}: {message}")
        self.kind = kind
        self.name = name
        self.message = message
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kind, self.name, self.message, self.trace)


class OutputTooLarge(StreamsError):
    """A topic takes no record of the size of an output. The record that it was made of is not retried."""

    def __init__(self, topic: str, cause: BaseException) -> None:
        super().__init__(
            f"topic {topic!r} takes no record of this size: {type(cause).__name__}: {cause}; raise its "
            "max.message.bytes, or set dead_letter_topic to go on after such records"
        )
        self.topic = topic
        self.cause = cause


class StateTooLarge(StreamsError):
    """A changelog takes no state of this size. The processor stops: its state would not be restored."""

    def __init__(self, topic: str, cause: BaseException) -> None:
        super().__init__(
            f"the changelog {topic!r} takes no state of this size: {type(cause).__name__}: {cause}; keep "
            "less per key, or raise max.message.bytes of the changelog and max_request_size"
        )
        self.topic = topic
        self.cause = cause


class TopologyError(StreamsError):
    """Streams and tables do not fit together; the message says what to change."""


class StateUnavailable(StreamsError):
    """The state of a partition cannot be restored. The processor stops: no record of it is at fault."""

    def __init__(self, partition: TopicPartition, cause: BaseException) -> None:
        super().__init__(
            f"the state of topic {partition.topic}, partition {partition.partition} cannot be restored: "
            f"{type(cause).__name__}: {cause}"
        )
        self.partition = partition
        self.cause = cause


class KeySetAside(RecordError):
    """An earlier record of the same key failed for good, so this one follows it to the dead letters."""

    def __init__(self, partition: TopicPartition, offset: int, failed_offset: int) -> None:
        super().__init__(
            f"the key is set aside since its record at offset {failed_offset} failed", partition, offset, None
        )
        self.failed_offset = failed_offset


class DeadLetterDelayed(StreamsError):
    """A dead letter was not acknowledged; it is sent again, and the records of its key wait for it."""

    def __init__(self, topic: str, sends: int, cause: BaseException) -> None:
        super().__init__(f"a dead letter for {topic!r} was not acknowledged: {type(cause).__name__}: {cause}")
        self.topic = topic
        self.sends = sends
        self.cause = cause


class DeadLetterRejected(StreamsError):
    """The dead-letter topic will never take a record, so the processor stops; nothing is lost."""

    def __init__(self, topic: str, partition: TopicPartition, offset: int, cause: BaseException) -> None:
        super().__init__(
            f"{topic!r} takes no dead letter for topic {partition.topic}, partition {partition.partition}, "
            f"offset {offset}: {type(cause).__name__}: {cause}; check dead_letter_topic, its limits and ACLs"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.cause = cause
