"""The part of a connection that every produced batch goes through, and the writing at the end of a turn.

It is native (`_wire.pyx`). Requests that it does not answer at once stay where they are for
`Connection.pump`, which does everything, also what is done here.
"""

from ottla.broker.network._wire import Tally, Wire, WriteRound

__all__ = ["Tally", "Wire", "WriteRound"]
