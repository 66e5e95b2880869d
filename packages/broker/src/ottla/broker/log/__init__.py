"""Partitions on disk: segments, indexes, recovery, retention, and the log directories of one broker.

`log.Log` is one partition, `registry.LogRegistry` holds all logs of a broker. They live on the event loop;
what may block for long (fsync, recovery, deletion) is split off so that it runs on a thread. The disk is
reached through `files` alone.
"""

__all__: list[str] = []
