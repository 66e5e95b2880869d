"""Splitting a byte stream into frames, and finding runs of plain Produce requests in it.

The work is native (`_frames.pyx`); `_frames_py` is the same reader in plain Python, which tests hold it to.
"""

from ottla.broker.network._frames import FrameReader, ProduceRun, ReceiveBuffer, Tally
from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame

__all__ = [
    "RECEIVE_BUFFER_BYTES",
    "SHORTEST_FRAME",
    "BadFrame",
    "FrameReader",
    "ProduceRun",
    "ReceiveBuffer",
    "Tally",
]
