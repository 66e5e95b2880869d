"""xxHash32, for the one byte of an lz4 frame header that must be rewritten in message sets of magic 0."""

import struct

__all__ = ["xxh32"]

_MASK = 0xFFFFFFFF
_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


def _stripes(data: bytes, seed: int) -> int:
    lanes = [seed + _P1 + _P2 & _MASK, seed + _P2 & _MASK, seed & _MASK, seed - _P1 & _MASK]
    for words in struct.iter_unpack("<4I", data):
        lanes = [
            _rotate(lane + word * _P2 & _MASK, 13) * _P1 & _MASK
            for lane, word in zip(lanes, words, strict=True)
        ]
    return sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK


def xxh32(data: bytes, seed: int = 0) -> int:
    """The 32-bit xxHash of `data`."""
    whole = len(data) & ~15
    words = whole + (len(data) - whole & ~3)
    value = _stripes(data[:whole], seed) if whole else seed + _P5 & _MASK
    value = value + len(data) & _MASK
    for (word,) in struct.iter_unpack("<I", data[whole:words]):
        value = _rotate(value + word * _P3 & _MASK, 17) * _P4 & _MASK
    for byte in data[words:]:
        value = _rotate(value + byte * _P5 & _MASK, 11) * _P1 & _MASK
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16
