"""Make the parts that the settings of a processor choose: its failure policy, and handlers of functions."""

from __future__ import annotations

import asyncio
import os

from ottla.client.retry import Backoff
from ottla.streams.config import StreamsConfig
from ottla.streams.environment import chance
from ottla.streams.errors import InvalidHandler
from ottla.streams.failures.dead_letters import DeadLetters, Send
from ottla.streams.failures.failure_handling import FailureHandling
from ottla.streams.failures.poison_keys import PoisonKeys
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.handlers.arguments import Function
from ottla.streams.handlers.context import Sender
from ottla.streams.handlers.function_handler import FunctionHandler, reject_batch


def make_failures(config: StreamsConfig, send: Send | None) -> FailureHandling:
    """Return the failure policy of a config; `send` sends dead letters, None if they have no topic."""
    topic = config.dead_letter_topic
    letters = None if topic is None or send is None else DeadLetters(topic, config.group_id, send)
    policy = RetryPolicy(
        retries=config.retries,
        backoff=Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, config.retry_jitter),
        on_error=config.on_error,
        has_dead_letters=letters is not None,
    )
    aside = PoisonKeys(config.max_poison_keys, config.poison_key_ttl_ms) if config.poison_keys else None
    return FailureHandling(
        policy, letters, aside, chance=chance, now_ms=_loop_time_ms, uses_lanes=callable(config.order)
    )


def make_function(
    config: StreamsConfig, function: Function, sender: Sender, failures: FailureHandling | None
) -> FunctionHandler:
    """Return the handler of a user's function. Raises InvalidHandler if it cannot be one.

    `failures` takes the records of a batch that cannot be decoded; without it they fail the batch.
    """
    made = FunctionHandler(
        function,
        sender,
        run_on=config.run_on,
        value_format=config.value_format,
        max_threads=config.max_threads,
        max_processes=config.max_processes or os.cpu_count() or 1,
        on_undecodable=reject_batch if failures is None else failures.set_aside_undecodable,
    )
    if config.batch_size > 1 and not made.arguments.is_batch:
        raise InvalidHandler(
            f"handler {made.name} takes one record, and batch_size is {config.batch_size}; annotate its "
            "parameter list[...], or leave out batch_size"
        )
    return made


def _loop_time_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)
