"""The settings of consumer and producer that transactions need. Pure."""

from __future__ import annotations

from dataclasses import replace

from ottla.client.settings import SettingError
from ottla.streams.config import StreamsConfig


def transactional(config: StreamsConfig, unique_suffix: str) -> StreamsConfig:
    """Return a config for exactly once: read_committed, and a transactional id of this instance alone.

    With `group_instance_id` the id is that of the instance, so that a restart ends the transaction of the
    process before it at once; otherwise the coordinator ends it after `transaction_timeout_ms`. Commits are
    bounded below that, for a producer whose transaction the coordinator ended is fenced. Serializers are left
    out: outputs are serialized when handlers send them.
    """
    instance = config.consumer.group_instance_id or unique_suffix
    transactional_id = config.producer.transactional_id or f"{config.group_id}-{instance}"
    return replace(
        config,
        commit_timeout_ms=min(
            config.commit_timeout_ms, max(1, config.producer.transaction_timeout_ms * 4 // 5)
        ),
        consumer=replace(config.consumer, isolation_level="read_committed"),
        producer=replace(
            config.producer, transactional_id=transactional_id, key_serializer=None, value_serializer=None
        ),
    )


def check(config: StreamsConfig) -> None:
    """Raise SettingError for settings that rule out the processing guarantee."""
    if config.processing_guarantee != "exactly-once":
        if config.producer.transactional_id is not None:
            raise SettingError('transactional_id needs processing_guarantee="exactly-once"')
    elif not config.commit_metadata_max_bytes:
        raise SettingError(
            "exactly-once needs commit_metadata_max_bytes: records that finished out of order would run again"
        )
