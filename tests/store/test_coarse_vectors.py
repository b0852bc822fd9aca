"""The nearest vectors in SQLite: the ones that a coarse copy leaves out are never among them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.store.sqlite.vectors import CoarselyNearest, Nearest, make_coarse

KINDS: dict[str, Callable[[Any, int, int], Any]] = {
    "any direction": lambda dice, count, size: dice.standard_normal((count, size)),
    "one number rules": lambda dice, count, size: dice.standard_normal((count, size)) + 50 * np.eye(size)[0],
    "hardly any apart": lambda dice, count, size: 1 + 1e-4 * dice.standard_normal((count, size)),
    "twice the same": lambda dice, count, size: np.repeat(dice.standard_normal((count // 2, size)), 2, axis=0),
    "mostly zeros": lambda dice, count, size: np.where(
        dice.random((count, size)) < 0.05, dice.standard_normal((count, size)), 0) + 1e-30,
    "all magnitudes": lambda dice, count, size: np.exp(20 * dice.standard_normal((count, size))),
    "signs alone": lambda dice, count, size: np.sign(dice.standard_normal((count, size))),
    "below normal floats": lambda dice, count, size: np.where(
        np.arange(size) < 1, 1, 1e-44 * dice.random((count, size))),
}  # fmt: skip


@pytest.mark.parametrize("size", [2, 63, 64, 65, 384])
@pytest.mark.parametrize("kind", KINDS)
def test_the_coarse_copies_of_the_nearest_vectors_are_chosen(kind: str, size: int) -> None:
    dice = np.random.default_rng(size)
    made = KINDS[kind](dice, 400, size)
    vectors = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype("<f4")
    coarse = make_coarse([one.tobytes() for one in vectors])
    assert len(coarse[0]) <= 4 + size + 63 + 4 * (size + 63) // 64
    with sqlite3.connect(":memory:") as connection:
        connection.create_aggregate("near", 4, CoarselyNearest)  # type: ignore[arg-type]  # stub wants ints
        connection.create_aggregate("nearest", 4, Nearest)  # type: ignore[arg-type]  # stub wants ints
        connection.execute("create table v (docid integer primary key, vector blob, coarse blob)")
        rows = [(number, one.tobytes(), coarse[number]) for number, one in enumerate(vectors)]
        connection.executemany("insert into v values (?, ?, ?)", rows)
        for number in (0, 7, 399):
            wanted = vectors[number].astype("f8") + dice.standard_normal(size) / 10
            wanted /= np.linalg.norm(wanted)
            scores = vectors.astype("f8") @ wanted
            args = (wanted.astype("<f4").tobytes(), 10)
            for text in ("near(docid, coarse, ?, ?)", "nearest(docid, vector, ?, ?)"):
                ((told,),) = connection.execute(f"select {text} from v", args)
                chosen = set(json.loads(told))
                best = {*np.flatnonzero(scores >= np.sort(scores)[-10]).tolist()}
                assert best <= chosen, (text, len(chosen))
                if kind == "any direction" and size == 384:
                    assert len(chosen) < 60, "most are left out"
    connection.close()
