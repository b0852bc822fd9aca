"""The rule that every call is awaited."""

from __future__ import annotations

import ast

from penstock.check.rule import Facts, Places, Rule, before, rule


@rule("PEN001")
def awaited(facts: Facts, rule: Rule) -> Places:
    """A call is not awaited."""
    for body in facts.bodies:
        module = body.function.module
        for pending in body.floating:
            edits = [before(module, pending.call, "await ")] if body.function.is_async else []
            yield rule.at(
                module,
                pending.call,
                f"{pending.what}(…) is not awaited, so it does nothing.",
                f"Write await {ast.unparse(pending.call.func)}(…).",
                edits,
            )
