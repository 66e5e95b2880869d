"""Routes: the mistakes they reject, and the lazy import of handlers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ottla.broker.api.routes import ROUTES
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.routes import Route, Routes
from ottla.protocol.api import ApiKey


async def on_a_task(services: None, request: Any, context: RequestContext) -> None: ...


def at_once(services: None, request: Any, context: RequestContext) -> None: ...


def test_a_coroutine_function_cannot_borrow_the_receive_buffer() -> None:
    with pytest.raises(ValueError, match="coroutine function"):
        Route(ApiKey.PRODUCE, 0, 9, on_a_task, borrows_buffer=True)


def test_a_plain_function_may_own_its_request() -> None:
    assert not Route(ApiKey.PRODUCE, 0, 9, at_once).borrows_buffer


def test_two_routes_for_one_api_are_refused() -> None:
    with pytest.raises(ValueError, match="two routes"):
        Routes([Route(ApiKey.PRODUCE, 0, 9, at_once), Route(ApiKey.PRODUCE, 0, 3, at_once)])


def test_only_produce_and_fetch_borrow_the_receive_buffer() -> None:
    assert [one.api_key for one in ROUTES if one.borrows_buffer] == [ApiKey.PRODUCE, ApiKey.FETCH]


def test_a_handler_of_a_rare_api_is_imported_with_its_first_request() -> None:
    program = """if True:
        import asyncio, sys
        from ottla.broker.api.routes import ROUTES
        from ottla.protocol.api import ApiKey
        from ottla.protocol.messages.elect_leaders import ElectLeadersRequest

        name = "ottla.broker.api.elect_leaders"
        assert name not in sys.modules
        route = next(one for one in ROUTES if one.api_key is ApiKey.ELECT_LEADERS)
        answer = asyncio.run(route.handler(None, ElectLeadersRequest(election_type=9), None))
        assert answer.error_code and name in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
