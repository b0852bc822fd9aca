"""The one entry for calls from outside: a kind, a path and arguments as JSON in; a checked result out.

Owns who may call what. Leaves transports to the doors.
"""

from __future__ import annotations

import asyncio

from penstock.calls.run import Runner
from penstock.errors import CallTimeout, FunctionNotFound, LimitExceeded, Overloaded
from penstock.functions.function import AnyFunction, FunctionKind


class Dispatch:
    """Calls functions by name, under this process's limits."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._config = runner.engine.config
        self._under_way = 0

    def find(self, path: str, kind: FunctionKind | None, *, internal: bool = False) -> AnyFunction:
        """The function to call.

        Raises:
            FunctionNotFound: There is none of this name for this caller, or it is of another kind.
        """
        function = self._runner.engine.registry.find(path)
        if function is None or not (function.public or internal):
            raise FunctionNotFound(f"Could not find public function for '{path}'.", path=path)
        if kind is not None and function.kind is not kind:
            raise FunctionNotFound(
                f"'{path}' is a {function.kind.value}, and was called as a {kind.value}.",
                fix=f"Call it as a {function.kind.value}.",
                path=path,
            )
        return function

    async def call(self, path: str, kind: FunctionKind | None, args: bytes | str, *, internal: bool = False) -> object:
        """Call a function with a JSON object of arguments; its result.

        Raises:
            FunctionNotFound: See `find`.
            ArgumentsInvalid: Its signature refuses the arguments.
            Overloaded: This process has as many calls under way as it takes on.
            CallTimeout: It took too long; a mutation has had no effect.
        """
        function = self.find(path, kind, internal=internal)
        if len(args) > self._config.max_argument_bytes:
            raise LimitExceeded(
                f"The arguments of {path} have {len(args)} bytes; {self._config.max_argument_bytes} are allowed.",
                limit=self._config.max_argument_bytes,
            )
        if self._under_way >= self._config.max_calls:
            raise Overloaded("This server has too many calls under way.", fix="Try again in a moment.")
        self._under_way += 1
        try:
            async with asyncio.timeout(self._config.call_timeout):
                return await self._run(function, args)
        except TimeoutError as error:
            raise CallTimeout(f"{path} took longer than {self._config.call_timeout:g} seconds.") from error
        finally:
            self._under_way -= 1

    async def _run(self, function: AnyFunction, args: bytes | str) -> object:
        signature = function.signature
        if function.kind is FunctionKind.MUTATION:
            return await self._runner.mutation(function, lambda: signature.check_json(args))
        arguments = signature.check_json(args)
        if function.kind is FunctionKind.QUERY:
            return await self._runner.query(function, arguments)
        return await self._runner.action(function, arguments)
