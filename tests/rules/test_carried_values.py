"""Any annotation, any value of it: what is accepted comes back equal and of the same class, or it is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from stage.annotations import alike, annotation_of
from stage.examples import LONG, examples

from penstock import Table
from penstock.errors import DeclarationError, PenstockError
from penstock.functions.signature import Signature
from penstock.schema.table import definition_of


def signature_of(annotation: Any) -> Signature:
    async def give(ctx: Any, v: Any) -> Any:
        """Is never called."""

    give.__annotations__ = {"v": annotation, "return": annotation}
    return Signature(give, "app:give")


def test_a_value_comes_back_as_it_is_or_is_refused_on_every_road() -> None:
    seed = Random().getrandbits(32) if LONG else 34
    r, carried = Random(seed), 0
    for number in range(examples(10_000)):
        annotation, make = annotation_of(r)
        try:
            signature = signature_of(annotation)
            column = definition_of(
                type(f"Odd{number}", (Table,), {"__annotations__": {"v": annotation}, "__module__": __name__})
            ).column("v")
        except DeclarationError:
            continue
        for _ in range(4):
            try:
                value = make(r)
                checked = signature.check({"v": value})
            except (PenstockError, TypeError, ValueError):  # there is no such value
                continue
            where = f"seed {seed}, number {number}: {annotation!r} {value!r}"
            for road, carry in {
                "argument": lambda: signature.check_json(signature.encode(checked))["v"],
                "context": lambda: signature.check_json(f'{{"v":{signature.encode_one("v", value)}}}')["v"],
                "result": lambda: signature.result_of_json(signature.result_json(signature.check_result(checked["v"]))),
                "column": lambda: (column.decode or (lambda kept: kept))(column.encode(column.check(value))),
            }.items():
                expected = checked["v"]
                if road == "column":
                    try:
                        expected = column.check(value)
                    except ValueError:
                        continue
                    if expected is None:
                        continue
                try:
                    found = carry()
                except PenstockError:
                    continue
                except ValueError as error:
                    pytest.fail(f"{road} accepts what it cannot read, {where}: {error}")
                carried += 1
                assert alike(expected, found), f"{road} changes, {where}: {expected!r} is {found!r}"
    assert carried > examples(10_000)
