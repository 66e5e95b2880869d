"""Settings of the console: its clusters, its address, and the names that browsers may use for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from ottla.client.config import ClientConfig
from ottla.client.config_definition import is_loopback
from ottla.client.profiles import Profile, ProfileError, profiles_path, read_profile, read_profiles
from ottla.console.clusters.applications import Place
from ottla.console.clusters.services import Service, check_services, connects_of, metrics_of, registry_of
from ottla.console.watch.rule_files import Rule, Targets

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8180
REQUEST_TIMEOUT_MS: Final = 5_000
"""How long the console waits for a broker's answer; a page shows the state before it meanwhile."""
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


_BASE_PATH: Final = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")


class ConsoleRefused(ValueError):
    """The console cannot start as asked; the message is one line that says what to change."""


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where a cluster keeps its znodes, and a file with the settings of ZooKeeper's clients, if any."""

    connect: str
    properties: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster that the console shows: its name, its brokers, and how to log in.

    `config` reads the secrets of a profile, so it is called when the cluster is first used.
    """

    name: str
    bootstrap_servers: str
    config: Callable[[], ClientConfig]
    registry: Service | None = None
    connects: tuple[Service, ...] = ()
    zookeeper: ZooKeeperSettings | None = None
    profile: str = ""
    """The profile that names it, as a user may look for it; "" for brokers that the command names."""
    is_secure: bool = False
    """Whether its profile asks for TLS or a login."""
    metrics: Service | None = None
    """The metrics pages of its brokers."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The clusters that the console serves, and its address.

    `names` are the names of hosts by which browsers may ask for it: a request under another name is refused,
    for it comes from a page of somebody else whose name leads here (DNS rebinding).
    """

    clusters: tuple[ClusterSettings, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    names: tuple[str, ...] = LOOPBACK_NAMES
    allows_changes: bool = False
    audit: Path | None = None
    """The file to which each change is written; None writes it to the log of the process only."""
    rules: tuple[Rule, ...] = ()
    targets: Targets = field(default_factory=Targets)
    """Where alerts are sent."""
    places: tuple[Place, ...] = ()
    """Where the status of streams apps and of pipelines is."""
    most_series: int = 20_000
    """The lines of /metrics."""
    history: Path | None = None
    """The file of what is collected; None keeps it in memory."""
    logins: Path | None = None
    """The file of logins; None serves everybody on this machine."""
    certificate: Path | None = None
    key: Path | None = None
    """Certificates and their key in PEM, for TLS; without a key it stands in the file of the certificates."""
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """The addresses of the proxies that bring all requests, over TLS to the browsers."""
    base_path: str = ""
    """The path below which the console is: "" or /kafka."""

    def cluster(self, name: str) -> ClusterSettings | None:
        """Return the settings of a cluster; None for an unknown name."""
        return next((cluster for cluster in self.clusters if cluster.name == name), None)


def state_path(name: str) -> Path:
    """Return a file of the console: `ottla/` and its name in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ottla" / name


def clusters_of_profiles(names: Iterable[str], path: Path | None = None) -> tuple[ClusterSettings, ...]:
    """Return the clusters of the named profiles, of all where none is named.

    Raises ProfileError, ConsoleRefused.
    """
    file = path or profiles_path()
    chosen = [read_profile(name, file) for name in names] or list(read_profiles(file).values())
    if not chosen:
        raise ConsoleRefused(
            f"{file} has no profile: name a broker with --bootstrap-server HOST:PORT, "
            "or add a profile with `ottla profile add`"
        )
    return tuple(_of_profile(profile) for profile in chosen)


def _of_profile(profile: Profile) -> ClusterSettings:
    servers = profile.settings.get("bootstrap_servers", profile.settings.get("bootstrap.servers"))
    if not isinstance(servers, str):
        raise ProfileError(f"profile {profile.name!r} of {profile.path} has no bootstrap_servers")
    protocol = profile.settings.get(
        "security_protocol", profile.settings.get("security.protocol", "PLAINTEXT")
    )
    profile.check()
    check_services(profile)
    return ClusterSettings(
        profile.name,
        servers,
        profile.config,
        registry_of(profile),
        connects_of(profile),
        zookeeper_of(profile),
        f"profile {profile.name} of {profile.path}",
        str(protocol).upper() != "PLAINTEXT",
        metrics_of(profile),
    )


def zookeeper_of(profile: Profile) -> ZooKeeperSettings | None:
    """Return where a profile says that the znodes are: its `zookeeper`, and `zookeeper_properties`."""
    given = {key.replace(".", "_"): value for key, value in profile.settings.items()}
    connect, properties = given.get("zookeeper"), given.get("zookeeper_properties")
    if connect is None:
        return None
    return ZooKeeperSettings(
        str(connect), None if properties is None else profile.path.parent / Path(str(properties)).expanduser()
    )


def checked(settings: ConsoleSettings) -> ConsoleSettings:
    """Return settings that can be served. Raises ConsoleRefused: other machines need TLS and a login."""
    host, is_encrypted = settings.host, bool(settings.certificate or settings.proxies)
    if not is_loopback(host) and not (is_encrypted and settings.logins):
        raise ConsoleRefused(
            f"the console at {host} can be reached from other machines: it needs --tls-certificate (or "
            "--behind-proxy) and --logins, or 127.0.0.1 and a tunnel (ssh -L)"
        )
    if settings.proxies and not settings.logins:
        raise ConsoleRefused("a proxy brings requests of other machines: it needs --logins")
    if not is_loopback(host) and set(settings.names) <= set(LOOPBACK_NAMES):
        raise ConsoleRefused(f"--name must give the name by which browsers ask for the console at {host}")
    if settings.base_path and not _BASE_PATH.fullmatch(settings.base_path):
        raise ConsoleRefused(f"--base-path {settings.base_path!r} must be a path such as /kafka")
    if settings.key and not settings.certificate:
        raise ConsoleRefused("--tls-key needs --tls-certificate")
    return settings


def proxy_networks(texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return addresses and networks of proxies. Raises ConsoleRefused."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise ConsoleRefused(f"--behind-proxy takes an address or a network: {error}") from None
