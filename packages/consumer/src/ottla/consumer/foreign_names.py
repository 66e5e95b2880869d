"""Names of other clients that this consumer does not have, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.client.settings import SettingError

PRODUCER_SETTINGS = frozenset(
    {
        "acks",
        "batch_size",
        "buffer_memory",
        "compressed_topics",
        "compression_level",
        "compression_type",
        "delivery_timeout_ms",
        "enable_idempotence",
        "key_serializer",
        "linger_ms",
        "max_block_ms",
        "max_request_size",
        "metadata_max_idle_ms",
        "partitioner",
        "retries",
        "transaction_timeout_ms",
        "transactional_id",
        "value_serializer",
    }
)

_INSTEAD = {
    "last_poll_timestamp": "use the timestamp of records, and your own clock for their arrival",
    "poll": "use getmany(timeout_ms=..., max_records=...), or iterate",
    "consume": "use getmany(timeout_ms=..., max_records=...), or iterate",
    "commit_async": "use commit_nowait()",
    "close": "use stop(), or `async with`",
    "unassign": "use assign([])",
    "store_offsets": "a record is finished when the next one is asked for; or commit({partition: offset})",
    "get_watermark_offsets": "use beginning_offsets([partition]) and end_offsets([partition])",
    "incremental_assign": "use assign(partitions): those assigned before keep their positions",
    "incremental_unassign": "use assign(partitions) with the partitions to keep",
    "list_topics": "use topics(), or ottla.admin.Admin",
    "consumer_group_metadata": "use group_metadata()",
}


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise SettingError for a setting of the producer."""
    for name in given:
        if name in PRODUCER_SETTINGS:
            raise SettingError(f"{name} is a setting of the producer, not of the consumer")


def no_such_name(owner: object, name: str) -> AttributeError:
    """Return the error for an unknown attribute, with what to use instead if it is another client's."""
    kind = type(owner).__name__
    instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    return AttributeError(f"{kind!r} object has no attribute {name!r}{instead}", name=name, obj=owner)
