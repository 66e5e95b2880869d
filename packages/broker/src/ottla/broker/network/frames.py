"""Splitting a byte stream into frames. The compiled reader is used where it was built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame

if TYPE_CHECKING:
    from ottla.broker.network._frames_py import FrameReader, ReceiveBuffer
else:
    try:
        from ottla.broker.network._frames import FrameReader, ReceiveBuffer
    except ImportError:
        from ottla.broker.network._frames_py import FrameReader, ReceiveBuffer

__all__ = ["RECEIVE_BUFFER_BYTES", "SHORTEST_FRAME", "BadFrame", "FrameReader", "ReceiveBuffer"]
