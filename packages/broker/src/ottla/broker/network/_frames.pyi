from typing import Any

from ottla.protocol.native import PlainFetch, ProduceRun

class ReceiveBuffer:
    memory: bytearray
    view: memoryview
    spare_bytes: int
    held: int
    """Bytes that frames of all connections hold, and requests in progress with them."""
    budget: int
    """What may be held; above it, the connection that received last has the request memory relieved."""
    def __init__(self, size: int = ...) -> None: ...
    def hold(self, size: int) -> None:
        """Count bytes of a request in progress; negative when it is over."""

class FrameReader:
    def __init__(
        self, shared: ReceiveBuffer, max_frame_bytes: int, max_other_bytes: int | None = None
    ) -> None: ...
    def lift_limit(self, *, once: bool = False) -> None:
        """Take requests of every kind up to the largest frame: the peer is a broker.

        `once`: up to the next that is too large for a client, for the peer may be none.
        """
    def forget(self) -> None:
        """Drop what was received: the connection is closed."""
    @property
    def kept_bytes(self) -> int: ...
    @property
    def exhausted(self) -> bool:
        """Whether no whole frame is left; false for a size that cannot be, which `next_frame` refuses."""
    def get_buffer(self) -> memoryview: ...
    def received(self, count: int) -> bool: ...
    def next_frame(self) -> memoryview | None: ...
    def give_back_frame(self, frame: memoryview) -> None:
        """Put back the frame of the last `next_frame`: it will be the next one again."""
    def next_produces(self, index: dict[bytes, Any]) -> ProduceRun | None:
        """Take the run of plain Produce requests to one known partition that stands here, or return None.

        `index` maps the topic's bytes and the partition's four bytes to what the caller knows the partition
        by. A run ends where version, acks, timeout or partition do.
        """
    def give_back(self, run: ProduceRun) -> None:
        """Put a run back: its requests are frames again."""
    def next_fetch(self, index: dict[bytes, Any]) -> PlainFetch | None:
        """Take the request that stands here if it is a plain Fetch of a known partition, or return None."""
    def give_back_fetch(self, fetch: PlainFetch) -> None:
        """Put a request back: it is a frame again."""
    def park(self) -> None: ...
