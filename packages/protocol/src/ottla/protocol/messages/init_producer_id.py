"""Obtain a producer id and epoch."""

from __future__ import annotations

from ottla.protocol.schema import Message, int16, int32, int64, message, nullable_string


@message(api_key=22, versions=(0, 5), flexible_from=2)
class InitProducerIdRequest(Message):
    """Asks for a producer id, for a transactional id a lasting one (KIP-98).

    Version 3 names the id to keep, so that the epoch is raised after an error (KIP-360), 5 permits
    TRANSACTION_ABORTABLE (KIP-890).
    """

    transactional_id: str | None = nullable_string()
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(-1, since=3)
    producer_epoch: int = int16(-1, since=3)


@message(api_key=22, versions=(0, 5), flexible_from=2)
class InitProducerIdResponse(Message):
    """Gives producer id and epoch."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1)
    producer_epoch: int = int16()
