"""Signatures: Python annotations as the check of arguments and results.

Owns the validation of arguments and results. Arguments come as Python values, or as JSON text (from the wire
and from jobs), and are checked strictly in both forms. A string is no number.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from types import CoroutineType
from typing import Annotated, Any, NotRequired

from pydantic import AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, SchemaValidator, from_json, to_json
from typing_extensions import TypedDict

from penstock.errors import ArgumentsInvalid, DeclarationError, ResultInvalid, UnawaitedCall, ValueInvalid
from penstock.functions.batch import result_of_one
from penstock.observe.places import place_of, place_of_handler
from penstock.schema.encoder import TAGGED, Encoder
from penstock.schema.ids import id_prefix_of, target_of
from penstock.schema.tighten import (
    mixes_bytes,
    plain_validator,
    refuse_lookalikes,
    schema_of,
    strict_validator,
    take_tagged_bytes,
    take_tags,
    take_text_integers,
)
from penstock.wire.incoming import Arguments
from penstock.wire.integers import INT64, Way, marker
from penstock.wire.schemas import Change, change_schema
from penstock.wire.tags import MAX_PLAIN_INTEGER

_STRICT = ConfigDict(strict=True, extra="forbid", val_json_bytes="base64")
_RESULT = ConfigDict(strict=True)
WIRE_NAMES = {"pagination_opts": "paginationOpts"}  # of parameters that clients send under another name
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MAX_ERRORS = 20
_MANY_ERRORS = 1000  # not even a list is made: millions of them would take seconds and gigabytes
_LONGEST_PATH = 200
_SHARED = 512  # to make a check takes a millisecond, and many functions take and return the same


class Signature:
    """Checks the arguments and the result of one function, as its annotations say.

    Args:
        handler: The function.
        name: Its name.
        of: For a batch function: the type of one call, whose parameters are then its arguments.
    """

    def __init__(self, handler: Callable[..., Any], name: str, of: Callable[..., Any] | None = None) -> None:
        self.name = name
        taken = handler if of is None else of
        parameters = list(inspect.signature(taken).parameters.values())[1 if of is None else 0 :]
        self.parameters = tuple(parameter.name for parameter in parameters)  # the names of its arguments, in order
        hints = _hints(taken, name)
        ctx = hints.get(next(iter(inspect.signature(taken).parameters), ""))
        # Of a workflow the type of the state that it publishes, as ``ctx: WorkflowCtx[State]`` says.
        self.publishes = typing.get_args(ctx)[0] if hasattr(typing.get_origin(ctx), "of_kind") else Any
        fields = {parameter.name: _annotation(hints, parameter) for parameter in parameters}
        tables = {name: target_of(field) for name, field in fields.items()}
        self.ids = {name: of for name, of in tables.items() if id_prefix_of(of) is not None}  # of managed tables
        self._fields = fields
        self.arguments = _make_typed_dict(name, fields)  # its arguments, as a `TypedDict`
        # encodes its arguments, which are stored
        self.encoder: Encoder = _build(name, lambda: _reuse(_argument_encoder, tuple(fields.items())))
        is_timed = "now_op" in repr(self.encoder.schema)
        self._arguments = strict_validator(self.encoder.schema) if is_timed else self.encoder.validator
        result = hints.get("return", Any)
        if of is not None:
            result = result_of_one(_hints(handler, name).get("return", Any), name)
        self.returns = result  # the annotation of its result
        self.returns_nothing = result is None or result is type(None)
        self._result: SchemaValidator | None
        self.results: Encoder  # encodes its results
        self._result, self.results = _build(name, lambda: _reuse(_result_checks, result))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Positional and named arguments as one dict, not yet checked."""
        if not args:
            return dict(kwargs)
        if len(args) > len(self.parameters):
            takes = f"{len(self.parameters)} argument{'' if len(self.parameters) == 1 else 's'}"
            raise ArgumentsInvalid(
                f"{self.name} takes {takes}, but {len(args)} {'was' if len(args) == 1 else 'were'} given.",
                fix=f"After the ctx it takes ({', '.join(self.parameters)}).",
            )
        bound = dict(zip(self.parameters, args, strict=False))
        twice = bound.keys() & kwargs.keys()
        if twice:
            raise ArgumentsInvalid(f"{self.name}: {', '.join(sorted(twice))} is given twice.")
        return {**bound, **kwargs}

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from Python by name, checked; `facts["errors"]` of the error lists each that is wrong."""
        if not isinstance(arguments, Mapping):
            raise ArgumentsInvalid(f"{self.name} takes its arguments by name, in a mapping, not {arguments!r:.200}.")
        try:
            return self._arguments.validate_python({**arguments})  # type: ignore[no-any-return]
        except ValidationError as error:
            raise self._refusal(error) from None

    def check_json(self, text: str | bytes) -> dict[str, Any]:
        """Arguments from JSON text, checked. JSON has one kind of number: ``1.0`` may be an integer."""
        if isinstance(text, Arguments):
            if self._tag_reader is not None:
                with suppress(ValidationError):  # the plain text tells what is wrong
                    return _check_whole(self._tag_reader, text.with_tags(bytes, int))
            if self.encoder.takes_tags:
                text = text.with_tags(bytes)
        try:
            return _check_whole(self.encoder.validator, text)
        except ValidationError as error:
            if self._lenient is self.encoder.validator:
                raise self._refusal(error) from None
        try:
            return _check_whole(self._lenient, text)
        except ValidationError as error:
            raise self._refusal(error) from None

    def check_sent(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments from JSON, checked against the present time too, as `check_json` does not: jobs run later."""
        return arguments if self._arguments is self.encoder.validator else self.check(arguments)

    def encode(self, arguments: Mapping[str, Any]) -> str:
        """Checked arguments as JSON text, which `check_json` reads; ValueInvalid if they would change."""
        return self.encoder.encode(arguments, f"The arguments of {self.name}")

    @property
    def secrets(self) -> frozenset[str]:
        """The names under which arguments and results hold secrets."""
        return self.encoder.secrets | self.results.secrets

    def mask_one(self, name: str, value: Any) -> Any:
        """The stored value of one parameter without secrets."""
        return self._one(name).mask({name: value})[name]

    def _one(self, name: str) -> Encoder:
        return _reuse(_argument_encoder, ((name, self._fields[name]),))  # type: ignore[no-any-return]

    def encode_one(self, name: str, value: Any, what: str) -> str:
        """The value of one parameter as JSON text, once it is checked."""
        encoder = self._one(name)
        try:
            checked = encoder.validator.validate_python({name: value})
        except ValidationError as error:
            raise self._refusal(error) from None
        return encoder.encode(checked, what)[len(f'{{"{name}":') : -1]

    def check_result(self, value: Any) -> Any:
        if type(value) is CoroutineType:
            value.close()
            raise UnawaitedCall(
                f"{self.name} returned {value.__qualname__} ({place_of(value.cr_code)}), which was not awaited.",
                fix="Write return await.",
            )
        if self.returns_nothing:
            if value is None:
                return None
        elif self._result is None:
            return value
        else:
            try:
                return self._result.validate_python(value)
            except ValidationError as error:
                details = "None" if value is None else _describe(error, _details(error))
                raise ResultInvalid(
                    f"{self.name} returned what its annotation does not allow: {details}.",
                    fix=f"Return another value, or {'add | None to' if value is None else 'correct'} the annotation.",
                    function=self.name,
                ) from None
        raise ResultInvalid(f"{self.name} returned {type(value).__name__}, but is annotated to return None.")

    def mark(self, value: Any) -> Any:
        """A checked result on its way to a client, its integers marked where it declares them as `Int64`."""
        return value if self._large is None else self._large(value)

    def result_json(self, value: Any, *, checks: bool = True) -> bytes:
        """A checked result as JSON text, which `result_of_json` reads; ResultInvalid if it would change.

        Without `checks` it is only told apart from others.
        """
        try:
            if not checks:
                return self.results.dump(value)
            return self.results.encode(value, "Its result").encode()
        except (ValueInvalid, ValueError, TypeError) as error:
            said, fix = (error.what, error.fix) if isinstance(error, ValueInvalid) else (f"{error}", "")
            raise ResultInvalid(
                f"{self.name} returned a value that JSON cannot hold: {said}", fix=fix, function=self.name
            ) from error

    def result_of_json(self, text: bytes | str) -> Any:
        """A result from JSON text, as another process or a job has written it."""
        return self.results.decode(text)

    @cached_property
    def _large(self) -> Way | None:
        return None if self._result is None else marker(self.results.schema)

    @cached_property
    def _lenient(self) -> SchemaValidator:
        """Take a text of digits for an `Int64`, as plain JSON has them."""
        schema = self.encoder.schema
        return _encoder_of(schema, take_text_integers).validator if INT64 in repr(schema) else self.encoder.validator

    @cached_property
    def _tag_reader(self) -> SchemaValidator | None:
        """Take tagged values too, where `Any` alone would not tell bytes from text; None if nothing is `Any`."""
        kinds = set[Any]()
        change_schema(self.encoder.schema, lambda node: kinds.add(node.get("type")))
        if "any" not in kinds:
            return None
        return _encoder_of(change_schema(self.encoder.schema, take_text_integers), take_tags).validator

    def _refusal(self, error: ValidationError) -> ArgumentsInvalid:
        details = _details(error)
        return ArgumentsInvalid(
            f"{self.name}: invalid arguments: {_describe(error, details)}.",
            function=self.name,
            errors=details[:_MAX_ERRORS],
        )


def encode_any(value: Any, what: str, annotation: Any = Any) -> str:
    """A value of no function as JSON text; ValueInvalid if a reader who knows the annotation would not get it."""
    return encoder_of(annotation).encode(value, what)


def encoder_of(annotation: Any) -> Encoder:
    """Give the encoder of the values of an annotation."""
    encoder: Encoder = _reuse(_result_checks, annotation)[1]
    return encoder


def check_declaration(handler: Callable[..., Any], name: str, kind: str, public: bool) -> None:
    """Refuse a handler without ctx, with ``*args`` or yield, or public and not fully annotated."""
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise DeclarationError(f"{name} yields; a {kind} returns one result.", fix="Return a list, or a Page.")
    signature = inspect.signature(handler)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in {inspect.Parameter.POSITIONAL_ONLY, _NAMED[0]}:
        raise DeclarationError(
            f"{name} ({place_of_handler(handler)}): the first parameter of a {kind} is its ctx.", fix="Write (ctx, …)."
        )
    for parameter in parameters[1:]:
        if parameter.kind not in _NAMED:
            raise DeclarationError(f"{name}: {parameter} cannot be called by name; name every parameter.")
    missing = [p.name for p in parameters[1:] if p.annotation is inspect.Parameter.empty]
    if signature.return_annotation is inspect.Signature.empty:
        missing.append("return")
    if public and missing:
        raise DeclarationError(
            f"{name} is public, and lacks an annotation of {', '.join(missing)}: callers could send anything.",
            fix=f"Annotate it, or declare an internal_{kind}.",
        )


def _hints(handler: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(handler, include_extras=True)
    except NameError as error:
        raise DeclarationError(
            f"{name}: an annotation names {error.name!r}, which does not exist in its module.",
            fix="Import it.",
        ) from error


def _annotation(hints: dict[str, Any], parameter: inspect.Parameter) -> Any:
    annotation = hints.get(parameter.name, Any)
    if parameter.default is not inspect.Parameter.empty:  # typing takes `A | B` for `B | A` unless it is spelled
        annotation = Annotated[annotation, repr(annotation)]
    if (sent := WIRE_NAMES.get(parameter.name)) is not None:
        annotation = Annotated[annotation, Field(validation_alias=AliasChoices(parameter.name, sent))]
    return annotation if parameter.default is inspect.Parameter.empty else NotRequired[annotation]


def _make_typed_dict(name: str, fields: dict[str, Any]) -> Any:
    make: Any = TypedDict  # type checkers only know it with literal names
    shape = make(name.rpartition(":")[2], fields)
    shape.__pydantic_config__ = _STRICT
    return shape


def _reuse(make: Any, annotations: Any) -> Any:
    """Reuse what was made for equal annotations; make it again if they cannot be compared."""
    try:
        hash(annotations)
    except TypeError:
        return make.__wrapped__(annotations, "")
    return make(annotations, repr(annotations))  # `A | B` equals `B | A`, but is tried in another order


@lru_cache(_SHARED)
def _argument_encoder(fields: tuple[tuple[str, Any], ...], _spelled: str) -> Encoder:
    return _encoder_of(TypeAdapter(_make_typed_dict("Arguments", dict(fields))).core_schema)


def _encoder_of(schema: CoreSchema, *changes: Change) -> Encoder:
    """An encoder of arguments, which reads them from a schema with some changes."""
    mixes = mixes_bytes(schema)

    def read(stored: CoreSchema) -> SchemaValidator:
        for change in (*changes, *[take_tagged_bytes] * (mixes and take_tags not in changes)):
            stored = change_schema(stored, change)
        return strict_validator(stored)

    found = Encoder(schema, read)
    found.takes_tags = mixes
    return found


@lru_cache(_SHARED)
def _result_checks(annotation: Any, _spelled: str) -> tuple[SchemaValidator | None, Encoder]:
    schema = schema_of(annotation, _RESULT)
    check = None if annotation is Any else plain_validator(change_schema(schema, refuse_lookalikes), strict=True)
    return check, Encoder(schema, plain_validator, result=True)


def _check_whole(reader: SchemaValidator, text: str | bytes) -> dict[str, Any]:
    """Check JSON text; where an integer is asked for, a float that is one is taken."""
    try:
        return reader.validate_json(text)  # type: ignore[no-any-return]
    except ValidationError as error:
        if not _misses_whole_numbers(error):
            raise
    return reader.validate_json(to_json(_with_whole_numbers(from_json(text))))  # type: ignore[no-any-return]


def _misses_whole_numbers(error: ValidationError) -> bool:
    """Whether an integer was asked for where a float stands that is one."""
    return error.error_count() <= _MANY_ERRORS and any(
        detail["type"] == "int_type" and _is_whole(detail["input"])
        for detail in error.errors(include_url=False, include_context=False)
    )


def _with_whole_numbers(value: Any) -> Any:
    """JSON's value with integers in place of floats that are integers and lost no digits."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if _is_whole(value) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) <= MAX_PLAIN_INTEGER


def _build(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except DeclarationError:
        raise
    except Exception as error:
        raise DeclarationError(f"{name}: its annotations cannot be checked: {error}.") from error


def _details(error: ValidationError) -> list[Any]:
    """Each error; none if there are very many."""
    if error.error_count() > _MANY_ERRORS:
        return []
    details = error.errors(include_url=False, include_context=False, include_input=False)
    plain = [one for one in details if TAGGED not in one["loc"]]
    return [{**one, "loc": tuple(filter(_is_readable, one["loc"]))} for one in plain]


def _is_readable(step: Any) -> bool:
    """Whether a reader knows a step to what is wrong: others stand for changes of the schema."""
    return step != "" and not str(step).startswith(("json-or-python[", "function-before["))


def _describe(error: ValidationError, details: list[Any]) -> str:
    parts = []
    for detail in details[:_MAX_ERRORS]:
        path = ".".join(map(str, detail["loc"]))[:_LONGEST_PATH]
        parts.append(f"{path}: {detail['msg']}" if path else detail["msg"])
    more = (len(details) or error.error_count()) - len(parts)
    return "; ".join([*parts, f"{more} {'more ' if parts else ''}errors"] if more else parts)
