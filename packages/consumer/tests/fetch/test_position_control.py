from __future__ import annotations

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import ConsumerConfig
from ottla.consumer.errors import ConsumerClosed
from ottla.consumer.runtime import ConsumerRuntime
from peers.scripted_topic import FAST, A, Log, reader, take


async def test_a_rewind_delivers_again_what_was_not_finished(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]

        consumer._control.rewind_unfinished()

        assert await take(consumer, 2) == [b"b", b"c"]


async def test_a_rewind_undoes_no_seek(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        consumer.seek(A, 2)

        consumer._control.rewind_unfinished()

        assert await take(consumer, 1) == [b"c"]


async def test_a_position_that_is_unknown_is_not_waited_for_by_a_consumer_that_is_closed() -> None:
    runtime = ConsumerRuntime(ConsumerConfig())
    runtime.subscriptions.assign([A])
    await runtime.stop()

    with pytest.raises(ConsumerClosed):
        await runtime.fetch.control.position(A)


async def test_the_lag_is_known_once_a_response_told_the_end(broker: ScriptedBroker) -> None:
    runtime = ConsumerRuntime(FAST)
    runtime.subscriptions.assign([A])
    state = runtime.fetch.positions[A]
    assert runtime.fetch.control.lags() == {}

    state.seek(3)
    state.high_watermark = 10

    assert runtime.fetch.control.lags() == {A: 7}
