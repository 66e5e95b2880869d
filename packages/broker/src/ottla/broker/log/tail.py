"""The end of a log: the state that every append reads and writes, in one small object.

It is native (`_tail.pyx`), and appends plain batches of producers itself. For these it does what the general
path, `Log.append`, does: tests hold both to the same bytes.
"""

from ottla.broker.log._tail import Tail

__all__ = ["Tail"]
