"""A ZooKeeper for one machine, in this process: for development, tests and single-node brokers.

It speaks ZooKeeper's wire protocol, keeps a durable log when given a directory, and has no
ensemble behind it. A cluster uses a real ZooKeeper.
"""

from ottla.zookeeper.embedded.journal import DamagedJournal, DirectoryInUse, Fsync
from ottla.zookeeper.embedded.server import EmbeddedCoordinator
from ottla.zookeeper.embedded.service import Limits

__all__ = ["DamagedJournal", "DirectoryInUse", "EmbeddedCoordinator", "Fsync", "Limits"]
