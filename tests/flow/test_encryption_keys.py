"""Keys of a codec: they rotate, and what no key fits waits for its key, with its ciphertext for all to see."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet

from penstock import (
    ActionCtx,
    App,
    ConfigError,
    DeclarationError,
    FernetCodec,
    MutationCtx,
    Success,
    Undecryptable,
    WorkId,
    WorkResult,
)
from penstock.testing import TestApp

OPENED = App()
CANARY = "Canary-4f1c"
kept = list[Any]()


def program(codec: Any) -> tuple[App, Any, Any, Any]:
    """One program with any codec, as its processes have it before and after a change of keys."""
    one = App(codec=codec)
    work = one.workpool("work", max_parallelism=5)

    async def echo(ctx: ActionCtx, text: str) -> str:
        return text

    async def put(ctx: MutationCtx, text: str) -> str:
        return text

    async def done(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: str) -> None:
        kept.append((getattr(result, "value", result.kind), context))

    for handler in (echo, put, done):
        handler.__qualname__ = handler.__name__
    functions = one.internal_action(echo), one.internal_mutation(put)
    return one, work.with_options(on_complete=one.internal_mutation(done), context=CANARY), *functions


async def test_keys_rotate_and_what_no_key_fits_waits_for_it(database_url: str) -> None:
    kept.clear()
    old, new = Fernet.generate_key().decode(), Fernet.generate_key()
    first, pool, echo, put = program(None)
    async with TestApp(first, database_url) as test:
        plain = await pool.enqueue(test, echo, "plain")
    first, pool, echo, put = program(FernetCodec(old))
    async with TestApp(first, database_url) as test:
        works = [await pool.enqueue(test, function, CANARY) for function in (echo, put)]
    for codec in (None, FernetCodec(new)):
        other, pool, echo, put = program(codec)
        async with TestApp(other, database_url) as test:
            await test.run_until_idle(advance=False)
            shown = await test.job(works[0])
            assert shown is not None
            assert shown.args.keys() == {"$encrypted"}
            assert str(shown.options.context).startswith('{"$encrypted":')
            assert shown.state.value == "pending"
            assert shown.attempt == 0
            assert "Undecryptable" in str(shown.error)
    last, pool, echo, put = program(FernetCodec(new, old))
    async with TestApp(last, database_url) as test:
        test.clock.advance(timedelta(minutes=2))
        await test.run_until_idle()
        assert [await pool.result(test, one) for one in (plain, *works)] == [Success("plain"), *[Success(CANARY)] * 2]
        assert sorted(kept) == [(CANARY, CANARY), (CANARY, CANARY), ("plain", CANARY)]
    blind, pool, *_ = program(FernetCodec(old))
    async with TestApp(blind, database_url) as test:
        with pytest.raises(Undecryptable, match="cannot be decrypted"):
            await pool.result(test, works[0])
        shown = await test.job(works[0])
        assert shown is not None
        assert shown.result.keys() == {"$encrypted"}


def test_a_key_that_is_none_is_refused_without_it() -> None:
    for wrong in ("hunter2", b"hunter2", 5, None, Fernet.generate_key()[:-4]):
        with pytest.raises(ConfigError, match="A key of FernetCodec") as caught:
            FernetCodec(Fernet.generate_key(), wrong)  # type: ignore[arg-type]  # what is tested
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None
    key = Fernet.generate_key().decode()
    assert key not in f"{FernetCodec(key)!r} {vars(App(codec=FernetCodec(key)))}"
    with pytest.raises(DeclarationError, match="codec="):
        App(codec=key)  # type: ignore[arg-type]  # as above
