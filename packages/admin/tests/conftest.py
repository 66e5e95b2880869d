from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.protocol.messages.metadata import MetadataRequest


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A scripted broker on a loop of its own: commands bring their own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = ScriptedBroker()
    asyncio.run_coroutine_threadsafe(scripted.__aenter__(), loop).result(10)
    scripted.on(MetadataRequest, lambda _: scripted.metadata("orders", partitions=2))
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
