from typing import Any

class PlainFetch:
    """A Fetch request of a consumer for one partition.

    Plain is: version 4 to 17, from a consumer, without a session, one topic, one partition. Compiled code
    takes it out of received bytes with `take_fetch`.
    """

    @property
    def key(self) -> bytes:
        """The topic's bytes and the partition's four bytes.

        Since version 13 a zero, the 16 bytes of the topic's id and the partition's four.
        """
    @property
    def target(self) -> Any:
        """The value of the index for the key."""
    @property
    def version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...
    @property
    def max_wait_ms(self) -> int: ...
    @property
    def min_bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def committed_only(self) -> bool: ...
    @property
    def leader_epoch(self) -> int:
        """The epoch the consumer knows, or -1."""
    @property
    def offset(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...
    @property
    def rack(self) -> bytes:
        """The consumer's rack, which is ASCII; empty before version 11."""
    @property
    def size_in_bytes(self) -> int:
        """Bytes of the request."""
    def head(self, high_watermark: int, last_stable_offset: int, log_start_offset: int, size: int) -> bytes:
        """Return the response up to its `size` bytes of records, with its frame's size in front."""
