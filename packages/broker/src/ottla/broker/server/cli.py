"""`ottla broker`: start and stop a broker."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.config import BrokerConfig
    from ottla.broker.server.broker import Broker
    from ottla.broker.server.console_process import ConsoleProcess
    from ottla.broker.server.secure_setup import SecureSetup

PID_FILE: Final = "broker.pid"
LOG_FILE: Final = "broker.log"
_POLL_S: Final = 0.05
_GIL_WAIT_S: Final = 0.0005
"""How long the event loop waits for a thread that holds the GIL before it asks for it; Python's is 5 ms."""


class _PropertiesFile(click.Path):
    """A file of settings that is there. A setting in its place is refused with the option for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if "=" in str(value) and not Path(value).exists():
            self.fail(f"{str(value)!r} is a setting and no file: give it with --set {value}", param, ctx)
        return super().convert(value, param, ctx)


@click.group()
def broker() -> None:
    """Run a Kafka-compatible broker."""


@broker.command()
@click.option(
    "--listen", metavar="HOST:PORT",
    help="Address to listen on; `:9092` is every interface. Default: 127.0.0.1:9092.",
)  # fmt: skip
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the partitions (log.dirs).",
)  # fmt: skip
@click.option(
    "--config", "properties", type=_PropertiesFile(exists=True, dir_okay=False, path_type=Path),
    help="A server.properties file, Kafka's own included; single settings go to --set.",
)  # fmt: skip
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set any configuration key. Repeatable."
)
@click.option(
    "--secure", is_flag=True,
    help="Encrypt and authenticate: make certificates and an administrator in the data directory, once.",
)  # fmt: skip
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics on this port of 127.0.0.1.")
@click.option(
    "--console", metavar="[HOST:PORT]", is_flag=False, flag_value="127.0.0.1:8180",
    help="Serve the web console beside the broker, at 127.0.0.1:8180 unless another address is given.",
)  # fmt: skip
@click.option("--daemon", is_flag=True, help="Run in the background; returns once the broker is ready.")
@click.option(
    "--uvloop/--no-uvloop", default=None, help="Use uvloop's event loop. Default: when it is installed."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="How much to log. Default: warning, with --log-dir info.",
)
@click.option(
    "--log-dir", type=click.Path(file_okay=False, path_type=Path),
    help="Log into files of this directory, rotated at 64 MiB, and not to standard error: server.log, "
    "controller.log, state-change.log, log-cleaner.log, kafka-request.log.",
)  # fmt: skip
@click.option("--secure-dir", type=click.Path(exists=True, path_type=Path), hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
def start(
    *,
    listen: str | None,
    data_dir: Path | None,
    properties: Path | None,
    settings: tuple[str, ...],
    secure: bool,
    metrics_port: int | None,
    console: str | None,
    daemon: bool,
    uvloop: bool | None,
    log_level: str | None,
    log_dir: Path | None,
    secure_dir: Path | None,
    ready_fd: int | None,
) -> None:
    """Start a broker; settings that are not given have their defaults.

    Without `zookeeper.connect` it runs its own coordinator and is a complete cluster of one broker.
    Every key can also come from the environment: OTTLA_LOG_RETENTION_HOURS=24.

    \b
    Examples:
      ottla broker start --listen 127.0.0.1:9092 --data-dir ./data
      ottla broker start --config server.properties --daemon
      ottla broker start --set num.partitions=6 --set log.retention.hours=24
      ottla broker start --data-dir ./data --secure
      ottla broker start --data-dir ./data --console
    """
    from ottla.broker.log.files.open_files import allow_all_descriptors
    from ottla.broker.runtime.garbage_collection import begin_start

    flags = _flags(listen, data_dir, settings, metrics_port, secure=secure)
    setup = None
    if secure or secure_dir is not None:
        from ottla.broker.server.secure_setup import secured

        with _one_line_errors():
            setup, flags = secured(_read_properties(properties) or {}, flags, secure_dir)
    config = _load(properties, flags)
    _refuse_unsecured(config)
    beside = _console_beside(console, config, setup)
    if daemon:
        _introduce_daemon(config, setup, console, log_dir)
        return
    _set_up_logging(log_level, log_dir)
    allow_all_descriptors()
    begin_start()
    with _one_line_errors(), _pid_file(Path(config.data_dirs[0])):
        _run(config, setup, beside, uvloop=uvloop, ready_fd=ready_fd)


def _introduce_daemon(
    config: BrokerConfig, setup: SecureSetup | None, console: str | None, log_dir: Path | None
) -> None:
    with _one_line_errors():
        line = _started_daemon(config, log_dir)
        click.echo(line)
        if setup is not None:
            click.echo(setup.introduce(line.rpartition(" ")[2]), nl=False)
    if console is not None:
        log_file = Path(config.data_dirs[0], LOG_FILE)
        click.echo(f"The console starts at http://{console}/; its output is in {log_file}")


def _started_daemon(config: BrokerConfig, log_dir: Path | None) -> str:
    from ottla.broker.server.daemon import DaemonFailed, start_daemon  # which other starts do not import

    directory = Path(config.data_dirs[0])
    directory.mkdir(0o700, parents=True, exist_ok=True)
    if (pid := _running_pid(directory)) is not None:
        _fail(f"another broker runs on {directory} (process {pid}): stop it first")
    try:
        return start_daemon(directory / LOG_FILE, log_dir)
    except DaemonFailed as error:
        _fail(str(error))


def _console_beside(
    listen: str | None, config: BrokerConfig, setup: SecureSetup | None
) -> ConsoleProcess | None:
    """Return the console that runs beside the broker; None without `--console`."""
    if listen is None:
        return None
    from ottla.broker.server.console_process import ConsoleProcess  # which other starts do not import

    with _one_line_errors():
        return ConsoleProcess.planned(listen, config, setup)


def _refuse_unsecured(config: BrokerConfig) -> None:
    if any(Path(directory, "secure").is_dir() for directory in config.data_dirs):
        from ottla.broker.server.secure_setup import refuse_unsecured  # which other starts do not import

        with _one_line_errors():
            refuse_unsecured(config)


@broker.command()
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path),
    help="The data directory the broker was started with.",
)  # fmt: skip
@click.option(
    "--config", "properties", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server.properties file the broker was started with.",
)  # fmt: skip
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, help="Seconds to wait until it has stopped."
)
def stop(*, data_dir: Path | None, properties: Path | None, timeout: float) -> None:
    """Stop the broker of a data directory cleanly.

    \b
    Examples:
      ottla broker stop --data-dir ./data
      ottla broker stop --config server.properties
    """
    directory = data_dir or Path(_load(properties, {}, warn=False).data_dirs[0])
    pid = _running_pid(directory)
    if pid is None:
        _fail(f"no broker runs on {directory}; name its directory with --data-dir")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while _running_pid(directory) == pid:
        if time.monotonic() > deadline:
            _fail(f"the broker (process {pid}) has not stopped within {timeout:g} s")
        time.sleep(_POLL_S)
    click.echo(f"stopped (process {pid})")


@broker.command()
@click.option("--listen", metavar="HOST:PORT", help="The address to ask; else the configuration says which.")
@click.option(
    "--config", "properties", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server.properties file the broker was started with.",
)  # fmt: skip
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait for the answer.")
def check(*, listen: str | None, properties: Path | None, timeout: float) -> None:
    """Check that the broker of this machine answers.

    The exit status is 0 if it does: the health check of a container. It asks for the API versions, which
    needs no login, and reads `listeners` as the broker does: from a file, or the environment.

    \b
    Examples:
      ottla broker check
      ottla broker check --listen SASL_SSL://127.0.0.1:9092
      ottla broker check --config server.properties --timeout 2
    """
    from ottla.broker.server.check import check_broker

    with _one_line_errors():
        configured = None if listen else _load(properties, {}, warn=False).parsed_listeners
        click.echo(check_broker(configured, listen and _listener(listen, "PLAINTEXT"), timeout))


# ---- configuration


def _flags(
    listen: str | None,
    data_dir: Path | None,
    settings: tuple[str, ...],
    metrics_port: int | None,
    *,
    secure: bool,
) -> dict[str, str]:
    flags: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        flags[name.strip()] = value
    if listen is not None:
        flags["listeners"] = _listener(listen, "SASL_SSL" if secure else "PLAINTEXT")
    if data_dir is not None:
        flags["log.dirs"] = str(data_dir)
    if metrics_port is not None:
        flags["metrics.port"] = str(metrics_port)
    return flags


def _listener(listen: str, protocol: str) -> str:
    address = listen if "://" in listen else f"{protocol}://{listen}"
    if not address.rpartition(":")[2].isdigit():
        raise click.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    return address


def _load(properties: Path | None, flags: dict[str, str], *, warn: bool = True) -> BrokerConfig:
    from ottla.broker.config import ConfigError, load_broker_config

    try:
        loaded = load_broker_config(_read_properties(properties), os.environ, flags)
    except ConfigError as error:
        _fail(str(error))
    for warning in loaded.warnings if warn else ():
        click.echo(f"warning: {warning}", err=True)
    return loaded.config


def _read_properties(path: Path | None) -> dict[str, str] | None:
    from ottla.protocol.storage import CorruptStorage
    from ottla.protocol.storage.properties import decode_properties

    try:
        return decode_properties(path.read_bytes()) if path else None
    except CorruptStorage as error:
        _fail(f"{path}: {error}")


# ---- running


def _run(
    config: BrokerConfig,
    setup: SecureSetup | None = None,
    console: ConsoleProcess | None = None,
    *,
    uvloop: bool | None,
    ready_fd: int | None,
) -> None:
    import asyncio

    sys.setswitchinterval(_GIL_WAIT_S)
    with asyncio.Runner(loop_factory=_loop_factory(uvloop)) as runner:
        runner.run(_serve(config, setup, console, ready_fd))


def _loop_factory(wanted: bool | None) -> Any:
    if wanted is False:
        return None
    try:
        import uvloop
    except ImportError:
        if wanted:
            _fail("uvloop is not installed: python -m pip install 'ottla-broker[uvloop]'")
        return None
    return uvloop.new_event_loop


async def _serve(
    config: BrokerConfig, setup: SecureSetup | None, console: ConsoleProcess | None, ready_fd: int | None
) -> None:
    import asyncio
    from contextlib import AsyncExitStack

    from ottla.broker.runtime.clock import SystemClock
    from ottla.broker.runtime.log_lines import limited_transport_errors, print_tasks
    from ottla.broker.runtime.threads import IoThreads
    from ottla.broker.server.broker import Broker

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    threads = IoThreads(config.num_io_threads)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
            loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, print_tasks)
    async with AsyncExitStack() as stack:
        stack.enter_context(limited_transport_errors(SystemClock().monotonic_ms))
        # Without other brokers none would take over.
        if config.event_loop_watchdog_enable and config.zookeeper_connect is not None:
            from ottla.zookeeper.watchdog import LoopWatchdog

            await stack.enter_async_context(LoopWatchdog(config.zookeeper_session_timeout_ms))
        if console is not None:
            await stack.enter_async_context(
                console
            )  # before the broker: it is waited for after that has stopped
        running = Broker(config)
        running.write_first = None if setup is None else setup.write_users
        await stack.enter_async_context(running)
        running.services.configs.subscribe(lambda changed: threads.resize(changed.num_io_threads))
        running.environment.budget.collector.end_start()
        _say_ready(running.address, running.broker_id, ready_fd)
        if setup is not None and setup.is_announced:
            click.echo(await asyncio.to_thread(setup.introduce, running.address), nl=False)
        if console is not None:
            await console.start(running.address)
            stack.callback(console.end)
        await _until_stopped(running, stopping, setup)


async def _until_stopped(running: Broker, stopping: asyncio.Event, setup: SecureSetup | None) -> None:
    """Wait for a signal, or for the failure of the broker; meanwhile keep its certificate valid."""
    import asyncio

    async with asyncio.TaskGroup() as tasks:
        lasting = [tasks.create_task(running.serve_forever())]
        if setup is not None:
            from ottla.broker.server.secure_files import keep_valid

            lasting.append(tasks.create_task(keep_valid(setup.files)))
        await stopping.wait()
        for task in lasting:
            task.cancel()


def _say_ready(address: str, broker_id: int, ready_fd: int | None) -> None:
    line = f"Ottla broker {broker_id} is ready on {address}"
    click.echo(line)
    sys.stdout.flush()
    if ready_fd is not None:
        with suppress(BrokenPipeError):  # the command that waited has gone
            os.write(ready_fd, f"{line}\n".encode())
        os.close(ready_fd)


def _set_up_logging(level: str | None, directory: Path | None) -> None:
    from ottla.broker.runtime.log_lines import LogFiles, set_up_logging

    if directory is None:
        set_up_logging(level or "warning")
        return
    try:
        set_up_logging(level or "info", LogFiles(directory))
    except OSError as error:
        _fail(f"--log-dir {error.filename}: {error.strerror}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Print errors that the user can correct in one line; any other error keeps its traceback."""
    try:
        yield
    except Exception as error:
        cause = _first(error)
        if not isinstance(cause, _expected()):
            raise
        _fail(_words(cause))


def _words(error: Exception) -> str:
    """Format an error: the file, the problem, and the remedy for an address in use."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        return f"{error.filename} cannot be a data directory: a file stands there, or above it"
    text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (
        f"{text}; stop the process that uses it, or choose another port"
        if error.errno == errno.EADDRINUSE
        else text
    )


def _expected() -> tuple[type[Exception], ...]:
    from ottla.broker.cluster.own_coordinator import CoordinatorFailed
    from ottla.broker.cluster.registration import StartupRefused
    from ottla.broker.config import ConfigError
    from ottla.broker.log.hosting.directories import LogDirectoryRefused
    from ottla.broker.server.broker import EveryDirectoryFailed
    from ottla.zookeeper.errors import ZooKeeperError

    return (
        ConfigError,
        StartupRefused,
        LogDirectoryRefused,
        EveryDirectoryFailed,
        CoordinatorFailed,
        ZooKeeperError,
        OSError,
    )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(1)


# ---- the process


@contextmanager
def _pid_file(directory: Path) -> Iterator[None]:
    """Keep `broker.pid` locked while the broker runs; a stale file has no lock."""
    directory.mkdir(0o700, parents=True, exist_ok=True)
    path = directory / PID_FILE
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _fail(f"another broker runs on {directory} (process {path.read_text().strip()}): stop it first")
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _running_pid(directory: Path) -> int | None:
    try:
        with (directory / PID_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read())
    except (OSError, ValueError):
        return None
    return None
