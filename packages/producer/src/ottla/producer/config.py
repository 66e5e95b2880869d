"""The producer's configuration. Names are Kafka's, in snake case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ottla.client.config import ClientConfig
from ottla.protocol.records import Codec

CODECS = {
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How records are gathered and sent."""

    acks: Literal[0, 1, -1] = -1
    """Who must have a batch before it counts: -1 all in-sync replicas, 1 the leader, 0 nobody."""
    enable_idempotence: bool | None = None
    """Whether the broker drops repetitions of a batch (KIP-98). None: with acks=-1, where the broker can."""
    linger_ms: float = 5
    """How long a batch may wait for company; 0 sends at once."""
    batch_size: int = 64 * 1024
    """Bytes of records gathered for one partition before a batch is sent."""
    max_request_size: int = 1_048_576
    """The largest record, and about the largest request, in bytes."""
    buffer_memory: int = 32 * 1024 * 1024
    """Bytes of records that may wait; `send` waits when there are more."""
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """How batches are compressed."""
    delivery_timeout_ms: int = 120_000
    """How long a record may take from `send` to its acknowledgement, retries included."""
    client: ClientConfig = field(default_factory=ClientConfig)
    """Connections, timeouts and security."""

    def __post_init__(self) -> None:
        if self.acks not in (0, 1, -1):
            raise ValueError(f"acks must be 0, 1 or -1, not {self.acks!r}")
        if self.enable_idempotence and self.acks != -1:
            raise ValueError("enable_idempotence needs acks=-1")
        if self.compression_type not in CODECS:
            raise ValueError(f"compression_type must be one of {', '.join(CODECS)}")
        for name in ("batch_size", "max_request_size", "buffer_memory", "delivery_timeout_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.linger_ms < 0:
            raise ValueError("linger_ms must be at least 0")
