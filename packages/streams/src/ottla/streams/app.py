"""An app: handlers of topics, run together, with hooks, signals that stop it, and a status page."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from ottla.client.page_server import PageAccess, PagesRefused, page_access
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, aliases, settings_of
from ottla.streams.assembly import (
    STREAMS,
    AppError,
    DeclaredHandler,
    HandlerProcessor,
    as_member,
    check_members,
)
from ottla.streams.config import StreamsConfig, check
from ottla.streams.dedupe.guard import Dedupe
from ottla.streams.handlers.arguments import arguments_of, handler_name
from ottla.streams.handlers.worker_process import is_starting
from ottla.streams.language.topology import Plan, Topology
from ottla.streams.operating.health import HealthLimits
from ottla.streams.operating.log_lines import set_up_logging
from ottla.streams.operating.loop_watch import LoopWatch
from ottla.streams.operating.status import AppPages
from ottla.streams.operating.status_server import DEFAULT_PORT, StatusLogin, StatusServer

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], Awaitable[object]]
Loop = Literal["asyncio", "uvloop"]

is_being_loaded: ContextVar[bool] = ContextVar("is_being_loaded", default=False)
"""Whether a command imports the program, to run its app itself."""
_STOPPING: Final = "\nStopping: handlers that run have {:g} s to end; press Ctrl+C again to end at once.\n"

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SAME_S: Final = 0.5


class App(Topology):
    """Handlers of topics, and streams, that run together in one process.

        app = App("billing", bootstrap_servers="127.0.0.1:9092")

        @app.handle("orders", max_concurrency=200, retries=5)
        async def charge(order: Order) -> None: ...

        app.run()

    Settings are those of StreamsConfig, and of its consumer and producer, as keywords; those of `handle` win.
    The name is the consumer group of all handlers and streams. A handler that is added, removed or renamed
    moves no offsets: those belong to the topics. A topic that two handlers read needs a `group_id` for one.

    `status` is the address of a page for `/health`, `/metrics` and `/status`, such as "127.0.0.1:9465"; port
    0 takes a free one. One that other machines reach needs `status_login`, a certificate and a token.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        status: str | None = None,
        status_login: StatusLogin | None = None,
        health: HealthLimits | None = None,
        **settings: Any,
    ) -> None:
        if not name:
            raise AppError('an app needs a name, which is its consumer group: App("billing")')
        if bootstrap_servers is not None:
            settings["bootstrap_servers"] = bootstrap_servers
        self.name = name
        self.status_address = status
        self.status_login = status_login
        self._health_limits = health or HealthLimits()
        self._settings = settings
        self._overrides: dict[str, Any] = {}
        self._declared: list[DeclaredHandler] = []
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._running: list[HandlerProcessor] = []
        self._stack: AsyncExitStack | None = None
        self._server: StatusServer | None = None
        self._all_done = asyncio.Event()
        self._is_cancelled_by_signal = False
        config = self._config({})  # mistakes are told where they are made
        super().__init__(store=config.state_store)

    def __repr__(self) -> str:
        handlers = ", ".join(handler.name for handler in self._declared)
        return f"<App {self.name!r}, handlers: {handlers or 'none'}>"

    # --- declaring

    def handle(
        self, *topics: str, name: str | None = None, dedupe: Dedupe | None = None, **settings: Any
    ) -> Callable[[F], F]:
        """Declare a handler of topics; the decorated function stays as it is.

        `name` distinguishes handlers in logs and metrics; it is the function's by default. `dedupe` keeps the
        handler from records that it has handled; it belongs to this handler, which opens it. Raises AppError
        and SettingError.
        """
        if not topics or not all(isinstance(topic, str) for topic in topics):
            raise AppError('handle needs names of topics: write @app.handle("orders")')
        self._config(settings)

        def declare(function: F) -> F:
            own = name or handler_name(function).rpartition(".")[2]
            if own == STREAMS or any(handler.name == own for handler in self._declared):
                raise AppError(f"there is a handler {own!r} already; give one of them a name=")
            declared = DeclaredHandler(own, function, topics, settings, dedupe)
            check_members(
                (handler, self._config(handler.settings)) for handler in [*self._declared, declared]
            )
            self._declared.append(declared)
            return function

        return declare

    def on_startup(self, hook: Callable[[], Awaitable[object]]) -> Hook:
        """Await an async function before the first record is read, in the order of declaration."""
        self._startup.append(_checked_hook(hook))
        return hook

    def on_shutdown(self, hook: Callable[[], Awaitable[object]]) -> Hook:
        """Await an async function after the last record was handled, in reverse order of declaration.

        It is awaited after a failure too, if the hooks of the start have succeeded.
        """
        self._shutdown.append(_checked_hook(hook))
        return hook

    def override(
        self,
        *,
        status: str | None = None,
        status_login: StatusLogin | None = None,
        dedupe: Mapping[str, Dedupe | None] | None = None,
        **settings: Any,
    ) -> None:
        """Set what wins over all that is declared, as a command line does. Raises SettingError and AppError.

        `dedupe` replaces that of handlers by their names, None takes it away: so that a test has a file of
        its own, `app.override(dedupe={"charge": Dedupe(SqliteStore(tmp_path / "marks.db"))})`. `security`, a
        SecurityConfig, replaces all declared settings of logins and TLS.
        """
        if status is not None:
            self.status_address = status
        self.status_login = status_login or self.status_login
        for name in dedupe or {}:
            if all(handler.name != name for handler in self._declared):
                known = ", ".join(handler.name for handler in self._declared)
                raise AppError(f"there is no handler {name!r} whose dedupe could be replaced, only {known}")
        self._declared = [
            replace(handler, dedupe=dedupe[handler.name]) if dedupe and handler.name in dedupe else handler
            for handler in self._declared
        ]
        self._overrides.update(settings)
        self._config({})

    def configs(self) -> dict[str, StreamsConfig]:
        """Return the config of each handler, with its group. Raises AppError for topics read twice in one."""
        app = self._config({})
        found = {
            handler: as_member(self._config(handler.settings), app, handler.name)
            for handler in self._all_declared()
        }
        check_members(found.items())
        return {handler.name: config for handler, config in found.items()}

    def _all_declared(self) -> list[DeclaredHandler]:
        """Return the handlers, and the streams as one more."""
        if self.is_empty:
            return self._declared
        plan = self.plan()
        return [*self._declared, DeclaredHandler(STREAMS, plan, plan.topics)]

    def _config(self, settings: Mapping[str, Any]) -> StreamsConfig:
        declared = {"group_id": self.name, **self._settings, **settings}
        if "security" in self._overrides:
            declared = {name: value for name, value in declared.items() if not _is_of_login(name)}
        config = StreamsConfig.of(**{**declared, **self._overrides})
        check(config)
        return config

    # --- running

    def run(self, *, loop: Loop = "asyncio") -> None:
        """Run until SIGINT or SIGTERM, then drain; a second signal ends the process at once.

        While `ottla streams run` imports the program this does nothing: the command runs the app after that.
        Returns after an orderly stop. After a failure it prints one line and raises SystemExit(1). Warnings
        and errors are logged to standard error, unless logging is set up. `loop="uvloop"` runs on uvloop,
        which must be installed. With `run_on="processes"` call it under `if __name__ == "__main__":`.
        """
        if is_starting():  # a worker process imports a program without that line; its parent says so
            raise SystemExit(1)
        if is_being_loaded.get():
            return
        if not log.hasHandlers():  # the last resort of logging leaves out topic, partition and offset
            set_up_logging("warning")
        factory = _loop_factory(loop)
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._run_until_signal())
        except asyncio.CancelledError:
            if not self._is_cancelled_by_signal:
                raise
        except Exception as error:
            log.debug("the app failed", exc_info=error)
            print(f"{self.name} failed: {_one_line(error)}", file=sys.stderr)  # noqa: T201 - for the user
            raise SystemExit(1) from None

    async def run_async(self) -> None:
        """Run until `stop` is called or a handler's processor fails, which is raised."""
        async with self:
            await self.wait()

    async def wait(self) -> None:
        """Wait until all handlers have stopped."""
        await self._all_done.wait()

    def stop(self) -> None:
        """Ask all handlers to drain and to stop; return at once."""
        for work in self._running:
            work.stop()

    @property
    def status_url(self) -> str | None:
        """The address of the status page; None without one."""
        return None if self._server is None else self._server.url

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise AppError("the app runs already")
        declared = self._all_declared()
        if not declared:
            raise AppError(
                'the app has no handler: declare one with @app.handle("topic"), or app.stream("topic")'
            )
        for handler in self._declared:
            if not isinstance(handler.function, Plan):
                arguments_of(handler.function)  # before anything connects
        configs = self.configs()
        self._all_done = asyncio.Event()
        self._running = [
            HandlerProcessor(
                handler.name,
                handler.function,
                handler.topics,
                configs[handler.name],
                app_id=self.name,
                health_limits=self._health_limits,
                dedupe=handler.dedupe,
            )
            for handler in declared
        ]
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                self._stack = stack.pop_all()
        except BaseExceptionGroup as group:
            raise _single(group) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None
        try:
            await stack.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise _single(group) from None

    async def _start(self, stack: AsyncExitStack) -> None:
        for hook in self._startup:
            await hook()
        for hook in self._shutdown:
            stack.push_async_callback(hook)
        if self.status_address is not None:
            await stack.enter_async_context(self._status_server(self.status_address))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(self.stop)
        started = asyncio.Semaphore(0)
        left = set(self._running)
        for work in self._running:
            tasks.create_task(self._run_one(work, started, left), name=f"ottla-streams-{work.name}")
        for _ in self._running:
            await started.acquire()

    async def _run_one(
        self, processor: HandlerProcessor, started: asyncio.Semaphore, left: set[HandlerProcessor]
    ) -> None:
        """Run one handler. An error ends the group: the other handlers drain, and so does the app's block."""
        try:
            async with processor:
                log.info("handler started", extra={"handler": processor.name, "group": processor.group_id})
                started.release()
                await processor.wait()
        finally:
            left.discard(processor)
            if not left:
                self._all_done.set()

    async def _run_until_signal(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if self._stack is not None:
                self.stop()
            else:  # it starts, and waits for a broker perhaps: there is nothing to drain
                self._is_cancelled_by_signal = True
                task.cancel()

        with StopSignals(stop, self._say_stopping()), LoopWatch():
            await self.run_async()

    def _say_stopping(self) -> str:
        longest_ms = max((config.drain_timeout_ms for config in self.configs().values()), default=0)
        return _STOPPING.format(longest_ms / 1_000)

    def _status_access(self, host: str) -> PageAccess:
        login = self.status_login or StatusLogin()
        try:
            return page_access(
                host,
                certificate=login.certificate,
                key_password=login.key_password,
                token_file=login.token_file,
                is_open=login.is_open,
            )
        except PagesRefused as error:
            raise SettingError(f"status: {error} (status_login=, or --status-open)") from None

    def _status_server(self, address: str) -> StatusServer:
        host, port = parse_address(address)
        pages = AppPages(self.name, lambda: self._running, lambda: asyncio.get_running_loop().time() * 1_000)
        self._server = StatusServer(host, port, pages.pages(), self._status_access(host))
        return self._server


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`, `:port`, `port` or `host`. Raises SettingError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("", text) if text.isdigit() else (text, str(DEFAULT_PORT))
    if not port.isdigit() or int(port) > 65_535:
        raise SettingError(f"status must be host:port, such as 127.0.0.1:{DEFAULT_PORT}, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_of_login(name: str) -> bool:
    """Return whether a setting, under any of its names, is one of SecurityConfig."""
    return name in settings_of(SecurityConfig) or name in aliases(SecurityConfig)


def _checked_hook(hook: Any) -> Any:
    if not asyncio.iscoroutinefunction(hook):
        raise AppError(f"a hook is an async function: declare it with async def, not {hook!r}")
    return hook


def _loop_factory(loop: Loop) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if loop == "asyncio":
        return None
    if loop != "uvloop":
        raise AppError(f'loop must be "asyncio" or "uvloop", not {loop!r}')
    try:
        import uvloop
    except ImportError:
        raise AppError('loop="uvloop" needs uvloop: python -m pip install uvloop') from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only exception of a group, or the group."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


def _one_line(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_one_line(failure) for failure in error.exceptions)
    return " ".join(str(error).split()) or type(error).__name__


class StopSignals:
    """Within `with`, on the main thread with a running loop: a first signal calls `stop` on the loop.

    A second one ends the process with exit code 1, also while a handler blocks the loop: nothing is lost by
    it, for what is not committed is handled again. One that comes within half a second is the first still:
    a terminal and a supervisor may both pass on the same Ctrl+C. `said` is printed to standard error at the
    first.
    """

    # Python's own signal handlers, not the loop's: those run on the loop only, which a handler may block.

    def __init__(self, stop: Callable[[], None], said: str) -> None:
        self._stop = stop
        self._said = said
        self._asked_s: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        now_s = self._loop.time()
        if self._asked_s is not None:
            if now_s - self._asked_s >= _SAME_S:
                os._exit(1)
            return
        self._asked_s = now_s
        with suppress(OSError):  # stderr may be closed
            os.write(2, self._said.encode())  # the interrupted code may hold the lock of the buffered stream
        self._loop.call_soon_threadsafe(self._stop)
