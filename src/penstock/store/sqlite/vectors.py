"""The nearest vectors of a table in SQLite, by numpy: first by coarse copies, then by the vectors themselves.

A coarse copy is a quarter as long: 8 bits a number, with a scale for each block, and the length of the remainder. A
score by it differs from the real one by no more than that length (Cauchy and Schwarz). So only the vectors are read
that may be among the nearest, and none of these is missed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_VECTORS_AT_ONCE = 128  # so that they stay in the processor's cache
_NEAR = 1e-5  # scores of 32-bit floats differ by less from the exact ones
_BLOCK = 64  # numbers with one scale: one large number makes few others coarse
_MOST = 127
_ABOVE = 1 + 1e-6  # rounds a 32-bit float up


def make_coarse(packed: Sequence[bytes]) -> list[bytes]:
    """Coarse copies of vectors of one length: the length of the remainder, the scales, and the numbers."""
    import numpy as np  # noqa: PLC0415 - only programs with vectors need it

    vectors = np.frombuffer(b"".join(packed), "<f4").reshape(len(packed), -1)
    blocks = np.pad(vectors, ((0, 0), (0, -vectors.shape[1] % _BLOCK))).reshape(len(packed), -1, _BLOCK)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(_MOST)
    scales[scales == 0] = 1
    numbers = np.clip(np.rint(blocks / scales), -_MOST, _MOST).astype("i1")
    rest = blocks - numbers * scales.astype("f8")
    lengths = np.sqrt(np.square(rest).sum(axis=(1, 2))) * _ABOVE
    head = np.column_stack([lengths, scales[:, :, 0]]).astype("<f4")
    return [one.tobytes() + row.tobytes() for one, row in zip(head, numbers, strict=True)]


class Nearest:
    """Finds the vectors with the greatest products with another one; as JSON their numbers, with ties and near ones."""

    def __init__(self) -> None:
        self._numbers = list[int]()
        self._piece = list[bytes]()
        self._least, self._most = list[Any](), list[Any]()  # arrays of the least and the greatest scores that may be
        self._wanted = (b"", 0)

    def step(self, number: int, vector: bytes, wanted: bytes, count: int) -> None:
        """Add one."""
        self._numbers.append(number)
        self._piece.append(vector)
        if len(self._piece) == _VECTORS_AT_ONCE:
            self._multiply(wanted)
        self._wanted = wanted, count

    def finalize(self) -> str:
        """The numbers as JSON."""
        wanted, count = self._wanted
        if len(self._numbers) <= count:
            return json.dumps(self._numbers)
        import numpy as np  # noqa: PLC0415 - only programs with vectors need it

        self._multiply(wanted)
        bound = np.partition(np.concatenate(self._least), -count)[-count] - _NEAR
        return json.dumps([self._numbers[place] for place in np.flatnonzero(np.concatenate(self._most) >= bound)])

    def _multiply(self, wanted: bytes) -> None:
        import numpy as np  # noqa: PLC0415 - only programs with vectors need it

        if self._piece:
            piece = np.frombuffer(b"".join(self._piece), "u1").reshape(len(self._piece), -1)
            scores, errors = self._score(piece, np.frombuffer(wanted, "<f4"))
            self._least.append(scores - errors)
            self._most.append(scores + errors)
            self._piece.clear()

    def _score(self, piece: Any, wanted: Any) -> tuple[Any, Any]:
        return piece.view("<f4") @ wanted, 0


class CoarselyNearest(Nearest):
    """Finds the vectors that may be the nearest, by their coarse copies."""

    def _score(self, piece: Any, wanted: Any) -> tuple[Any, Any]:
        import numpy as np  # noqa: PLC0415 - only programs with vectors need it

        blocks = -(-len(wanted) // _BLOCK)
        start = 4 * (1 + blocks)
        head = piece[:, :start].copy().view("<f4")
        numbers = piece[:, start:].view("i1").astype("f4").reshape(len(piece), blocks, _BLOCK)
        wanted = np.pad(wanted, (0, blocks * _BLOCK - len(wanted))).reshape(blocks, _BLOCK, 1)
        scores = np.matmul(numbers.transpose(1, 0, 2), wanted)[:, :, 0].T
        return (scores * head[:, 1:]).sum(axis=1), head[:, 0]
