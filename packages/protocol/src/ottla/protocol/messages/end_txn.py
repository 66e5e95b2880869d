"""End a transaction."""

from __future__ import annotations

from ottla.protocol.schema import Message, boolean, int16, int32, int64, message, string


@message(api_key=26, versions=(0, 4), flexible_from=3)
class EndTxnRequest(Message):
    """Commits or aborts a transaction (KIP-98)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@message(api_key=26, versions=(0, 4), flexible_from=3)
class EndTxnResponse(Message):
    """Says whether the decision is recorded."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
