"""`ottla streams`: run stream processing programs, and watch them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.client.commands import chosen_profile, profile_option, servers_of_profile

if TYPE_CHECKING:
    from ottla.streams.app import App

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_STATUS = "127.0.0.1:9465"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def streams() -> None:
    """Run stream processing programs, and watch them.

    A program declares an app: app = App("billing"), with handlers of topics (@app.handle) and streams
    (app.stream).

    \b
    Examples:
      ottla streams run app.py
      ottla streams run billing.app:app --bootstrap-server broker:9092 --status 127.0.0.1:9465
      ottla streams run billing.app:app --profile production
      ottla streams run app.py --reload
      ottla streams top
      ottla streams top 127.0.0.1:9465 --once --json
    """


@streams.command(short_help="Run the app of a program until Ctrl+C or SIGTERM.")
@click.argument("program", metavar="FILE.py[:NAME] | MODULE[:NAME]")
@click.option(
    "--bootstrap-server", "-b", metavar="HOST:PORT", envvar="OTTLA_BOOTSTRAP_SERVER", show_envvar=True,
    callback=servers_of_profile,
    help="A broker of the cluster, or several separated by commas; wins over the program's.",
)  # fmt: skip
@profile_option
@click.option(
    "--status", metavar="HOST:PORT",
    help=f"Serve /health, /metrics and /status on this address, such as {DEFAULT_STATUS}, for probes, "
    "Prometheus and `ottla streams top`; port 0 takes a free one. Wins over the program's; without both "
    "there are no such pages.",
)  # fmt: skip
@click.option(
    "--status-certificate", type=click.Path(dir_okay=False),
    help="PEM file with a certificate and its key: the pages are served by TLS.",
)  # fmt: skip
@click.option(
    "--status-token-file", type=click.Path(dir_okay=False),
    help="File with a token that readers of the pages show, as bearer token or as password of Basic.",
)  # fmt: skip
@click.option(
    "--status-open", is_flag=True,
    help="Serve the pages to other machines without TLS and token, to all that reach the address.",
)  # fmt: skip
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="How much to log, to standard error.",
)
@click.option("--json-logs", is_flag=True, help="Write log lines as JSON objects.")
@click.option("--loop", type=click.Choice(["asyncio", "uvloop"]), default="asyncio", show_default=True,
              help="The event loop; uvloop has to be installed.")  # fmt: skip
@click.option(
    "--reload",
    is_flag=True,
    help="Start again when a Python file in the program's folder changes; for development, needs watchfiles.",
)
def run(
    program: str,
    bootstrap_server: str | None,
    status: str | None,
    status_certificate: str | None,
    status_token_file: str | None,
    status_open: bool,
    log_level: str,
    json_logs: bool,
    loop: Any,
    reload: bool,
) -> None:
    """Run the app of a program until Ctrl+C or SIGTERM.

    The program is a file or a module that is imported; NAME is the variable of its App, and is only needed
    if there are several. Handlers that run have drain_timeout_ms (30 s) to end after the first signal; a
    second signal ends the program at once. Nothing is lost then: what was not committed is handled again.
    A profile's login takes the place of the program's.

    \b
    Examples:
      ottla streams run app.py
      ottla streams run app.py:billing --log-level debug
      ottla streams run shop.streams --status 127.0.0.1:9465
      ottla streams run shop.streams --profile production
    """
    from ottla.streams.app import App
    from ottla.streams.operating.log_lines import set_up_logging
    from ottla.streams.operating.status_server import StatusLogin

    if reload:
        _reload(program)
        return
    set_up_logging(log_level, as_json=json_logs)
    app = _loaded(program)
    try:
        settings = _settings_of_profile()
        if bootstrap_server is not None:
            settings["bootstrap_servers"] = bootstrap_server
        login = StatusLogin(certificate=status_certificate, token_file=status_token_file, is_open=status_open)
        is_given = status_certificate or status_token_file or status_open
        app.override(status=status, status_login=login if is_given else None, **settings)
        App.run(app, loop=loop)
    except _mistakes() as error:
        raise click.ClickException(str(error)) from None


def _settings_of_profile() -> dict[str, Any]:
    """Return the login of the chosen profile, and what else it sets. Raises SettingError."""
    from dataclasses import fields

    from ottla.client.config import ClientConfig

    profile, _ = chosen_profile()
    if profile is None:
        return {}
    config, default = profile.config(), ClientConfig()
    found = {field.name: getattr(config, field.name) for field in fields(config)}
    del found["bootstrap_servers"]  # an option of its own, with the ranks of both
    return {
        name: value for name, value in found.items() if name == "security" or value != getattr(default, name)
    }


@streams.command(short_help="Show the rates, lag and oldest keys of an app that runs with --status.")
@click.argument("url", metavar="[HOST:PORT | URL]", default=DEFAULT_STATUS)
@click.option("--once", is_flag=True, help="Print once, after one interval, and end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one object with --once, else one per line."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token of the pages (--status-token-file).",
)  # fmt: skip
@click.option(
    "--ca-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificates to trust at an https address; the system's by default.",
)  # fmt: skip
def top(
    url: str, once: bool, as_json: bool, interval: float, token_file: Path | None, ca_file: Path | None
) -> None:
    """Show the rates, lag, keys in flight and oldest keys of an app that runs with --status, until Ctrl+C.

    The address is that of --status, by default 127.0.0.1:9465.

    \b
    lanes      keys that have records here (with order="partition": partitions)
    in flight  handlers that run; oldest: for how long the first of them does
    parked     records that wait for a retry, and hold up their key
    metadata   bytes of the last commit that name records finished out of order
    oldest key a hash, the key_hash of log lines; keys themselves are never shown

    \b
    Examples:
      ottla streams top
      ottla streams top 127.0.0.1:9465 --interval 5
      ottla streams top http://10.0.0.7:9465 --once --json
    """
    from ottla.streams.operating import top as viewing

    address = viewing.status_url(url)

    def read() -> dict[str, Any]:
        return viewing.read_status(address, token_file, ca_file)

    def sleep() -> None:
        _sleep(interval)

    try:
        (viewing.show_once if once else viewing.follow)(read, sleep, as_json=as_json)
    except viewing.StatusUnreadable as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(0) from None


def _sleep(seconds: float) -> None:
    import threading

    threading.Event().wait(seconds)


def _loaded(program: str) -> App:
    from ottla.streams.app_loading import load_app

    try:
        return load_app(program)
    except _mistakes() as error:
        raise click.ClickException(str(error)) from None
    except Exception as error:
        raise click.ClickException(_as_python_shows_it(program, error)) from None


def _as_python_shows_it(program: str, error: Exception) -> str:
    """Return the error of a program with its own frames only, not those of what imported it."""
    import traceback

    from ottla.streams import app_loading

    frames = error.__traceback__
    while frames is not None and _is_loading(frames.tb_frame.f_code.co_filename, app_loading.__file__):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return f"{program} cannot be loaded:\n{text}"


def _is_loading(file: str, loader: str) -> bool:
    import importlib

    return file in (__file__, loader, importlib.__file__) or file.startswith("<frozen importlib")


def _mistakes() -> tuple[type[Exception], ...]:
    from ottla.client.settings import SettingError
    from ottla.streams.errors import StreamsError

    return StreamsError, SettingError


def _reload(program: str) -> None:
    """Run the same command without --reload, again whenever a file changes."""
    from ottla.streams.app_loading import file_of

    try:
        from watchfiles import PythonFilter, run_process
    except ImportError:
        raise click.UsageError(
            "--reload needs watchfiles: python -m pip install 'ottla-streams[reload]'"
        ) from None
    try:
        folder = file_of(program)
    except _mistakes() as error:
        raise click.ClickException(str(error)) from None
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    code = "from ottla.client.cli import main; main()"
    run_process(
        folder,
        target=_command([sys.executable, "-c", code, *arguments]),
        target_type="command",
        watch_filter=PythonFilter(),
        sigint_timeout=35,
        sigkill_timeout=5,
    )


def _command(arguments: list[str]) -> str:
    import shlex

    return shlex.join(arguments)
