"""Rules about the outside world in functions that run in a transaction."""

from __future__ import annotations

import ast
import re

from penstock.check.body import Body
from penstock.check.finding import Edit, Span
from penstock.check.nodes import last_name
from penstock.check.program import Program
from penstock.check.project import Module, Outside
from penstock.check.rule import Facts, Places, Rule, instead, rule

_CLOCK = {
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "datetime.datetime.now",
    "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today", "django.utils.timezone.now",
    "pendulum.now", "arrow.now", "arrow.utcnow",
}  # fmt: skip
_CLOCK_UNLESS = {"time.localtime": 1, "time.gmtime": 1, "time.ctime": 1, "time.strftime": 2}  # given a time
_CHANCE = ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "numpy.random.")
_SAME = "the same in each attempt of one execution"
_IN_LIVE = "a live query runs again when the next minute begins"
_IN_REPLAYS = "the same in each replay"
_UTC = [Outside("datetime.UTC"), Outside("datetime.timezone.utc")]
_OF_CTX = {"random", "randint", "choice", "choices", "sample", "shuffle", "uniform", "randrange", "gauss"}
_ENVIRONMENT = {"os.environ", "os.getenv", "os.environb"}
NETWORK = (
    "requests.", "httpx.", "aiohttp.", "urllib.request.", "urllib3.", "smtplib.", "socket.", "http.client.",
    "boto3.", "subprocess.", "asyncio.create_subprocess", "os.system", "openai.", "anthropic.", "stripe.", "twilio.",
    "redis.", "grpc.", "ftplib.", "paramiko.", "websockets.", "aioboto3.", "kafka.", "aiokafka.", "pika.", "aio_pika.",
    "nats.", "pymongo.", "motor.", "elasticsearch.", "google.cloud.", "azure.", "sendgrid.", "slack_sdk.",
    "sqlite3.connect", "aiosqlite.connect", "psycopg.connect", "psycopg2.connect", "asyncpg.connect",
    "psycopg.Connection.", "psycopg.AsyncConnection.", "psycopg_pool.", "asyncpg.create_pool", "tempfile.",
    "aiofiles.", "shutil.", "os.remove", "os.unlink", "os.mkdir", "os.makedirs", "os.rename", "os.replace", "os.rmdir",
)  # fmt: skip
DATA = re.compile(r"(Error|Exception|Timeout|URL|Limits|Request|Response|Headers|Cookies|Auth|Retry|codes)\b")
FILES = {"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "rmdir"}  # methods of a Path
SLEEP = {"time.sleep", "asyncio.sleep", "trio.sleep", "anyio.sleep"}


_BLOCKS = (
    "time.sleep", "requests.", "urllib.request.urlopen", "subprocess.run", "subprocess.call", "subprocess.check_",
    "subprocess.getoutput", "os.system", "smtplib.SMTP", "psycopg.connect", "psycopg2.connect", "sqlite3.connect",
    "urllib3.", "boto3.", "ftplib.", "paramiko.", "pymongo.MongoClient", "http.client.",
    *(f"httpx.{name}" for name in ("get", "post", "put", "patch", "delete", "head", "request", "stream", "Client")),
)  # fmt: skip


@rule("PEN014")
def deterministic(facts: Facts, rule: Rule) -> Places:
    """A query or mutation asks the clock, chance or the environment."""
    for body, root in facts.transactions:
        calls = {one.node.func: one.node for one in body.calls}
        for node, name in body.outside:
            told = changing(name, calls.get(node))
            if told:
                instead_of, edits = repair(facts.program, body, node, name, calls.get(node))
                message = f"{name} {told}: {root} may see another value in each attempt."
                yield rule.at(body, node, message, instead_of, edits)


def changing(name: str, call: ast.Call | None) -> str:
    """Why a name of another package gives something else each time; empty if it does not."""
    if name in _CLOCK or (call is not None and len(call.args) < _CLOCK_UNLESS.get(name, 0)):
        return "is the wall clock"
    if name in _ENVIRONMENT:
        return "is this process's environment"
    is_chance = name.startswith(_CHANCE) and name not in {"random.Random", "secrets.compare_digest"}
    return "is chance" if is_chance else ""


def repair(program: Program, body: Body, node: ast.expr, name: str, call: ast.Call | None) -> tuple[str, list[Edit]]:
    """Say what to write instead, and how, if that is safe."""
    if name in _ENVIRONMENT:
        return "Read it once at the top of the file, or pass it as an argument.", []
    module, word = body.function.module, body.ctx_name or "ctx"
    ctx = body.ctx_name if body.function.bindings(word.partition(".")[0]) == 1 else ""
    argument = next((one for one in body.function.parameters if one.arg == ctx), None)
    if argument and not all(program.ctx_of(*one) for one in program.types(module, argument.annotation)):
        ctx = ""  # such as None
    is_workflow = body.ctx is not None and body.ctx.kind == "workflow"
    if name == "uuid.uuid4" and is_workflow:
        edits = [instead(module, call, f"{ctx}.uuid()")] if ctx and call is not None else []
        return f"Write {word}.uuid().", edits
    if name.startswith("uuid."):
        return f"Write uuid.UUID(int={word}.random.getrandbits(128), version=4).", []
    if name in _CLOCK or name in _CLOCK_UNLESS:
        is_same = name == "time.time" or (name == "datetime.datetime.now" and call and _is_utc(program, module, call))
        is_live = body.ctx is not None and body.ctx.kind == "query"  # the same text in each place that a query reads
        length, imports = _timedelta(program, module) if is_live else ("", [])
        is_same = is_same and imports is not None and not body.function.bindings(length.partition(".")[0])
        now = f"{word}.now({f'every={length}(minutes=1)' if is_live else ''})"
        now += ".timestamp()" if name == "time.time" else ""
        edits = [instead(module, call, now), *(imports or ())] if ctx and is_same and call is not None else []
        why = _IN_LIVE if is_live else _IN_REPLAYS if is_workflow else _SAME
        return f"Write {now}: {why}.", edits
    method = name.rpartition(".")[2]
    if name.startswith("random.") and method in _OF_CTX:
        edits = [instead(module, node, f"{ctx}.random.{method}")] if ctx else []
        return f"Write {word}.random.{method}(…).", edits
    return f"Take it from {word}.random, or make it in the action or client that calls.", []


def _is_utc(program: Program, module: Module, call: ast.Call) -> bool:
    given = [*call.args, *(one.value for one in call.keywords)]
    return len(given) == 1 and program.meaning(module, given[0]) in _UTC


def _timedelta(program: Program, module: Module) -> tuple[str, list[Edit] | None]:
    """The name of `timedelta` in a file, and the line that imports it if none does; None if that name is another's."""
    always = {*module.tree.body}  # and not only for type checkers
    for name in (name for name, node in module.names.items() if node in always):
        found = program.project.look_up(module, name)
        if found in {Outside("datetime.timedelta"), Outside("datetime")}:
            return (name if found == Outside("datetime.timedelta") else f"{name}.timedelta"), []
    imports = (one for one in module.tree.body if isinstance(one, ast.Import | ast.ImportFrom))
    first = next((one for one in imports if getattr(one, "module", "") != "__future__"), None)
    if first is None or first.col_offset or "timedelta" in module.names:
        return "timedelta", None
    begin, end = Span(first.lineno, 0, first.lineno, 0), "\r\n" if "\r\n" in module.text else "\n"
    return "timedelta", [Edit(begin, f"from datetime import timedelta{end}")]


@rule("PEN015", "Do it in an action, which this mutation schedules: await ctx.scheduler.run_after(timedelta(0), …).")
def inside_only(facts: Facts, rule: Rule) -> Places:
    """A query or mutation reaches the outside world."""
    for body, root in facts.transactions:
        for node, name in body.outside:
            if name in SLEEP:
                message = f"{name} keeps the transaction of {root} open, and others wait for it."
                fix = "Wait in an action, or schedule the rest: await ctx.scheduler.run_after(…)."
                yield rule.at(body, node, message, fix)
            elif name.startswith(NETWORK) and not DATA.search(name):
                yield rule.at(body, node, _reaches(name, root))
        for call in (one for one in body.calls if one.of is None):
            name = last_name(call.node.func)
            if name == "open" if isinstance(call.node.func, ast.Name) else name in FILES:
                yield rule.at(body, call.node, _reaches(name, root))


def _reaches(name: str, root: str) -> str:
    return f"{name} is outside of the transaction of {root}, which may be undone, or run again."


@rule("PEN022", 'Await an async call, write the function with def, or set runtime="process".')
def never_blocks(facts: Facts, rule: Rule) -> Places:
    """An async function blocks the event loop."""
    actions = [body for body in facts.bodies_of("action") if body.function.is_async]
    for body, root in facts.reach(actions).values():
        called = {one.node.func for one in body.calls}
        for node, name in body.outside:
            if node in called and name.startswith(_BLOCKS) and not DATA.search(name):
                message = f"{name} blocks the event loop in {root.name}: nothing else runs in the process meanwhile."
                yield rule.at(body, node, message)
