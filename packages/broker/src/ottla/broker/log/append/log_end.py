"""The end of a log, where its active segment grows: the state that every append reads and writes.

It is native (`_log_end.pyx`), and appends plain batches of producers itself. For these it does what the
general path, `Log.append`, does: tests hold both to the same bytes.
"""

from ottla.broker.log.append._log_end import LogEnd

__all__ = ["LogEnd"]
