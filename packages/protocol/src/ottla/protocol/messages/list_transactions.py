"""List transactions."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, message, string


@message(api_key=66, versions=(0, 1), flexible_from=0)
class ListTransactionsRequest(Message):
    """Asks for the transactions a broker coordinates (KIP-664); version 1 filters by duration (KIP-994)."""

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(-1, since=1)


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@message(api_key=66, versions=(0, 1), flexible_from=0)
class ListTransactionsResponse(Message):
    """Lists transactions."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
