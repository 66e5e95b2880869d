"""For tests: ZooKeeper in memory, a server on a thread, a misbehaving proxy, a recorder of session states."""

from ottla.zookeeper.testing.background_loop import Background
from ottla.zookeeper.testing.memory import MemoryEnsemble, MemorySession, States
from ottla.zookeeper.testing.proxy import MisbehavingProxy

__all__ = ["Background", "MemoryEnsemble", "MemorySession", "MisbehavingProxy", "States"]
