"""Describe transactions."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, message, string


@message(api_key=65, versions=(0, 0), flexible_from=0)
class DescribeTransactionsRequest(Message):
    """Asks about transactional ids (KIP-664)."""

    transactional_ids: list[str] = array(string)


class TopicData(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class TransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


@message(api_key=65, versions=(0, 0), flexible_from=0)
class DescribeTransactionsResponse(Message):
    """Describes each transaction and the partitions in it."""

    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)
