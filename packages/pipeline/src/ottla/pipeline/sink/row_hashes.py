"""Hashes of all rows of a batch at once. Pure.

Multilinear hashing: the sum of 32-bit words times secret 64-bit numbers, of which the upper half is the hash.
Two different rows collide in one sum with a probability of 2**-32 (Lemire and Kaser, "Strongly universal
string hashing is fast"), and in all four with 2**-128, even for rows chosen by an attacker: the numbers are
derived from the query id. For a long row, BLAKE2 is cheaper than that many numbers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ottla.pipeline.sink.row_bytes import WORD, row_bytes

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SIZE = 16
"""Bytes of a hash."""

_SUMS = 4
_LONG = 1_024
"""Rows with more bytes are long."""


class RowHashes:
    """The hashes of rows under a key; equal rows have equal hashes in every process and order."""

    def __init__(self, key: bytes) -> None:
        import numpy as np

        numbers = _SUMS * (_LONG // WORD + 1)
        drawn = hashlib.shake_128(key).digest(numbers * 8)
        self._numbers = np.frombuffer(drawn, "<u8").reshape(_SUMS, -1)
        self._key = hashlib.blake2b(key).digest()

    def of(self, rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return the hashes of the rows, `SIZE` bytes each."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = row_bytes(rows)
        lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        is_long = lengths > _LONG
        found = np.empty((len(texts), SIZE), np.uint8)
        found[~is_long] = self._short(texts.filter(pa.array(~is_long)) if is_long.any() else texts)
        if is_long.any():
            found[is_long] = self._long(texts.filter(pa.array(is_long)))
        return found

    def _short(self, texts: pa.Array) -> np.ndarray[Any, Any]:
        import numpy as np

        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1] // WORD
        words, sizes = np.frombuffer(data, "<u4"), np.diff(bounds)
        found = np.empty((len(texts), _SUMS), "<u4")
        for size in np.unique(sizes):  # one iteration for each distinct length, at most _LONG // WORD
            rows = np.flatnonzero(sizes == size)
            each = words[bounds[rows][:, None] + np.arange(size)].astype(np.uint64)
            sums = np.einsum("ij,kj->ik", each, self._numbers[:, 1 : size + 1]) + self._numbers[:, 0]
            found[rows] = sums >> np.uint64(32)
        return found.view(np.uint8)

    def _long(self, texts: pa.Array) -> np.ndarray[Any, Any]:
        import numpy as np

        rows = texts.to_pylist()
        found = b"".join(hashlib.blake2b(row, digest_size=SIZE, key=self._key).digest() for row in rows)
        return np.frombuffer(found, np.uint8).reshape(-1, SIZE)
