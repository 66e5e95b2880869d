"""`ottla console`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.client.commands import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from ottla.console.settings import ClusterSettings


@click.command()
@click.option(
    "--profile", "-p", "profiles", metavar="NAME", multiple=True, help="Show this profile's cluster."
)
@click.option(
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT",
    envvar="OTTLA_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="Show the cluster of these brokers, which need no login.",
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:8180", show_default=True, help="Where to serve."
)
@click.option(
    "--name", "names", metavar="HOST", multiple=True, help="Another name by which browsers ask for it."
)
@click.option(
    "--history",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="The file of two weeks of lag, ~/.local/state/ottla/console.sqlite by default.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Allow changes; each is written to ~/.local/state/ottla/console-audit.jsonl.",
)
def console(
    profiles: tuple[str, ...],
    bootstrap_server: str | None,
    listen: str,
    names: tuple[str, ...],
    history: str | None,
    allow_changes: bool,
) -> None:
    """Show clusters, topics and groups in a browser.

    Without options it shows the clusters of all profiles, or the broker on this machine if there are none.

    \b
    Examples:
      ottla console
      ottla console --bootstrap-server 127.0.0.1:9092
      ottla console --profile production --profile staging --listen 127.0.0.1:9000
    """
    from ottla.client.config import parse_bootstrap_servers
    from ottla.client.config_definition import SettingError
    from ottla.console.server import serve
    from ottla.console.settings import (
        LOOPBACK_NAMES,
        ConsoleRefused,
        ConsoleSettings,
        checked_host,
        state_path,
    )

    try:
        (address,) = parse_bootstrap_servers(listen)
        settings = ConsoleSettings(
            _clusters(profiles, bootstrap_server), checked_host(address.host), address.port,
            (*LOOPBACK_NAMES, *names), allows_changes=allow_changes,
            audit=state_path("console-audit.jsonl") if allow_changes else None,
            history=Path(history) if history else state_path("console.sqlite"),
        )  # fmt: skip
        serve(settings, lambda url: click.echo(f"Open {url} (Ctrl-C ends the console)."))
    except (ConsoleRefused, SettingError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _clusters(profiles: tuple[str, ...], bootstrap_server: str | None) -> tuple[ClusterSettings, ...]:
    from ottla.client.config import ClientConfig
    from ottla.client.profiles import read_profiles
    from ottla.console.settings import ClusterSettings, clusters_of_profiles

    if bootstrap_server is None and (profiles or read_profiles()):
        return clusters_of_profiles(profiles)
    direct = ClusterSettings("local", bootstrap_server or DEFAULT_BOOTSTRAP, ClientConfig)
    return (direct, *(clusters_of_profiles(profiles) if profiles else ()))
