"""A seek after a fetch was decided on, and before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer.fetch.fetcher import Fetcher
from ottla.consumer.fetch.offset_lookups import EARLIEST
from peers.scripted_topic import A, Log, reader, take


async def test_what_was_asked_for_before_a_seek_is_not_delivered_after_it(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    fetch, seeks = Fetcher._fetch, [False]

    async def sought_then_fetched(self: Fetcher, *arguments: Any) -> None:
        if seeks.pop():  # the application gets its turn before the task of the fetch does
            self._positions[A].seek_time(EARLIEST)
        seeks.append(False)
        await fetch(self, *arguments)

    monkeypatch.setattr(Fetcher, "_fetch", sought_then_fetched)
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        seeks[:] = [True]
        consumer.seek(A, 2)

        assert await take(consumer, 3) == [b"a", b"b", b"c"]
