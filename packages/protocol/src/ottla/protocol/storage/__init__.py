"""The byte layouts of Kafka's data directory, as pure functions between bytes and values.

`segments` names files and directories and finds entries in a log file, `indexes` has the three index entries,
`checkpoints` the small text files, `producer_snapshot` the producers' state, `properties` Java's properties
format. Bytes that do not follow their format raise `CorruptStorage`.
"""

from ottla.protocol.storage.errors import CorruptStorage

__all__ = ["CorruptStorage"]
