"""Clients of a web application, opened and closed with it: Starlette, FastAPI, and others with a lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

Client = AbstractAsyncContextManager[Any, Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Any], Any]]


def lifespan(**clients: Client | Callable[[], Client]) -> Lifespan:
    """Return the `lifespan` of an application: clients by name, which requests find in `request.state`.

        app = FastAPI(lifespan=lifespan(producer=lambda: Producer("127.0.0.1:9092", linger_ms=0)))

    They open in the order of the arguments before the first request, and close in reverse after the last one.
    A function is called at each start, for applications that start more than once, as in tests. A client that
    dies ends the application: its error is raised out of the lifespan.
    """

    @asynccontextmanager
    async def opened(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            yield {name: await stack.enter_async_context(_made(client)) for name, client in clients.items()}

    return opened


def _made(client: Client | Callable[[], Client]) -> Client:
    return client if isinstance(client, AbstractAsyncContextManager) else client()
