"""The coordinator that a broker without `zookeeper.connect` brings: its directory, secret and failures."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.cluster.inter_broker_access import is_own_host
from ottla.broker.cluster.registration import StartupRefused
from ottla.zookeeper import paths
from ottla.zookeeper.embedded import DamagedJournal, EmbeddedCoordinator
from ottla.zookeeper.embedded.access import (
    DIRECTORY,
    Access,
    credentials,
    read_or_make_secret,
    write_address,
)
from ottla.zookeeper.embedded.transaction_log import JOURNAL_FILE, read_tree
from ottla.zookeeper.session import NoNode
from ottla.zookeeper.znodes import BrokerRegistration, ClusterId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AsyncExitStack

    from ottla.zookeeper.session import Operations


class CoordinatorFailed(RuntimeError):
    """The broker's own coordinator has ended; the message is one line that says what to do."""


async def start(
    stack: AsyncExitStack,
    log_dirs: Sequence[Path],
    cluster_id: str | None,
    failed: Callable[[CoordinatorFailed], object],
) -> Access:
    """Start the coordinator of the log directories, which stops with `stack`, and return the access to it.

    It asks for a secret, which only this user can read. `cluster_id` is the cluster that the directories
    belong to, None for new ones. `failed` is called when its disk fails. Raises StartupRefused,
    DamagedJournal or OSError.
    """
    directory = coordinator_directory(log_dirs, cluster_id)
    secret = read_or_make_secret(directory)

    def ended(error: OSError) -> None:
        failed(
            CoordinatorFailed(
                f"{directory} cannot be written ({error}), and without it there is no cluster: "
                "replace the disk and start the broker again"
            )
        )

    coordinator = await stack.enter_async_context(EmbeddedCoordinator(directory, secret=secret, failed=ended))
    write_address(directory, coordinator.connect_string)
    return Access(coordinator.connect_string, credentials(secret))


def coordinator_directory(log_dirs: Sequence[Path], cluster_id: str | None) -> Path:
    """Return the coordinator's directory: where one is already, else in the first of new `log.dirs`.

    Raises StartupRefused when directories of a known cluster hold none, or several that could be its.
    """
    present = [log_dir / DIRECTORY for log_dir in log_dirs if (log_dir / DIRECTORY / JOURNAL_FILE).exists()]
    if not present and cluster_id is not None:
        raise StartupRefused(
            f"log.dirs belongs to cluster {cluster_id}, but the cluster's coordinator is in none of its "
            f"directories: add the one that has `{DIRECTORY}`, set zookeeper.connect, or make the topics "
            "anew with `ottla zookeeper rebuild`"
        )
    if len(present) > 1:
        present = [path for path in present if _cluster_in(path) == cluster_id] or present
    if len(present) > 1:
        raise StartupRefused(
            f"several of log.dirs hold a coordinator ({', '.join(map(str, present))}): "
            "move those away that are not this cluster's"
        )
    return present[0] if present else log_dirs[0] / DIRECTORY


async def check_brokers_are_here(
    operations: Operations, but: int, is_here: Callable[[str], Awaitable[bool]] = is_own_host
) -> None:
    """Raise StartupRefused where a registered broker, `but` one, is not on the machine of its coordinator.

    It reaches the coordinator through something that forwards the port, without TLS: what a secured cluster
    keeps there, users and keys of tokens, would cross the network in clear.
    """
    for name in await operations.children(paths.BROKER_IDS):
        if not name.isdigit() or int(name) == but:
            continue
        with suppress(NoNode):  # it has gone since
            data, _ = await operations.get(paths.broker(int(name)))
            for endpoint in BrokerRegistration.decode(int(name), data).endpoints:
                if not await is_here(endpoint.host):
                    raise StartupRefused(
                        f"broker {name} is at {endpoint.host}, on another machine, and the embedded "
                        "coordinator has no TLS: set zookeeper.connect to Apache's ZooKeeper on all brokers"
                    )


def _cluster_in(directory: Path) -> str | None:
    """Return the id of the cluster in a coordinator's files, None when it has none or cannot be read."""
    try:
        node = read_tree(directory).nodes.get(paths.CLUSTER_ID)
    except (DamagedJournal, OSError):
        return None
    return None if node is None else ClusterId.decode(node.data).id
