"""The periodic tasks of a broker, under Kafka's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.metrics import TICK_MS
from ottla.broker.quotas.clients import FORGET_EVERY_MS
from ottla.broker.runtime.loop_budget import watch_event_loop_lag

if TYPE_CHECKING:
    from ottla.broker.api.services import Services
    from ottla.broker.config import BrokerConfig
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.background_tasks import BackgroundTasks


def schedule(tasks: BackgroundTasks, config: BrokerConfig, services: Services, metrics: Metrics) -> None:
    """Start every periodic task of a broker that serves."""
    clock = services.environment.clock
    tasks.lasting(watch_event_loop_lag(metrics), "event-loop-lag")
    for log_pass in LogPasses(services.logs).scheduled():
        tasks.every(log_pass.name, log_pass.interval_ms, log_pass.run)
    if config.log_cleaner_enable:
        tasks.lasting(Cleaner(services.logs, metrics).run(), "log-cleaner")
    tasks.lasting(services.log_moves.run(), "log-moves")
    tasks.every("metrics-tick", TICK_MS, lambda: metrics.tick(clock.monotonic_ms()))
    tasks.every(
        "highwatermark-checkpoint",
        config.replica_high_watermark_checkpoint_interval_ms,
        services.replicas.checkpoint_high_watermarks,
    )
    tasks.every("idle-client-quotas", FORGET_EVERY_MS, services.client_quotas.forget_idle)
    tasks.every("isr-expiration", config.replica_lag_time_max_ms / 2, services.replicas.shrink_isrs)
    if (tokens := services.delegation_tokens) is not None:
        tasks.every(
            "delete-expired-tokens",
            config.delegation_token_expiry_check_interval_ms,
            lambda: tokens.remove_expired(services.controller.is_active),
        )
    if config.auto_leader_rebalance_enable:
        allowed = config.leader_imbalance_per_broker_percentage / 100
        tasks.every(
            "auto-leader-rebalance-task",
            config.leader_imbalance_check_interval_seconds * 1000,
            lambda: services.controller.balance_leaders(allowed),
        )
