"""Splitting a byte stream into frames.

The work is native (`_frames.pyx`); `_frames_py` is the same reader in plain Python, which tests hold it to.
Fast paths take plain requests out of the native reader's stream (`requests.fast_path.ReceivedBytes`).
"""

from ottla.broker.network._frames import FrameReader, ReceiveBuffer
from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame, TooLarge

__all__ = [
    "RECEIVE_BUFFER_BYTES",
    "SHORTEST_FRAME",
    "BadFrame",
    "FrameReader",
    "ReceiveBuffer",
    "TooLarge",
]
