"""A ZooKeeper server in this process: for development, tests and single-node brokers.

It speaks ZooKeeper's wire protocol and, given a directory, keeps a durable log. It is not an ensemble: a
cluster uses a real ZooKeeper.
"""

from ottla.zookeeper.embedded.request_processor import Limits
from ottla.zookeeper.embedded.server import EmbeddedCoordinator
from ottla.zookeeper.embedded.transaction_log import DamagedJournal, DirectoryInUse, Fsync

__all__ = ["DamagedJournal", "DirectoryInUse", "EmbeddedCoordinator", "Fsync", "Limits"]
