from collections.abc import Collection

from ottla.broker.requests.fast_path import ReceivedBytes

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

class FrameReader(ReceivedBytes):
    def __init__(
        self,
        shared: ReceiveBuffer,
        max_frame_bytes: int,
        max_other_bytes: int | None = None,
        record_keys: Collection[int] = (),
    ) -> None: ...
    def set_limits(self, max_frame_bytes: int, max_other_bytes: int, shortest: int) -> None:
        """Hold the next frames to other limits: those before a login, or behind it."""
    def lift_limit(self, *, once: bool = False) -> None:
        """Take requests of every kind up to the largest frame: the peer is a broker.

        `once`: up to the next that is too large for a client, for the peer may be none.
        """
    def forget(self) -> None:
        """Drop received bytes: the connection is closed."""
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
    def park(self) -> None: ...
