"""Splitting a byte stream into frames, and finding plain Produce and Fetch requests in it.

The work is native (`_frames.pyx`); `_frames_py` is the same reader in plain Python, which tests hold it to.
"""

from ottla.broker.network._frames import FrameReader, PlainFetch, ProduceRun, ReceiveBuffer
from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame

__all__ = [
    "RECEIVE_BUFFER_BYTES",
    "SHORTEST_FRAME",
    "BadFrame",
    "FrameReader",
    "PlainFetch",
    "ProduceRun",
    "ReceiveBuffer",
]
