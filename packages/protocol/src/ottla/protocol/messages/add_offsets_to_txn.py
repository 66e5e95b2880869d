"""Add a group's offsets to a transaction."""

from __future__ import annotations

from ottla.protocol.schema import Message, int16, int32, int64, message, string


@message(api_key=25, versions=(0, 4), flexible_from=3)
class AddOffsetsToTxnRequest(Message):
    """Announces that a transaction is going to commit offsets of a group (KIP-98)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@message(api_key=25, versions=(0, 4), flexible_from=3)
class AddOffsetsToTxnResponse(Message):
    """Says whether the group's offsets partition is part of the transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
