"""The consumer's configuration. Names are Kafka's, in snake case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ottla.client.config import ClientConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How records are fetched."""

    group_id: str | None = None
    """The name under which offsets are committed, and read at the start. Partitions are not shared by it."""
    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    """Where to begin without a committed offset, or when it is not in the log any more."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Whether records of aborted transactions are left out."""
    fetch_min_bytes: int = 1
    """The broker waits until it has as much."""
    fetch_max_wait_ms: int = 500
    """How long the broker may wait for that."""
    fetch_max_bytes: int = 50 * 1024 * 1024
    """About how much one answer may hold."""
    max_partition_fetch_bytes: int = 1024 * 1024
    """About how much of one partition an answer may hold."""
    client: ClientConfig = field(default_factory=ClientConfig)
    """Connections, timeouts and security."""

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ValueError("auto_offset_reset must be earliest, latest or none")
        if self.isolation_level not in ("read_uncommitted", "read_committed"):
            raise ValueError("isolation_level must be read_uncommitted or read_committed")
        for name in ("fetch_max_bytes", "max_partition_fetch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return self.isolation_level == "read_committed"
