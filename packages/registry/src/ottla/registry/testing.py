"""A registry for tests: in this process, on a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ottla.client.config import ClientConfig
from ottla.registry.server.serving import RegistrySettings, serve

if TYPE_CHECKING:
    import uvicorn

START_S: Final = 60.0
_STOP_S: Final = 30.0


class RegistryThread:
    """A schema registry of the brokers at `bootstrap_servers`; without brokers it keeps schemas in memory.

    Use it as a context manager.
    """

    def __init__(self, bootstrap_servers: str | None = None, **settings: Any) -> None:
        """`settings` are those of RegistrySettings, whose port is a free one here."""
        own: dict[str, Any] = {"port": 0, "in_memory": bootstrap_servers is None}
        if bootstrap_servers is not None:
            own["client"] = ClientConfig(bootstrap_servers=bootstrap_servers)
        self._settings = RegistrySettings(**own | settings)
        self._started: Future[tuple[str, uvicorn.Server]] = Future()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the registry."""
        return self._started.result(0)[0]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="ottla-registry", daemon=True)
        self._thread.start()
        self._started.result(START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._started.result(0)[1].should_exit = True
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the registry did not end within {_STOP_S:g} s")

    def _run(self) -> None:
        try:
            started = self._started
            asyncio.run(
                serve(self._settings, lambda *found: started.set_result(found), handles_signals=False)
            )
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
