"""A broker asks for a block of producer ids."""

from __future__ import annotations

from ottla.protocol.schema import Message, int16, int32, int64, message


@message(api_key=67, versions=(0, 0), flexible_from=0)
class AllocateProducerIdsRequest(Message):
    """Asks the controller for ids to hand out (KIP-730)."""

    broker_id: int = int32()
    broker_epoch: int = int64(-1)


@message(api_key=67, versions=(0, 0), flexible_from=0)
class AllocateProducerIdsResponse(Message):
    """Gives the block's first id and its length."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()
