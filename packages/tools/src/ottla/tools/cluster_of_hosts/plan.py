"""The plan of a cluster over hosts: which processes each host has, and their configurations. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from ottla.tools.local_cluster.layout import ClusterLayout

OWN_KEYS: Final = ("broker.id", "broker.rack", "listeners", "log.dirs", "zookeeper.connect")
"""Keys that a cluster over hosts sets for each of its brokers."""
IDS_PER_HOST: Final = 100
_ENSEMBLE: Final = 3
_LAST_PORT: Final = 65_535
_LINE: Final = re.compile(
    r"(?P<target>(?:[\w.-]+@)?(?P<name>[A-Za-z0-9][\w.-]*))(?::(?P<port>\d{1,5}))?"
    r"(?P<options>(?:\s+\w+=\S+)*)"
)


class MalformedHosts(ValueError):
    """The file of hosts cannot be used; the message is one line that names the line and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host: where ssh reaches it, the address that clients and other hosts use, and its brokers' ids."""

    number: int
    target: str
    ssh_port: int | None
    address: str
    brokers: int = 1

    @property
    def broker_ids(self) -> range:
        """100 ids for each host, so that lines and brokers can be added without another id changing."""
        first = self.number * IDS_PER_HOST + 1
        return range(first, first + self.brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsPlan:
    """A cluster over hosts; `directory` is the same on each. The first three have a ZooKeeper server each."""

    hosts: tuple[Host, ...]
    directory: str
    base_port: int = 9092
    zookeeper_port: int = 2181
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in self.hosts:
            last = self.base_port + host.brokers - 1
            if last > _LAST_PORT:
                raise MalformedHosts(f"{host.address} would get port {last}: choose a smaller --base-port")
            if host in self.zookeeper_hosts and self.base_port - 3 < self.zookeeper_port <= last:
                raise MalformedHosts(
                    f"ports from {self.zookeeper_port} are for ZooKeeper and for brokers of {host.address}: "
                    "choose another --zookeeper-port"
                )

    @property
    def zookeeper_hosts(self) -> tuple[Host, ...]:
        """Three, or one where there are fewer than three hosts: two could do no more than one."""
        return self.hosts[: _ENSEMBLE if len(self.hosts) >= _ENSEMBLE else 1]

    @property
    def zookeeper_connect(self) -> str:
        """The addresses of all ZooKeeper servers."""
        return ",".join(f"{host.address}:{self.zookeeper_port}" for host in self.zookeeper_hosts)

    @property
    def bootstrap_servers(self) -> str:
        """The address of the first broker of each host."""
        return ",".join(f"{host.address}:{self.base_port}" for host in self.hosts)

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers."""
        return [broker_id for host in self.hosts for broker_id in host.broker_ids]

    def broker_port(self, host: Host, broker_id: int) -> int:
        """The port of a broker of a host."""
        return self.base_port + host.broker_ids.index(broker_id)

    def broker_settings(self, host: Host, broker_id: int, log_dir: str) -> dict[str, str]:
        """The `server.properties` of a broker. The rack is the host: replicas of a partition share none."""
        common = ClusterLayout(brokers=len(self.hosts)).common_settings()
        return {
            "broker.id": str(broker_id),
            "broker.id.generation.enable": "false",
            "broker.rack": host.address,
            "listeners": f"PLAINTEXT://{host.address}:{self.broker_port(host, broker_id)}",
            "log.dirs": log_dir,
            "zookeeper.connect": self.zookeeper_connect,
            **common,
            **self.settings,
        }

    def zookeeper_config(self, host: Host, home: str) -> str:
        """The `zoo.cfg` of a host's server; those of an ensemble talk on the next two ports."""
        port = self.zookeeper_port
        lines: dict[str, object] = {
            "dataDir": home, "clientPort": port, "clientPortAddress": host.address, "tickTime": 1_000,
            "initLimit": 20, "syncLimit": 5, "maxClientCnxns": 0, "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,isro", "autopurge.purgeInterval": 24,
        }  # fmt: skip
        if len(self.zookeeper_hosts) > 1:
            for host in self.zookeeper_hosts:
                lines[f"server.{host.number}"] = f"{host.address}:{port + 1}:{port + 2}"
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def encode(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the JSON."""
        values = json.loads(text)
        return cls(**values | {"hosts": tuple(Host(**host) for host in values["hosts"])})


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read lines of `[user@]host[:ssh port] [brokers=N] [address=A]`. Raises MalformedHosts."""
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := line.split("#", 1)[0].strip()):
            continue
        host = _host(words, number, len(hosts) + 1)
        if host.address in {host.address for host in hosts}:
            raise MalformedHosts(
                f"line {number}: {host.address} is named twice: use brokers=N for more brokers"
            )
        hosts.append(host)
    if not hosts:
        raise MalformedHosts("no host is named: write one line for each, [user@]host[:ssh port] [brokers=N]")
    return tuple(hosts)


def _host(words: str, line: int, number: int) -> Host:
    if not (found := _LINE.fullmatch(words)):
        raise MalformedHosts(f"line {line}: {words!r} is not [user@]host[:ssh port] [brokers=N] [address=A]")
    options = dict(_options(found["options"], line))
    return Host(
        number=number,
        target=found["target"],
        ssh_port=int(found["port"]) if found["port"] else None,
        address=options.get("address", found["name"]),
        brokers=_brokers(options.get("brokers", "1"), line),
    )


def _options(text: str, line: int) -> Iterator[tuple[str, str]]:
    for word in text.split():
        key, value = word.split("=", 1)
        if key not in ("brokers", "address"):
            raise MalformedHosts(f"line {line}: {key} is not an option of a host: use brokers=N or address=A")
        yield key, value


def _brokers(text: str, line: int) -> int:
    if not text.isdigit() or not 1 <= int(text) < IDS_PER_HOST:
        raise MalformedHosts(f"line {line}: brokers={text} is not from 1 to {IDS_PER_HOST - 1}")
    return int(text)
