"""Splitting a byte stream into frames.

The work is native (`_frames.pyx`); `_frames_py` is the same reader in plain Python, which tests hold it to.
The native reader also takes plain Produce and Fetch requests out of the stream, by `ottla.protocol.native`.
"""

from ottla.broker.network._frames import FrameReader, ReceiveBuffer
from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame, TooLarge
from ottla.protocol.native import PlainFetch, ProduceRun

__all__ = [
    "RECEIVE_BUFFER_BYTES",
    "SHORTEST_FRAME",
    "BadFrame",
    "FrameReader",
    "PlainFetch",
    "ProduceRun",
    "ReceiveBuffer",
    "TooLarge",
]
