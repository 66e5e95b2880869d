"""The byte layouts of Kafka's data directory, as pure functions between bytes and values.

`segments` names files and directories and finds entries in a log file, `indexes` has the three index entries
and the producers' state, `checkpoints` the small text files, `properties` Java's properties format. Bytes
that do not follow their format raise `CorruptStorage`.
"""

__all__ = ["CorruptStorage"]


class CorruptStorage(ValueError):
    """A file of the data directory violates its format.

    `position` is the byte where it goes wrong, where there is one; the caller knows the file.
    """

    def __init__(self, problem: str, position: int | None = None) -> None:
        super().__init__(problem)
        self.position = position
