"""Tests of streams without a broker and in virtual time.

`StreamsTest` runs an app or a processor on a log in memory. The code that runs is the product's own.
"""

from ottla.streams.testing.driver import StreamsTest
from ottla.streams.testing.records import DeadLetter, DriverMisused
from ottla.streams.testing.virtual_loop import NeverSettles

__all__ = ["DeadLetter", "DriverMisused", "NeverSettles", "StreamsTest"]
