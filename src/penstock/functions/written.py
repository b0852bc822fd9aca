"""Functions as a program writes them, for people: their parameters and their result."""

from __future__ import annotations

import inspect
import re
from typing import Any

from penstock.functions.function import AnyFunction

_MODULES = re.compile(r"""(?<!['"\w.])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])""")


def signature_text(function: AnyFunction) -> str:
    """A function's parameters and result as they are written, without its ctx."""
    signature = inspect.signature(function.handler)
    parameters = list(signature.parameters.values())[1:]
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {annotation_text(result)}"
    return f"({', '.join(map(_parameter, parameters))}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {annotation_text(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {parameter.default!r}" if ":" in text else f"={parameter.default!r}"
    return text


def annotation_text(annotation: Any) -> str:
    """An annotation, without the modules of its names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULES.sub("", text)
