from collections.abc import Mapping
from typing import Any

class ReceiveBuffer:
    memory: bytearray
    view: memoryview
    spare_bytes: int
    def __init__(self, size: int = ...) -> None: ...

class ProduceRun:
    key: bytes
    target: Any
    version: int
    acks: int
    timeout_ms: int
    count: int
    records: int
    size_in_bytes: int
    batches: bytearray | memoryview
    def answers(self, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes: ...
    def failures(self, error_code: int) -> bytes: ...

class PlainFetch:
    key: bytes
    target: Any
    version: int
    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    committed_only: bool
    leader_epoch: int
    offset: int
    partition_max_bytes: int
    size_in_bytes: int
    def head(
        self, high_watermark: int, last_stable_offset: int, log_start_offset: int, size: int
    ) -> bytes: ...

class FrameReader:
    def __init__(self, shared: ReceiveBuffer, max_frame_bytes: int) -> None: ...
    @property
    def kept_bytes(self) -> int: ...
    @property
    def exhausted(self) -> bool:
        """Whether no whole frame is left; false for a size that cannot be, which `next_frame` refuses."""
    def get_buffer(self) -> memoryview: ...
    def received(self, count: int) -> bool: ...
    def next_frame(self) -> memoryview | None: ...
    def next_produces(self, index: Mapping[bytes, Any]) -> ProduceRun | None: ...
    def give_back(self, run: ProduceRun) -> None: ...
    def next_fetch(self, index: Mapping[bytes, Any]) -> PlainFetch | None: ...
    def give_back_fetch(self, fetch: PlainFetch) -> None: ...
    def park(self) -> None: ...
