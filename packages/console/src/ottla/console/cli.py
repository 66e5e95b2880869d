"""`ottla console`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.client.commands import DEFAULT_BOOTSTRAP, chosen_profile, cluster_options
from ottla.console.logins.commands import token, user

_PROBE_MS = 1_000

if TYPE_CHECKING:
    from ottla.console.clusters.applications import Place
    from ottla.console.settings import ClusterSettings, ConsoleSettings


@click.group(invoke_without_command=True)
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
    "--schema-registry", "registry", metavar="URL",
    help="The schema registry of --bootstrap-server; profiles name theirs.",
)  # fmt: skip
@click.option(
    "--connect", "connects", metavar="[NAME=]URL", multiple=True,
    help="A Connect cluster of --bootstrap-server; profiles name theirs. Repeatable.",
)  # fmt: skip
@click.option(
    "--metrics", "pages", metavar="URL", multiple=True,
    help="A broker's metrics page, of --bootstrap-server; profiles name theirs. Repeatable.",
)  # fmt: skip
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
    "--alerts",
    "rules",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A TOML file with rules of alerts.",
)
@click.option(
    "--most-series",
    type=click.IntRange(100),
    default=20_000,
    show_default=True,
    help="The lines of /metrics; single partitions are left out first.",
)
@click.option(
    "--streams",
    "apps",
    metavar="[CLUSTER=]HOST:PORT",
    multiple=True,
    help="Show the streams app with this status page.",
)
@click.option(
    "--pipelines",
    metavar="[CLUSTER=]FOLDER|URL",
    multiple=True,
    help="Show the pipelines with a checkpoint in this folder, or the one with this status page.",
)
@click.option(
    "--status-token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The token of those status pages.",
)
@click.option(
    "--status-cafile",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The authority of their certificates.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Allow changes; each is written to ~/.local/state/ottla/console-audit.jsonl.",
)
@click.option(
    "--logins",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The file of users and roles, ~/.config/ottla/console.toml if that exists.",
)
@click.option(
    "--tls-certificate", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Serve by TLS: certificates in PEM.",
)  # fmt: skip
@click.option(
    "--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="The key of the certificate in PEM, if it has a file of its own.",
)  # fmt: skip
@click.option(
    "--behind-proxy", "proxies", metavar="ADDRESS", multiple=True,
    help="Answer this proxy only, which serves browsers by TLS; an address or a network.",
)  # fmt: skip
@click.option("--base-path", metavar="PATH", default="", help="The path of the console, such as /kafka.")
@click.option("--beside", is_flag=True, hidden=True)  # the program that started it holds its standard input
@click.pass_context
def console(
    context: click.Context,
    /,
    profiles: tuple[str, ...],
    bootstrap_server: str | None,
    registry: str | None,
    connects: tuple[str, ...],
    pages: tuple[str, ...],
    listen: str,
    names: tuple[str, ...],
    history: str | None,
    rules: str | None,
    most_series: int,
    apps: tuple[str, ...],
    pipelines: tuple[str, ...],
    status_token_file: Path | None,
    status_cafile: Path | None,
    allow_changes: bool,
    beside: bool,
    **access: Any,
) -> None:
    """Show clusters, topics and groups in a browser.

    Without options it shows the clusters of all profiles, and the broker at 127.0.0.1:9092 beside them.

    \b
    Examples:
      ottla console
      ottla console --bootstrap-server 127.0.0.1:9092
      ottla console --profile production --profile staging --listen 127.0.0.1:9000
      ottla console --alerts rules.toml --allow-changes
      ottla console --streams 127.0.0.1:9465 --pipelines checkpoints/
      ottla console --listen 0.0.0.0:8443 --name kafka.example.com --tls-certificate kafka.pem
    """
    if context.invoked_subcommand is not None:
        return
    from ottla.console.server import serve

    try:
        shown = clusters(profiles, bootstrap_server, registry, connects, pages)
        settings = _settings(shown, listen, names, history, rules, allow_changes, access)
        places = _places(apps, pipelines, status_token_file, status_cafile)
        settings = replace(settings, most_series=most_series, places=places)
        end = "it ends with the broker" if beside else "Ctrl-C ends the console"
        serve(settings, lambda url: click.echo(_opening(url, end, shown)), beside=beside)
    except ValueError as error:  # settings that are refused
        if beside:  # one line among those of the broker
            raise click.ClickException(f"the console does not start: {error}") from None
        raise click.UsageError(str(error)) from None


def _opening(url: str, end: str, shown: tuple[ClusterSettings, ...]) -> str:
    """Return the line that says where the console is, and one with the profiles that it took by itself."""
    line = f"Open {url} ({end})."
    if not any(cluster.profile for cluster in shown):
        return line
    named = [
        f"{'profile ' if cluster.profile else ''}{cluster.name} ({cluster.bootstrap_servers})"
        for cluster in shown
    ]
    return f"{line}\nIt shows {', '.join(named)}."


def _places(
    apps: tuple[str, ...], pipelines: tuple[str, ...], token_file: Path | None, cafile: Path | None
) -> tuple[Place, ...]:
    from ottla.console.clusters.applications import parse_place

    return (
        *(parse_place("streams", text, token_file, cafile) for text in apps),
        *(parse_place("pipelines", text, token_file, cafile) for text in pipelines),
    )


def _settings(
    clusters: tuple[ClusterSettings, ...],
    listen: str,
    names: tuple[str, ...],
    history: str | None,
    rules: str | None,
    allow_changes: bool,
    access: Mapping[str, Any],
) -> ConsoleSettings:
    from ottla.client.config import parse_bootstrap_servers
    from ottla.console.logins.files import default_path
    from ottla.console.settings import (
        LOOPBACK_NAMES,
        ConsoleSettings,
        checked,
        proxy_networks,
        state_path,
    )
    from ottla.console.watch.rule_files import Targets, read_rules, read_targets

    (address,) = parse_bootstrap_servers(listen)
    logins = Path(access["logins"]) if access["logins"] else default_path()
    settings = ConsoleSettings(
        clusters,
        address.host,
        address.port,
        (*LOOPBACK_NAMES, *names),
        allows_changes=allow_changes,
        audit=state_path("console-audit.jsonl") if allow_changes else None,
        rules=read_rules(Path(rules)) if rules else (),
        targets=read_targets(Path(rules)) if rules else Targets(),
        history=Path(history) if history else state_path("console.sqlite"),
        logins=logins if access["logins"] or logins.exists() else None,
        certificate=Path(access["tls_certificate"]) if access["tls_certificate"] else None,
        key=Path(access["tls_key"]) if access["tls_key"] else None,
        proxies=proxy_networks(access["proxies"]),
        base_path=access["base_path"],
    )
    return checked(settings)


def clusters(
    profiles: tuple[str, ...],
    bootstrap_server: str | None,
    registry: str | None = None,
    connects: tuple[str, ...] = (),
    pages: tuple[str, ...] = (),
) -> tuple[ClusterSettings, ...]:
    """Return the clusters of the command's options. Raises ProfileError, ConsoleRefused."""
    from ottla.client.config import ClientConfig
    from ottla.client.profiles import read_profiles
    from ottla.console.clusters.services import direct_metrics, direct_services
    from ottla.console.settings import ClusterSettings, ConsoleRefused, clusters_of_profiles

    is_direct = bootstrap_server is not None or not (profiles or read_profiles())
    if (registry or connects or pages) and not is_direct:
        raise ConsoleRefused(
            "--schema-registry, --connect and --metrics go with --bootstrap-server; profiles name theirs"
        )
    if not is_direct and profiles:
        return clusters_of_profiles(profiles)
    if not is_direct:
        return with_broker_here(clusters_of_profiles(()))
    chosen = clusters_of_profiles(profiles) if profiles else ()
    servers = bootstrap_server or DEFAULT_BOOTSTRAP
    name = servers if any(cluster.name == "local" for cluster in chosen) else "local"
    direct = ClusterSettings(
        name, servers, ClientConfig, *direct_services(registry, connects), metrics=direct_metrics(pages)
    )
    return (direct, *chosen)


def answers_in_clear(address: str) -> bool:
    """Whether a broker at an address of this machine answers without TLS and without a login."""
    import asyncio

    from ottla.client.config import ClientConfig, parse_bootstrap_servers
    from ottla.client.connection import Connection
    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

    async def ask() -> bool:
        config = ClientConfig(request_timeout_ms=_PROBE_MS, socket_connection_setup_timeout_ms=_PROBE_MS)
        try:
            async with Connection(parse_bootstrap_servers(address)[0], config) as connection:
                await connection.send(MetadataRequest(topics=[]), MetadataResponse)
        except (ClientError, KafkaError, OSError):
            return False
        return True

    return asyncio.run(ask())


def with_broker_here(
    shown: tuple[ClusterSettings, ...], is_there: Callable[[str], bool] = answers_in_clear
) -> tuple[ClusterSettings, ...]:
    """Return the clusters of the profiles, and the broker on this machine that none of them reaches.

    A profile outlives its broker: one that `ottla broker start --secure` wrote must not hide the broker that
    runs at its address, or beside it, today.
    """
    from ottla.client.config import ClientConfig
    from ottla.console.settings import ClusterSettings

    addresses = {DEFAULT_BOOTSTRAP, DEFAULT_BOOTSTRAP.replace("127.0.0.1", "localhost")}
    is_shown = any(
        addresses & set(cluster.bootstrap_servers.replace(" ", "").split(",")) and not cluster.is_secure
        for cluster in shown
    )
    if is_shown or not is_there(DEFAULT_BOOTSTRAP):
        return shown
    name = DEFAULT_BOOTSTRAP if any(cluster.name == "local" for cluster in shown) else "local"
    return (ClusterSettings(name, DEFAULT_BOOTSTRAP, ClientConfig), *shown)


console.add_command(user)
console.add_command(token)


@console.command()
@click.argument("folder", type=click.Path(file_okay=False), default=".")
def dashboard(folder: str) -> None:
    """Write a Grafana dashboard and Prometheus alert rules.

    They go into a folder, and use the metrics of /metrics.

    \b
    Examples:
      ottla console dashboard
      ottla console dashboard monitoring/
    """
    from importlib.resources import files

    Path(folder).mkdir(parents=True, exist_ok=True)
    for source in sorted(files("ottla.console").joinpath("dashboards").iterdir(), key=lambda file: file.name):
        target = Path(folder) / source.name
        target.write_bytes(source.read_bytes())
        click.echo(str(target))


@click.group()
def alerts() -> None:
    """Check rules of alerts: now, or over the hours that `ottla console` has kept."""


@alerts.command()
@click.argument("rules", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3_600),
    default=5.0,
    show_default=True,
    help="The time between two looks, for rules that compare them.",
)
@cluster_options
def check(rules: str, seconds: float, bootstrap_server: str, properties: str | None) -> None:
    """Check rules now, and print that which they find.

    The exit status is 1 if there is anything.

    A rule holds at once, whatever its for_minutes.

    \b
    Examples:
      ottla alerts check rules.toml
      ottla alerts check rules.toml --profile production --seconds 30
    """
    from ottla.client.commands import load_config, run
    from ottla.client.config_definition import SettingError
    from ottla.console.settings import ClusterSettings
    from ottla.console.watch.checking import check_now
    from ottla.console.watch.rule_files import read_rules

    try:
        chosen = read_rules(Path(rules))
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    config = load_config(properties)
    cluster = ClusterSettings(cluster_name(), bootstrap_server, lambda: config)
    found = run(lambda: check_now(cluster, chosen, seconds))
    for rule, finding in found:
        click.echo(f"{rule.name}: {finding.text}")
    if found:
        raise click.exceptions.Exit(1)
    click.echo(f"No rule of {len(chosen)} holds.")


@alerts.command("test")
@click.argument("rules", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--hours", type=click.FloatRange(0.1, 336), default=24.0, show_default=True, help="How far to look back."
)
@click.option(
    "--history",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="The file that the console writes, ~/.local/state/ottla/console.sqlite by default.",
)
def try_rules(rules: str, hours: float, history: str | None) -> None:
    """Print what rules would have raised in the last hours.

    And what they would have cleared. Nothing is sent.

    It reads the history that `ottla console` keeps, and asks no broker.

    \b
    Examples:
      ottla alerts test rules.toml
      ottla alerts test rules.toml --hours 168
    """
    from ottla.client.config_definition import SettingError
    from ottla.client.environment import now_ms
    from ottla.console.settings import state_path
    from ottla.console.watch.alerts import moment
    from ottla.console.watch.checking import NoHistory, events_of
    from ottla.console.watch.rule_files import read_rules

    path = Path(history) if history else state_path("console.sqlite")
    raised = 0
    try:
        chosen = read_rules(Path(rules))
        for event in events_of(path, chosen, now_ms() // 1_000 - int(hours * 3_600)):
            raised += event.kind == "raised"
            click.echo(f"{moment(event.at_s)}  {event.kind:7}  {event.cluster}  {event.rule}: {event.text}")
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    except NoHistory as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{len(chosen)} rules would have raised {raised} alerts in {hours:g} hours.")


def cluster_name() -> str:
    """Return the name of the cluster in rules: that of the profile, `local` without one."""
    profile, _ = chosen_profile()
    return "local" if profile is None else profile.name
