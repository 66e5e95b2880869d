from typing import Any

class ProduceRun:
    """Plain Produce requests to one partition that came one behind the other.

    Plain is: version 3 to 11, acks 1 or all, no transaction, one topic, one partition, one whole v2 batch
    that is plain (`records/_batch.pxd`). All have one version, one acks and one timeout. Compiled code takes
    them out of received bytes with `take_run`.
    """

    @property
    def key(self) -> bytes:
        """The topic's bytes and the partition's four bytes."""
    @property
    def target(self) -> Any:
        """The value of the index for the key."""
    @property
    def version(self) -> int: ...
    @property
    def acks(self) -> int: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def count(self) -> int:
        """How many requests."""
    @property
    def records(self) -> int:
        """How many records, in all batches."""
    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches."""
    @property
    def batches(self) -> bytearray | memoryview:
        """All batches, joined; one alone is a view of the received bytes."""
    throttle_time_ms: int
    """Of the responses that `answers` makes."""
    def answers(self, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes:
        """Return all responses, framed: the batches were appended one behind the other from `base_offset`."""
    def repeated(self, body: bytes) -> bytes:
        """Return all responses, framed, with one body for all: that of an error."""
