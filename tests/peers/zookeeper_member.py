"""A member of a group that shares partitions through ZooKeeper; the Java one is ZookeeperMember.java.

Prints "joined", and "topic partition offset value" for every record. Standard input takes "commit", which is
answered with "committed"; its end shuts the member down. Arguments: topic (or "filter:regex"), number of
streams, and settings as key=value.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from ottla.consumer.zookeeper import (
    MessageStream,
    Whitelist,
    ZookeeperConsumerConfig,
    ZookeeperConsumerConnector,
)


async def main(topic: str, count: int, settings: dict[str, str]) -> None:
    """Take part in the group until standard input ends."""
    config = ZookeeperConsumerConfig.from_properties(settings)
    async with ZookeeperConsumerConnector(config) as connector:
        async with asyncio.TaskGroup() as tasks:
            for stream in await _streams(connector, topic, count):
                tasks.create_task(_print(stream))
            print("joined", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                if line.strip() == "commit":
                    await connector.commit_offsets()
                    print("committed", flush=True)
            await connector.shutdown()
    print("left", flush=True)


async def _streams(connector: ZookeeperConsumerConnector, topic: str, count: int) -> list[MessageStream]:
    if topic.startswith("filter:"):
        return await connector.create_message_streams_by_filter(Whitelist(topic[7:]), count)
    return (await connector.create_message_streams({topic: count}))[topic]


async def _print(stream: MessageStream) -> None:
    async for record in stream:
        print(record.topic, record.partition, record.offset, (record.value or b"").decode(), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), dict(pair.split("=", 1) for pair in sys.argv[3:])))
