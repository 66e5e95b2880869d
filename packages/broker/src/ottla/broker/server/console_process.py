"""`--console`: the web console as a process of its own, which begins and ends with the broker.

The broker starts it and hears of its end, and waits for nothing that it does: it is a client like any other.
Its standard input is a pipe that the broker holds, so that it ends with a broker that is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ottla.client.config_definition import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.config import BrokerConfig
    from ottla.broker.server.secure_setup import SecureSetup

_log = logging.getLogger(__name__)

HISTORY: Final = "console.sqlite"
"""The file of the console's history, in the first data directory."""
_OPTION: Final = "--console"
_END_S: Final = 5.0
"""How long it may take to end: longer than the console lets requests go on."""


@dataclass(eq=False)
class ConsoleProcess:
    """The console beside one broker: started once that is ready, ended when that stops."""

    listen: str
    history: Path
    setup: SecureSetup | None = None
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _watch: asyncio.Task[None] | None = field(default=None, init=False)
    _is_ending: bool = field(default=False, init=False)

    @classmethod
    def planned(cls, listen: str, config: BrokerConfig, setup: SecureSetup | None) -> Self:
        """Return the console for a broker. Raises ConfigError where it could not start, or not log in."""
        if find_spec("ottla.console") is None:
            raise ConfigError(_OPTION, "needs ottla-console: python -m pip install ottla-console")
        first = config.parsed_listeners[0]
        if setup is None and first.security_protocol != "PLAINTEXT":
            raise ConfigError(
                _OPTION,
                f"cannot log in at {first}: add a profile (ottla profile add) and start "
                "`ottla console --profile NAME`",
            )
        return cls(listen, Path(config.data_dirs[0], HISTORY).absolute(), setup)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._watch is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await asyncio.shield(self._watch)
        if not self._watch.done():
            self._signal(signal.SIGKILL)
            await self._watch

    async def start(self, address: str) -> None:
        """Start the process for a broker at an address; a reason against it stands in the log."""
        try:
            command = await asyncio.to_thread(self._command, address)
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, start_new_session=True, env=_environment()
            )
        except (OSError, ValueError) as error:
            _log.warning("the console does not start, and the broker goes on", extra={"reason": str(error)})
            return
        loop = asyncio.get_running_loop()
        self._watch = loop.create_task(self._until_ended(self._process), name="console")

    def end(self) -> None:
        """Ask the process to end."""
        self._is_ending = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _until_ended(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        if not self._is_ending:
            _log.warning("the console has ended, and the broker goes on", extra={"exit_status": status})

    def _command(self, address: str) -> Sequence[str]:
        """Return the command; a secured broker's administrator is a profile. Raises ProfileError."""
        if self.setup is None:
            cluster = ("--bootstrap-server", _reachable(address))
        else:
            from ottla.broker.server.secure_setup import write_profile

            cluster = ("--profile", write_profile(self.setup, address).name)
        own = ("--listen", self.listen, "--history", str(self.history), "--beside")
        return (sys.executable, "-m", "ottla.console", *cluster, *own)


def _reachable(address: str) -> str:
    """Return the address by which a process of this machine reaches a listener."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host.strip("[]") in ("", "0.0.0.0", "::") else address


def _environment() -> dict[str, str]:
    """Return this process's environment, without a cluster that its user works with."""
    return {name: value for name, value in os.environ.items() if name != "OTTLA_BOOTSTRAP_SERVER"}
