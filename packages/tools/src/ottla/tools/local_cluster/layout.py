"""The plan of a local cluster: its brokers, ports and files, as written in `cluster.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Self

from ottla.broker.server.secure_setup import prepare

FILE: Final = "cluster.json"
HOST: Final = "127.0.0.1"
_VERSION: Final = 1
_MOST_REPLICAS: Final = 3
_SESSION_TIMEOUT_MS: Final = "6000"

OWN_KEYS: Final = ("broker.id", "listeners", "log.dirs", "zookeeper.connect")
"""Keys that a cluster sets for each of its brokers."""


class ZooKeeperKind(Enum):
    """The kind of ZooKeeper server that coordinates the cluster."""

    APACHE = "apache"
    EMBEDDED = "embedded"


class MalformedLayout(ValueError):
    """`cluster.json` cannot be read; the message is one line with its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLayout:
    """A cluster of `brokers` with ids from 1; its ports follow each other from `base_port`.

    First the brokers' ports, then those of the ZooKeeper servers, then two more for each server of an
    ensemble, for the servers among each other.
    """

    brokers: int = 3
    base_port: int = 9092
    zookeeper: ZooKeeperKind = ZooKeeperKind.APACHE
    zookeeper_servers: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    """Whether brokers have TLS, logins and ACLs; their certificates and passwords are beside them."""

    @property
    def broker_ids(self) -> range:
        """The ids of all brokers."""
        return range(1, self.brokers + 1)

    @property
    def zookeeper_ids(self) -> range:
        """The numbers of all ZooKeeper servers."""
        return range(1, self.zookeeper_servers + 1)

    def broker_port(self, broker_id: int) -> int:
        """The port that clients connect to."""
        return self.base_port + broker_id - 1

    def zookeeper_port(self, server_id: int) -> int:
        """The port of a ZooKeeper server."""
        return self.base_port + self.brokers + server_id - 1

    def ensemble_ports(self, server_id: int) -> tuple[int, int]:
        """The ports for followers and for elections of a server in an ensemble."""
        first = self.base_port + self.brokers + self.zookeeper_servers + 2 * (server_id - 1)
        return first, first + 1

    @property
    def is_ensemble(self) -> bool:
        """Whether several ZooKeeper servers replicate the znodes."""
        return self.zookeeper_servers > 1

    def ports(self) -> Iterator[tuple[int, str]]:
        """Every port with the name of its process."""
        for broker_id in self.broker_ids:
            yield self.broker_port(broker_id), f"broker {broker_id}"
        for server_id in self.zookeeper_ids:
            yield self.zookeeper_port(server_id), "ZooKeeper"
            if self.is_ensemble:
                yield from ((port, "ZooKeeper") for port in self.ensemble_ports(server_id))

    def address(self, broker_id: int) -> str:
        """The address of one broker."""
        return f"{HOST}:{self.broker_port(broker_id)}"

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(map(self.address, self.broker_ids))

    @property
    def zookeeper_connect(self) -> str:
        """The addresses of all ZooKeeper servers."""
        return ",".join(f"{HOST}:{self.zookeeper_port(server_id)}" for server_id in self.zookeeper_ids)

    def broker_settings(self, broker_id: int, log_dir: Path) -> dict[str, str]:
        """The `server.properties` of a broker; the secret of an embedded server is read in its directory."""
        coordinator = str((log_dir.parent / "zookeeper").absolute())
        is_embedded = self.zookeeper is ZooKeeperKind.EMBEDDED
        return {
            **self._listener_settings(broker_id, log_dir.parent),
            "broker.id": str(broker_id),
            "log.dirs": str(log_dir),
            "zookeeper.connect": coordinator if is_embedded else self.zookeeper_connect,
            **self.common_settings(),
            **self.settings,
        }

    def _listener_settings(self, broker_id: int, directory: Path) -> dict[str, str]:
        if not self.secure:
            return {"listeners": f"PLAINTEXT://{self.address(broker_id)}"}
        return prepare(directory, []).settings(f"SASL_SSL://{self.address(broker_id)}")

    def common_settings(self) -> dict[str, str]:
        """Settings that all brokers share; internal and new topics have up to three replicas."""
        replicas = str(min(self.brokers, _MOST_REPLICAS))
        min_isr = str(min(max(self.brokers - 1, 1), _MOST_REPLICAS - 1))
        return {
            "zookeeper.session.timeout.ms": _SESSION_TIMEOUT_MS,
            "zookeeper.connection.timeout.ms": "30000",
            "controlled.shutdown.retry.backoff.ms": "500",
            "default.replication.factor": replicas,
            "min.insync.replicas": min_isr,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "12",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min_isr,
            "transaction.state.log.num.partitions": "12",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": min_isr,
            "share.coordinator.state.topic.num.partitions": "12",
            "group.initial.rebalance.delay.ms": "0",
        }

    def encode(self) -> str:
        """Return the JSON of `cluster.json`."""
        values = asdict(self) | {"zookeeper": self.zookeeper.value, "settings": dict(self.settings)}
        return json.dumps({"version": _VERSION, **values}, indent=2) + "\n"

    @classmethod
    def decode(cls, text: str, where: Path) -> Self:
        """Read the JSON. Raises MalformedLayout."""
        try:
            values = json.loads(text)
            if values.pop("version") != _VERSION:
                raise MalformedLayout(f"{where} is of a newer Ottla: use that one")
            kind = ZooKeeperKind(values.pop("zookeeper"))
            return cls(
                brokers=int(values["brokers"]),
                base_port=int(values["base_port"]),
                zookeeper=kind,
                zookeeper_servers=int(values["zookeeper_servers"]),
                settings={str(key): str(value) for key, value in values["settings"].items()},
                secure=values.get("secure") is True,
            )
        except MalformedLayout:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedLayout(
                f"{where} cannot be read ({error!r}): restore it, or choose another --data-dir"
            ) from None


def read_layout(directory: Path) -> ClusterLayout | None:
    """Return the plan of the cluster in a directory, None for a directory without. Raises MalformedLayout."""
    path = directory / FILE
    return ClusterLayout.decode(path.read_text(), path) if path.is_file() else None
