"""Rules about rows: filters, collect, indexes, and keywords that name columns, which type checkers cannot see."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial

from penstock.check.body import Body, Call, Loop, Over
from penstock.check.nodes import names_in, walk
from penstock.check.program import AnyDef, Index, Program, Table
from penstock.check.project import Module
from penstock.check.rule import Facts, Places, Rule, rule
from penstock.check.values import Rows, Scan

_FEW = 100  # rows
_FOLDS, _TEXTS = {"lower", "casefold"}, {"str", "str | None"}
_RANGES = {  # as it is written with the column on the left, and on the right
    ast.Lt: ("lt(…)", "gt(…)"), ast.LtE: ("lte(…)", "gte(…)"),
    ast.Gt: ("gt(…)", "lt(…)"), ast.GtE: ("gte(…)", "lte(…)"),
}  # fmt: skip
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
}  # fmt: skip


@rule("PEN002")
def slow_filter(facts: Facts, rule: Rule) -> Places:
    """A filter does what an index does faster."""
    for body in facts.bodies:
        for node, scan, end, whole in _filters(body):
            equal, ranged = _columns(body, node, scan.table)
            wanted = [one for one in (*equal, *ranged) if one not in scan.equal]
            if end == "paginate":
                continue
            message, fix = _index_for(scan, equal, ranged) if wanted else _search_for(scan, _text_in(body, node, scan))
            if fix:
                found = rule.at(body, node.iter if isinstance(node, Loop) else node, message, fix)
                yield replace(found, lines=(whole.lineno, whole.end_lineno or whole.lineno)) if whole else found


def _filters(body: Body) -> Iterator[tuple[Over, Scan, str, ast.Call | None]]:
    """Filters of queries, and conditions of comprehensions and loops over the rows of one.

    Each with its query, the end of that, and the chain of calls that it stands in.
    """
    seen = set[ast.Call]()
    for call in body.calls:
        if call.is_of(Scan) and call.method != "filter":
            for one in call.of.of.filters:
                if one not in seen:
                    seen.add(one)
                    is_chain = (one.lineno, one.col_offset) == (call.node.lineno, call.node.col_offset)
                    yield one, call.of.of, call.method, call.node if is_chain else None
    for node, rows in body.lists:
        if rows.end == "iterate":
            yield from ((one, rows.scan, rows.end, None) for one in rows.scan.filters)
        if rows.end in {"collect", "iterate"} or (rows.end == "take" and not _is_few(rows)):
            yield node, rows.scan, rows.end, None


def _is_few(rows: Rows) -> bool:
    given = getattr(rows.call.args[0], "value", None) if rows.call and rows.call.args else None
    return rows.scan.is_bounded or (isinstance(given, int) and given <= _FEW)


def _columns(body: Body, node: Over, table: Table | None) -> tuple[list[str], dict[str, str]]:
    """The columns of a table that a condition compares with equal values, and the ranges of others."""
    row, conditions = _conditions(body, node)
    equal, ranged = list[str](), dict[str, str]()
    if table is None:
        return equal, ranged
    for one in _all_of(conditions):
        equal.extend(_truth(one, row, table))
        if not isinstance(one, ast.Compare) or len(one.ops) != 1:
            continue
        for turned, (side, other) in enumerate(((one.left, one.comparators[0]), (one.comparators[0], one.left))):
            column = _column(side, row, table)
            if column and row not in names_in(other):
                if isinstance(one.ops[0], ast.Eq | ast.Is):
                    equal.append(column)
                elif one.ops[0].__class__ in _RANGES:
                    bound = _RANGES[one.ops[0].__class__][turned]
                    ranged[column] = f"{ranged[column]} & {bound}" if column in ranged else bound
    return equal, ranged


def _truth(node: ast.expr, row: str, table: Table) -> list[str]:
    """The column of a bool that a condition is, ``not row.closed``, if an index has it: alone it needs none."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        node = node.operand
    column = _column(node, row, table)
    is_bool = column and ast.unparse(table.columns[column]) == "bool"
    return [column] if is_bool and any(column in one.columns for one in table.indexes.values()) else []


def _conditions(body: Body, node: Over) -> tuple[str, list[ast.expr]]:
    """The name of a row in a condition, and the parts of the condition."""
    if isinstance(node, ast.Call):
        given = _predicate(body, node.args[0] if node.args else None)
        return (given.args.args[0].arg, [given.body]) if given and given.args.args else ("", [])
    if isinstance(node, Loop):
        target, ifs = node.target, _row_conditions(node.body)
    else:
        target, ifs = node.generators[0].target, node.generators[0].ifs
        ifs = [*ifs, node.elt] if isinstance(node, ast.GeneratorExp) else ifs  # any(one.name == name for one in rows)
    return (target.id, ifs) if isinstance(target, ast.Name) else ("", [])


def _row_conditions(body: list[ast.stmt]) -> list[ast.expr]:
    """The conditions of the rows that a loop does something with: it has one ``if``, or skips the others."""
    found = list[ast.expr]()
    for one in body:
        if not isinstance(one, ast.If) or one.orelse:
            break
        if len(one.body) == 1 and isinstance(one.body[0], ast.Continue):
            found.extend(_opposite(one.test))
        else:
            return [*found, one.test] if one is body[-1] else found
    return found


def _opposite(test: ast.expr) -> Iterator[ast.expr]:
    """The conditions that hold if a test does not, as far as these are a column's value."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        for one in test.values:
            yield from _opposite(one)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        turned = _OPPOSITES.get(type(test.ops[0]))
        if turned is not None:
            yield ast.Compare(test.left, [turned()], test.comparators)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield test.operand
    else:
        yield ast.UnaryOp(ast.Not(), test)


def _predicate(body: Body, node: ast.expr | None) -> ast.Lambda | None:
    """A filter, also if it is a function with a name that only returns a condition."""
    if not isinstance(node, ast.Name):
        return node if isinstance(node, ast.Lambda) else None
    inner = (*body.function.statements, *body.function.module.tree.body)
    for one in inner:
        last = one.body[-1] if isinstance(one, AnyDef) and one.name == node.id else None
        if isinstance(one, AnyDef) and isinstance(last, ast.Return) and last.value and len(one.body) == 1:
            return ast.Lambda(one.args, last.value)
    return None


def _all_of(conditions: list[ast.expr]) -> Iterator[ast.expr]:
    for one in conditions:
        if isinstance(one, ast.BoolOp) and isinstance(one.op, ast.And):
            yield from _all_of(one.values)
        elif isinstance(one, ast.BinOp) and isinstance(one.op, ast.BitAnd):
            yield from _all_of([one.left, one.right])
        else:
            yield one


def _column(node: ast.expr, row: str, table: Table) -> str:
    """The column that an expression is, if an index can hold it."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or node.value.id != row:
        return ""
    kind = table.columns.get(node.attr)
    is_json = isinstance(kind, ast.Subscript) and ast.unparse(kind.value) in {"list", "dict", "tuple", "set"}
    return "" if kind is None or is_json else node.attr


def _index_for(scan: Scan, equal: list[str], ranged: dict[str, str]) -> tuple[str, str]:
    """The fault and the fix; nothing if no index would serve."""
    table = scan.table
    if table is None:
        return "", ""
    known = {*scan.equal, *equal}
    best: Index | None = None
    for index in table.indexes.values():
        used = _usable_columns(index, known, ranged)
        if len(used) > max(len(scan.equal), len(_usable_columns(best, known, ranged)) if best else 0):
            best = index
    if best is not None:
        message = f"This filter reads rows of {table.name} to drop them; index {best.name} finds the others."
        given = _index_arguments(_usable_columns(best, known, ranged), known, ranged)
        return message, f"Write .with_index({table.name}.{best.name}, {given})."
    if scan.is_bounded:
        return "", ""
    wanted = list(dict.fromkeys([*equal, *list(ranged)[:1]]))
    name = f"by_{'_'.join(wanted)}"
    quoted = ", ".join(f'"{one}"' for one in wanted)
    read = f"read with .with_index({table.name}.{name}, {_index_arguments(wanted, known, ranged)})"
    message = f"This filter reads all rows of {table.name} to drop most of them."
    make = "" if table.is_managed else "create an index on these columns in the database, "
    return message, f"Declare {name} = Index({quoted}) in {table.name}, {make}and {read}."


def _text_in(body: Body, node: Over, scan: Scan) -> str:
    """The column of text in which a condition looks for a part, ``word in row.body.lower()``."""
    row, conditions = _conditions(body, node)
    for one in _all_of(conditions):
        if scan.table is None or not isinstance(one, ast.Compare) or not isinstance(one.ops[0], ast.In):
            continue
        inside = one.comparators[0]
        if isinstance(inside, ast.Call) and isinstance(inside.func, ast.Attribute) and inside.func.attr in _FOLDS:
            inside = inside.func.value
        column = _column(inside, row, scan.table)
        if column and ast.unparse(scan.table.columns[column]) in _TEXTS and row not in names_in(one.left):
            return column
    return ""


def _search_for(scan: Scan, column: str) -> tuple[str, str]:
    """The fault of a filter that looks for a text, and the fix; nothing if an index has chosen the rows."""
    table = scan.table
    if table is None or not column or scan.is_bounded:
        return "", ""
    name, read = f"by_{column}", f".with_search_index({table.name}.by_{column}, …)"
    fix = f'Declare {name} = SearchIndex("{column}") in {table.name}, and read with {read}.'
    return f"This filter reads all rows of {table.name} to look for a text in {column}.", fix


def _index_arguments(columns: Iterable[str], equal: set[str], ranged: dict[str, str]) -> str:
    """The arguments of `with_index`: ``customer=…, starts_at=gte(…)``."""
    return ", ".join(f"{one}={'…' if one in equal else ranged[one]}" for one in columns)


def _usable_columns(index: Index, equal: set[str], ranged: Collection[str]) -> list[str]:
    """The first columns of an index that a condition can use."""
    used = list[str]()
    for column in index.columns:
        if column in equal:
            used.append(column)
            continue
        if column in ranged:
            used.append(column)
        break
    return used


@rule("PEN003", "Choose rows with .with_index(…), or end with .take(n), .paginate(…), .count() or .first().")
def collect_without_limit(facts: Facts, rule: Rule) -> Places:
    """Collect reads all rows, however many there are."""
    for body, call in facts.calls_of(Scan, "collect"):
        scan: Scan = call.of.of
        name = scan.table.name if scan.table else "the table"
        if any(_rows_of_count(body, one.node) is call.node for one in body.calls):
            yield rule.at(body, call.node, f"All rows of {name} are read to count them.", "Write .count().")
        elif not scan.is_bounded or scan.is_endless:
            what = f"all rows of {name} from one on" if scan.is_endless else f"all rows of {name}"
            yield rule.at(body, call.node, f"collect() reads {what}, and there may be more each day.")
    for body in facts.bodies:
        for node, rows in body.lists:
            is_list = isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp) and not node.generators[0].ifs
            if is_list and rows.end == "iterate" and not (rows.scan.is_bounded or rows.scan.filters):
                name = rows.scan.table.name if rows.scan.table else "the table"
                yield rule.at(body, node, f"This reads all rows of {name}.")


def _rows_of_count(body: Body, call: ast.Call) -> ast.expr | None:
    """The rows that ``len(…)`` or ``sum(1 for _ in …)`` counts."""
    match call:
        case ast.Call(func=ast.Name(id="len"), args=[rows]):
            return _all_from(body, rows)
        case ast.Call(func=ast.Name(id="sum"), args=[ast.GeneratorExp(elt=ast.Constant(value=1)) as rows]):
            return _all_from(body, rows)
    return None


def _all_from(body: Body, node: ast.expr) -> ast.expr | None:
    """The call that gives as many rows as an expression has, if these are used for nothing else."""
    match node:
        case ast.Await(value=rows):
            return _all_from(body, rows)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted"), args=[rows]):
            return _all_from(body, rows)
        case ast.ListComp(generators=[one]) | ast.GeneratorExp(generators=[one]) if not one.ifs:
            return _all_from(body, one.iter)
        case ast.Name(id=name):
            kept = body.function.assignments.get(name, [])
            uses = (one for one in body.function.nodes if isinstance(one, ast.Name) and one.id == name)
            is_once = len(kept) == 1 and sum(isinstance(one.ctx, ast.Load) for one in uses) == 1
            return _all_from(body, kept[0]) if is_once else None
    return node


@rule("PEN004")
def redundant(facts: Facts, rule: Rule) -> Places:
    """An index is redundant."""
    by_creation = _read_by_creation(facts)
    for table in facts.program.tables:
        for index in table.indexes.values():
            others = (one for one in table.indexes.values() if one is not index)
            begins = [one for one in others if one.columns[: len(index.columns)] == index.columns]
            longer = [one for one in begins if one.columns != index.columns or one.node.lineno < index.node.lineno]
            if longer and not index.is_unique and (table.node, index.name) not in by_creation:
                other = longer[0].name
                message = f"Index {index.name} of {table.name} is a prefix of {other}: each write pays for both."
                fix = f"Remove {index.name}, and read with {table.name}.{other}."
                yield rule.at(table.module, index.node, message, fix)


def _read_by_creation(facts: Facts) -> set[tuple[ast.ClassDef, str]]:
    """Find indexes that a query gives all columns of, and whose rows it wants in the order of their creation."""
    found = set[tuple[ast.ClassDef, str]]()
    for _body, call in facts.calls_of(Scan, "order", "first", "take", "paginate"):
        scan: Scan = call.of.of
        index = scan.table.indexes.get(scan.index) if scan.table else None
        if scan.table and index and set(index.columns) <= set(scan.equal):
            found.add((scan.table.node, index.name))
    return found


@rule("PEN021")
def wrong_keyword(facts: Facts, rule: Rule) -> Places:
    """A keyword names no column."""
    columns_of = cache(partial(_fields, facts.program))
    for body, call in facts.calls_of(object, "patch", "with_index"):
        module = body.function.module
        owner, columns = _columns_in(facts.program, module, call, columns_of)
        for one in call.node.keywords if columns else ():
            if one.arg and one.arg not in columns:
                near = get_close_matches(one.arg, columns, 1) or columns
                fix = f"Its columns are {', '.join(columns)}." if near is columns else f"Did you mean {near[0]}?"
                yield rule.at(module, one, f"{owner} has no column {one.arg}.", fix)


def _columns_in(
    program: Program, module: Module, call: Call, columns_of: Callable[[Module, ast.ClassDef], list[str] | None]
) -> tuple[str, list[str]]:
    """The table or index whose columns a call names, and these; none if nobody knows them."""
    first = call.node.args[0] if call.node.args else None
    if call.is_word("db", "patch"):
        table = program.table_of(module, first)
        return (table.name, columns_of(table.module, table.node) or []) if table else ("", [])
    if call.is_of(Scan, "with_index") and isinstance(first, ast.Attribute):
        index = _index(program.table_of(module, first.value), first.attr)
        return (f"Index {first.attr}", [*index.columns]) if index else ("", [])
    return "", []


def _index(table: Table | None, name: str) -> Index | None:
    index = table.indexes.get(name) if table else None
    declared = index.node.value if index and isinstance(index.node, ast.Assign) else None
    is_whole = isinstance(declared, ast.Call) and all(isinstance(one, ast.Constant) for one in declared.args)
    return index if is_whole else None


def _fields(program: Program, module: Module, node: ast.ClassDef) -> list[str] | None:
    """The fields of a class and of those it derives from; None if one of these is in no file of the program."""
    lineage = [*program.lineage(module, node)]
    bases = ((place, base) for place, one in lineage for base in one.bases)
    own = [base for place, base in bases if not program.is_penstock(place, base, "Table", "UserTable")]
    if len(own) >= len(lineage):
        return None
    annotated = (one.target for _, each in reversed(lineage) for one in walk(each) if isinstance(one, ast.AnnAssign))
    return [one.id for one in annotated if isinstance(one, ast.Name)]
