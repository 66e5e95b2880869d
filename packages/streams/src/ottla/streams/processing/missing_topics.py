"""Warns of topics that do not exist: the group waits for them, and would say nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ottla.client.config import ClientConfig, parse_bootstrap_servers
from ottla.client.errors import ClientError
from ottla.consumer import Consumer
from ottla.protocol.errors import KafkaError

CREATED_WITHIN_S: Final = 2.0
"""Where brokers create topics when clients ask for them, they have done so by then."""

log = logging.getLogger("ottla.streams")


async def warn_of_missing_topics(consumer: Consumer, topics: Iterable[str], config: ClientConfig) -> None:
    """Log one warning for each topic that does not exist soon after the consumer has subscribed to it."""
    await asyncio.sleep(CREATED_WITHIN_S)
    for topic in topics:
        try:
            if await consumer.partitions_for_topic(topic):
                continue
        except (ClientError, KafkaError) as error:  # the consumer meets the same error, and tells it
            log.debug("topic %r cannot be looked up: %s", topic, error)
            continue
        log.warning(
            "topic %r does not exist at %s, and no broker creates it: create it (ottla topics create %s), or "
            "correct its name; until then nothing of it is handled",
            topic, shown_servers(config), topic, extra={"topic": topic},
        )  # fmt: skip


def shown_servers(config: ClientConfig) -> str:
    """Return the bootstrap servers as messages show them."""
    return ",".join(
        str(parse_bootstrap_server)
        for parse_bootstrap_server in parse_bootstrap_servers(config.bootstrap_servers)
    )
