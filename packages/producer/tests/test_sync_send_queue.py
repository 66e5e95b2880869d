"""Records on their way from threads to the producer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    BufferFull,
    RecordTooLarge,
    SyncProducer,
)
from ottla.producer.sync_acknowledgement import SyncAcknowledgement
from ottla.producer.sync_send_queue import RUN, SyncSendQueue
from ottla.protocol.records import decode_records
from peers.accepting_broker import batches, serving


def values(broker: ScriptedBroker) -> list[bytes | None]:
    return [record.value for batch in batches(broker) for record in decode_records(batch)]


class Nowhere:
    """A thread that does nothing."""

    is_here = False

    def check(self) -> None:
        pass

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        pass


@pytest.mark.parametrize("large", [{"key": bytes(2_000)}, {"value": bytearray(2_000)}], ids=["key", "value"])
def test_a_large_record_counts_while_it_waits_in_the_send_queue(large: dict[str, Any]) -> None:
    thread: Any = Nowhere()
    send_queue = SyncSendQueue(thread, most_bytes=1_000, max_block_ms=1)
    whole = {"value": None, "key": None, "partition": None, "timestamp_ms": None, "headers": None} | large
    send_queue.put(SyncAcknowledgement(thread, "t", **whole))
    with pytest.raises(BufferFull):
        send_queue.put(SyncAcknowledgement(thread, "t", **whole))


async def test_a_callback_that_raises_does_not_stop_the_send_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def call_back(sent: SyncAcknowledgement) -> None:
        raise LookupError(f"who asked for {sent}?")

    def send(servers: str) -> int:
        producer = SyncProducer(servers).start()
        try:
            goes_on = threading.Event()
            producer._thread.post(goes_on.wait)
            for _ in range(RUN):  # so many go at a stretch: the callback is there before the last
                producer.send("t", b"before")
            refused = producer.send("t", bytes(2_000_000))
            refused.add_done_callback(call_back)
            goes_on.set()
            with pytest.raises(RecordTooLarge):
                refused.result(10)
            return producer.send("t", b"after").result(10).partition
        finally:
            producer.stop(10)

    async with serving(ScriptedBroker()) as broker:
        assert await asyncio.to_thread(send, broker.bootstrap_servers) == 0

    assert values(broker) == RUN * [b"before"] + [b"after"]
    assert "who asked for <SyncAcknowledgement t failed" in caplog.text
