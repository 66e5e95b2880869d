"""`ottla zookeeper rebuild`: rebuild the files of a coordinator from the log directories."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

if TYPE_CHECKING:
    from ottla.broker.log.files.file_system import Files
    from ottla.broker.log.hosting.directories import LogDirectory
    from ottla.tools.rebuild import FoundPartition, Rebuilt
    from ottla.zookeeper.embedded.data_tree import Tree
    from ottla.zookeeper.embedded.salvage import Salvage

ASIDE: Final = "before-rebuild"


@click.command(
    epilog="""\b
Examples:
  ottla zookeeper rebuild ./data
  ottla zookeeper rebuild /disk1/data /disk2/data
  ottla zookeeper rebuild --coordinator-dir /var/lib/zookeeper /disk1/broker1 /disk1/broker2
"""
)
@click.argument(
    "log_dirs", metavar="LOG_DIR...", nargs=-1, required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--coordinator-dir", type=click.Path(file_okay=False, path_type=Path),
    help="Directory of `ottla zookeeper start --embedded`. Default: the one in LOG_DIR.",
)  # fmt: skip
def rebuild(log_dirs: tuple[Path, ...], coordinator_dir: Path | None) -> None:
    """Rebuild the topics of a damaged embedded coordinator.

    Its files were damaged or lost.

    Give every directory of log.dirs, of all brokers; they must be stopped. Topics, partitions, topic ids and
    the cluster's id come from the directories, everything else from what can still be read of the
    coordinator's files, which are kept aside. What is not known is said; topics whose settings are lost keep
    everything.
    """
    from ottla.broker.cluster.registration import StartupRefused
    from ottla.broker.log.files.file_system import DiskFiles
    from ottla.broker.log.hosting.directories import LogDirectories, LogDirectoryRefused
    from ottla.tools.rebuild import TopicIdsDiffer
    from ottla.zookeeper.errors import ZooKeeperError

    directories = LogDirectories(DiskFiles())
    try:
        directories.lock(map(str, log_dirs))
        try:
            _rebuild(list(directories), coordinator_dir)
        finally:
            directories.unlock()
    except (LogDirectoryRefused, StartupRefused, TopicIdsDiffer, ZooKeeperError, OSError) as error:
        _fail(str(error))


def _rebuild(directories: list[LogDirectory], coordinator_dir: Path | None) -> None:
    from ottla.broker.cluster.placement import new_id
    from ottla.broker.runtime.environment import Environment
    from ottla.tools.rebuild import rebuild as rebuilt_from
    from ottla.zookeeper.embedded.salvage import salvage
    from ottla.zookeeper.embedded.transaction_log import TransactionLog
    from ottla.zookeeper.environment import now_ms

    chance = Environment().random
    cluster_id = _cluster_of(directories)
    place = coordinator_dir or _coordinator_of(directories, cluster_id)
    found = list(_partitions(directories))
    with TransactionLog(place):  # its lock: nobody may run on it
        kept = salvage(place)
        _check_cluster(kept, cluster_id, place)
        made = rebuilt_from(
            found,
            {path: znode.data for path, znode in kept.znodes.items()},
            cluster_id,
            is_whole=not kept.losses,
            new_id=lambda: new_id(chance),
            now_ms=now_ms(),
        )
        aside = _replace(place, _tree_of(made, kept))
    _report(made, kept, place, aside, len({replica.topic for replica in found}), len(found))


# ---- reading


def _cluster_of(directories: list[LogDirectory]) -> str:
    unowned = [
        directory.path
        for directory in directories
        if directory.meta is None or directory.meta.broker_id is None
    ]
    if unowned:
        _fail(
            f"{unowned[0]} has no meta.properties with a broker.id: write the file "
            "(version=0, broker.id=..., cluster.id=...)"
        )
    clusters = {directory.meta.cluster_id for directory in directories if directory.meta is not None}
    if len(clusters) != 1 or None in clusters:
        _fail(f"the directories belong to several clusters, or to none: {', '.join(map(str, clusters))}")
    return str(clusters.pop())


def _coordinator_of(directories: list[LogDirectory], cluster_id: str) -> Path:
    from ottla.broker.cluster.own_coordinator import coordinator_directory
    from ottla.zookeeper.embedded.access import DIRECTORY

    log_dirs = [directory.path for directory in directories]
    present = [log_dir for log_dir in log_dirs if (log_dir / DIRECTORY).is_dir()]
    return (
        coordinator_directory(present, cluster_id)
        if len(present) > 1
        else (present or log_dirs)[0] / DIRECTORY
    )


def _check_cluster(kept: Salvage, cluster_id: str, place: Path) -> None:
    from ottla.zookeeper import paths
    from ottla.zookeeper.znodes import ClusterId

    znode = kept.znodes.get(paths.CLUSTER_ID)
    if znode is not None and (other := ClusterId.decode(znode.data).id) != cluster_id:
        _fail(
            f"{place} is the coordinator of cluster {other}, and the log directories belong to {cluster_id}"
        )


def _partitions(directories: list[LogDirectory]) -> Iterator[FoundPartition]:
    from ottla.broker.log.files.checkpoints import read_leader_epochs, read_offsets, read_topic_id
    from ottla.protocol.storage import CorruptStorage
    from ottla.protocol.storage.checkpoints import CLEANER_OFFSETS_FILE
    from ottla.protocol.storage.segments import DirectoryKind, parse_directory_name
    from ottla.tools.rebuild import FoundPartition, is_topic_name

    for directory in directories:
        files = directory.files
        assert directory.meta is not None
        assert directory.meta.broker_id is not None
        compacted = read_offsets(files, directory.path / CLEANER_OFFSETS_FILE) or {}
        for name in sorted(files.list(directory.path)):
            path = directory.path / name
            try:
                parsed = parse_directory_name(name)
            except CorruptStorage:
                continue
            tp = parsed.topic_partition
            if parsed.kind is not DirectoryKind.CURRENT or not path.is_dir() or not is_topic_name(tp.topic):
                continue
            epochs = read_leader_epochs(files, path)
            yield FoundPartition(
                tp.topic,
                tp.partition,
                directory.meta.broker_id,
                read_topic_id(files, path),
                max((entry.epoch for entry in epochs or ()), default=0),
                _log_end(files, path),
                tp in compacted,
            )


def _log_end(files: Files, directory: Path) -> int:
    """Return the offset behind the last whole batch of a partition's last segment."""
    from ottla.protocol.storage import CorruptStorage
    from ottla.protocol.storage.segments import SegmentFile, iter_headers, parse_file_name

    segments = [
        (parsed.base_offset, directory / name)
        for name in files.list(directory)
        if (parsed := parse_file_name(name)) is not None
        and parsed.kind is SegmentFile.LOG
        and not parsed.suffix
    ]
    if not segments:
        return 0
    end, path = max(segments)
    file = files.open(path)  # closed when it is forgotten

    def read_at(position: int, size: int) -> bytes:
        return file.pread(size, position)

    with suppress(CorruptStorage):
        for _, header in iter_headers(read_at, 0, files.size(path)):
            end = header.last_offset + 1
    return end


# ---- writing


def _tree_of(made: Rebuilt, kept: Salvage) -> Tree:
    """Return a tree of the znodes; those that were kept keep their versions, which count some things."""
    from ottla.zookeeper.embedded.data_tree import Node, Tree
    from ottla.zookeeper.paths import name_of, parent_of
    from ottla.zookeeper.session import NULL, OPEN_ACL

    tree = Tree()
    tree.zxid = 1
    lineages = {parent for path in made.znodes for parent in _parents(path)}
    for path in sorted({*made.znodes, *lineages} - tree.nodes.keys()):
        node = Node(made.znodes.get(path, NULL), OPEN_ACL, czxid=1, mzxid=1, pzxid=1)
        if (before := kept.znodes.get(path)) is not None:
            node.version = before.version
        tree.nodes[path] = node
        tree.nodes[parent_of(path)].children.add(name_of(path))
        tree.nodes[parent_of(path)].cversion += 1
    return tree


def _parents(path: str) -> Iterator[str]:
    from ottla.zookeeper.paths import parent_of

    while (path := parent_of(path)) != "/":
        yield path


def _replace(place: Path, tree: Tree) -> Path:
    """Write the tree into a new directory in the place of the old one; return where that is kept."""
    from ottla.broker.log.files.file_system import DiskFiles
    from ottla.zookeeper.embedded.transaction_log import TransactionLog, encode_snapshot

    new = place.with_name(f"{place.name}.rebuilt")
    if new.exists():
        DiskFiles().remove_tree(new)
    with TransactionLog(new) as journal:
        journal.recover()
        journal.compact(tree.zxid, encode_snapshot(tree))
    aside, number = place.with_name(f"{place.name}.{ASIDE}"), 1
    while aside.exists():
        number += 1
        aside = place.with_name(f"{place.name}.{ASIDE}.{number}")
    place.rename(aside)
    new.rename(place)
    return aside


def _report(made: Rebuilt, kept: Salvage, place: Path, aside: Path, topics: int, partitions: int) -> None:
    for line in (*kept.losses, *made.report):
        click.echo(line)
    if kept.losses:
        click.echo(
            "not known: what the unreadable parts changed in settings, quotas and offsets in ZooKeeper, and "
            "which deletions of topics were under way"
        )
    click.echo(f"{place}: {topics} topics with {partitions} replicas; the old files are in {aside}")


def _fail(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(1)
