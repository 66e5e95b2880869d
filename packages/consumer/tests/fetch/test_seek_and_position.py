from __future__ import annotations

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import ConsumerConfig
from ottla.consumer.errors import ConsumerClosed
from ottla.consumer.lifecycle import ConsumerLifecycle
from peers.scripted_topic import FAST, A, Log, reader, take


async def test_a_rewind_delivers_again_what_was_not_finished(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]

        consumer._position_operations.rewind_unfinished()

        assert await take(consumer, 2) == [b"b", b"c"]


async def test_a_rewind_undoes_no_seek(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        consumer.seek(A, 2)

        consumer._position_operations.rewind_unfinished()

        assert await take(consumer, 1) == [b"c"]


async def test_a_position_that_is_unknown_is_not_waited_for_by_a_consumer_that_is_closed() -> None:
    lifecycle = ConsumerLifecycle(ConsumerConfig())
    lifecycle.subscriptions.assign([A])
    await lifecycle.stop()

    with pytest.raises(ConsumerClosed):
        await lifecycle.fetch.position_operations.position(A)


async def test_the_lag_is_known_once_a_response_told_the_end(broker: ScriptedBroker) -> None:
    lifecycle = ConsumerLifecycle(FAST)
    lifecycle.subscriptions.assign([A])
    state = lifecycle.fetch.positions[A]
    assert lifecycle.fetch.position_operations.lags() == {}

    state.seek(3)
    state.high_watermark = 10

    assert lifecycle.fetch.position_operations.lags() == {A: 7}
