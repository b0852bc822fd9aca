"""Rules about the outside world in functions that run in a transaction."""

from __future__ import annotations

import ast
import re

from penstock.check.body import Body
from penstock.check.finding import Edit
from penstock.check.rule import Facts, Places, Rule, instead, rule

_CLOCK = {
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "datetime.datetime.now",
    "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today", "django.utils.timezone.now",
    "pendulum.now", "arrow.now", "arrow.utcnow",
}  # fmt: skip
_CLOCK_UNLESS = {"time.localtime": 1, "time.gmtime": 1, "time.ctime": 1, "time.strftime": 2}  # given a time
_CHANCE = ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "numpy.random.")
_OF_CTX = {"random", "randint", "choice", "choices", "sample", "shuffle", "uniform", "randrange", "gauss"}
_ENVIRONMENT = {"os.environ", "os.getenv", "os.environb"}
_NETWORK = (
    "requests.", "httpx.", "aiohttp.", "urllib.request.", "urllib3.", "smtplib.", "socket.", "http.client.",
    "boto3.", "subprocess.", "asyncio.create_subprocess", "os.system", "openai.", "anthropic.", "stripe.", "twilio.",
    "redis.", "grpc.", "ftplib.", "paramiko.", "websockets.", "aioboto3.", "kafka.", "aiokafka.", "pika.", "aio_pika.",
    "nats.", "pymongo.", "motor.", "elasticsearch.", "google.cloud.", "azure.", "sendgrid.", "slack_sdk.",
    "sqlite3.connect", "aiosqlite.connect", "psycopg.connect", "psycopg2.connect", "asyncpg.connect",
    "psycopg.Connection.", "psycopg.AsyncConnection.", "psycopg_pool.", "asyncpg.create_pool", "tempfile.",
    "aiofiles.", "shutil.", "os.remove", "os.unlink", "os.mkdir", "os.makedirs", "os.rename", "os.replace", "os.rmdir",
)  # fmt: skip
_DATA = re.compile(r"(Error|Exception|Timeout|URL|Limits|Request|Response|Headers|Cookies|Auth|Retry|codes)\b")
_FILES = {"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "rmdir"}  # methods of a Path
_SLEEP = {"time.sleep", "asyncio.sleep", "trio.sleep", "anyio.sleep"}


_BLOCKS = (
    "time.sleep", "requests.", "urllib.request.urlopen", "subprocess.run", "subprocess.call", "subprocess.check_",
    "subprocess.getoutput", "os.system", "smtplib.SMTP", "psycopg.connect", "psycopg2.connect", "sqlite3.connect",
)  # fmt: skip


@rule("PEN014")
def deterministic(facts: Facts, rule: Rule) -> Places:
    """A query or mutation asks the clock, chance or the environment."""
    for body, root in facts.transactions:
        for node, name in body.outside:
            told = _changing(name) or _unless_given(body, node, name)
            if told:
                instead_of, edits = _repair(body, node, name, body.ctx_name)
                message = f"{name} {told}: {root} may see another value in each attempt."
                yield rule.at(body.function.module, node, message, instead_of, edits)


def _changing(name: str) -> str:
    if name in _CLOCK:
        return "is the wall clock"
    if name in _ENVIRONMENT:
        return "is this process's environment"
    is_chance = name.startswith(_CHANCE) and name not in {"random.Random", "secrets.compare_digest"}
    return "is chance" if is_chance else ""


def _unless_given(body: Body, node: ast.expr, name: str) -> str:
    call = next((one.node for one in body.calls if one.node.func is node), None)
    is_clock = call is not None and len(call.args) < _CLOCK_UNLESS.get(name, 0)
    return "is the wall clock" if is_clock else ""


def _repair(body: Body, node: ast.expr, name: str, ctx: str) -> tuple[str, list[Edit]]:
    if name in _ENVIRONMENT:
        return "Read it once at the top of the file, or pass it as an argument.", []
    word = ctx or "ctx"
    if name.startswith("uuid."):
        return f"Write uuid.UUID(int={word}.random.getrandbits(128), version=4).", []
    if name in _CLOCK or name in _CLOCK_UNLESS:
        call = next((one.node for one in body.calls if one.node.func is node), None)
        now = f"{word}.now().timestamp()" if name == "time.time" else f"{word}.now()"
        is_same = name == "time.time" or (name == "datetime.datetime.now" and call is not None and _is_utc(call))
        edits = [instead(body.function.module, call, now)] if ctx and is_same and call is not None else []
        return f"Write {now}: the same in each attempt of one execution.", edits
    method = name.rpartition(".")[2]
    if name.startswith("random.") and method in _OF_CTX:
        edits = [instead(body.function.module, node, f"{ctx}.random.{method}")] if ctx else []
        return f"Write {word}.random.{method}(…).", edits
    return f"Take it from {word}.random, or make it in the action or client that calls.", []


def _is_utc(call: ast.Call) -> bool:
    given = [*call.args, *(one.value for one in call.keywords)]
    return len(given) == 1 and ast.unparse(given[0]) in {"UTC", "timezone.utc", "datetime.UTC", "datetime.timezone.utc"}


@rule("PEN015")
def inside_only(facts: Facts, rule: Rule) -> Places:
    """A query or mutation reaches the outside world."""
    for body, root in facts.transactions:
        module = body.function.module
        for node, name in body.outside:
            if name in _SLEEP:
                message = f"{name} keeps the transaction of {root} open, and others wait for it."
                fix = "Wait in an action, or schedule the rest: await ctx.scheduler.run_after(…)."
                yield rule.at(module, node, message, fix)
            elif name.startswith(_NETWORK) and not _DATA.search(name):
                yield rule.at(module, node, _reaches(name, root), _OUTSIDE_FIX)
        for call in (one for one in body.calls if one.of is None):
            name = getattr(call.node.func, "id", getattr(call.node.func, "attr", ""))
            if name == "open" if isinstance(call.node.func, ast.Name) else name in _FILES:
                yield rule.at(module, call.node, _reaches(name, root), _OUTSIDE_FIX)


_OUTSIDE_FIX = "Do it in an action, which this mutation schedules: await ctx.scheduler.run_after(timedelta(0), …)."


def _reaches(name: str, root: str) -> str:
    return f"{name} is outside of the transaction of {root}, which may be undone, or run again."


@rule("PEN022")
def never_blocks(facts: Facts, rule: Rule) -> Places:
    """An async function blocks the event loop."""
    actions = [body for body in facts.bodies_of("action") if body.function.is_async]
    for body, root in facts.reached(actions).values():
        called = {one.node.func for one in body.calls}
        for node, name in body.outside:
            if node in called and name.startswith(_BLOCKS) and not _DATA.search(name):
                message = f"{name} blocks the event loop in {root.name}: nothing else runs in the process meanwhile."
                fix = 'Await an async call, write the function with def, or set runtime="process".'
                yield rule.at(body.function.module, node, message, fix)
