"""Obtain a producer id and epoch; for brokers, a block of producer ids."""

from __future__ import annotations

from ottla.protocol.schema import Message, boolean, int16, int32, int64, message, nullable_string


@message(api_key=22, versions=(0, 6), flexible_from=2)
class InitProducerIdRequest(Message):
    """Asks for a producer id, for a transactional id a lasting one (KIP-98).

    Version 3 names the id to keep, so that the epoch is raised after an error (KIP-360), 5 permits
    TRANSACTION_ABORTABLE (KIP-890), 6 keeps a prepared transaction open (KIP-939).
    """

    transactional_id: str | None = nullable_string()
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(-1, since=3)
    producer_epoch: int = int16(-1, since=3)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


@message(api_key=22, versions=(0, 6), flexible_from=2)
class InitProducerIdResponse(Message):
    """Gives producer id and epoch; version 6 those of a transaction that is still open, too (KIP-939)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(-1, since=6)
    ongoing_txn_producer_epoch: int = int16(-1, since=6)


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
