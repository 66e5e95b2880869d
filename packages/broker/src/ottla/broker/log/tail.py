"""The state that every append reads and writes, in one small object.

It is native (`_tail.pyx`), with an append of its own for what producers usually send. That one does nothing
that the general path, `Log.append`, would do otherwise: tests hold them to each other, byte for byte.
"""

from ottla.broker.log._tail import Tail

__all__ = ["Tail"]
