"""Workflows that reach out of their body: the network, files, threads, and awaits that are not recorded."""

import asyncio
import concurrent.futures
import contextlib
import glob
import os
import smtplib
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import anyio
import httpx
import requests
from somewhere import fetch_rates, warm_up

from penstock import ActionCtx, App, Backend, MutationCtx, QueryCtx, WorkflowCtx

app = App()
pool = app.workpool("reports")
client = httpx.AsyncClient()
said = app.event("said", str)


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return 1


@app.internal_mutation
async def keep(ctx: MutationCtx, what: str) -> str:
    return what


@app.internal_action
async def send(ctx: ActionCtx, what: str) -> str:
    found = await client.get(f"https://example.com/{what}")
    Path("sent").write_text(found.text)
    return await asyncio.to_thread(found.text.upper)


@app.workflow
async def child(ctx: WorkflowCtx) -> int:
    return 1


# ----- the network


@app.workflow
async def wrong_networks(ctx: WorkflowCtx, url: str) -> None:
    requests.get(url, timeout=3)  # expect: PEN024
    found = await client.get(url)  # expect: PEN024
    async with httpx.AsyncClient() as own:  # expect: PEN024
        await own.post(url)
    subprocess.run(["ls"], check=True)  # expect: PEN024
    with smtplib.SMTP("localhost") as mails:  # expect: PEN024
        mails.send_message(found)
    reader, writer = await asyncio.open_connection("localhost", 80)  # expect: PEN024
    await asyncio.create_subprocess_exec("ls")  # expect: PEN024
    os.system("ls")  # expect: PEN024
    await call_service(url)


async def call_service(url: str) -> str:
    answer = httpx.get(url)  # expect: PEN024
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url)  # expect: PEN024
    return answer.text


@app.workflow
async def right_networks(ctx: WorkflowCtx, url: str) -> str:
    try:
        found = await ctx.run_action(send, url)
    except httpx.HTTPError:
        found = ""
    except requests.Timeout:
        found = "late"
    except smtplib.SMTPException:
        found = "no mail"
    except subprocess.CalledProcessError:
        found = "failed"
    parsed = httpx.URL(url)
    await ctx.run_mutation(keep, str(parsed))
    names = await asyncio.gather(ctx.run_action(send, "a"), ctx.run_action(send, "b"))
    patient = ctx.with_options(retry=True, pool=pool, timeout=timedelta(seconds=3))
    await patient.run_action(send, "c")
    return found + "".join(names)


# ----- files


@app.workflow
async def wrong_files(ctx: WorkflowCtx, path: Path) -> None:
    with open("names.txt") as file:  # expect: PEN024
        await ctx.run_mutation(keep, file.read())
    path.write_text("a")  # expect: PEN024
    text = path.read_text()  # expect: PEN024
    if path.is_file():  # expect: PEN024
        path.unlink()  # expect: PEN024
    for one in path.iterdir():  # expect: PEN024
        await ctx.run_mutation(keep, one.name)
    names = os.listdir(".")  # expect: PEN024
    found = glob.glob("*.txt")  # expect: PEN024
    os.remove("names.txt")  # expect: PEN024
    if os.path.exists("done"):  # expect: PEN024
        await ctx.run_mutation(keep, text + str(names + found))
    path.touch()  # expect: PEN024


@app.workflow
async def right_files(ctx: WorkflowCtx, path: Path, names: list[str]) -> str:
    text = await ctx.run_action(send, str(path))
    suffix = path.suffix + path.with_suffix(".md").name
    joined = os.path.join("a", "b") + str(path / "c") + os.path.basename(text)
    try:
        await ctx.run_action(send, joined)
    except FileNotFoundError:
        await ctx.run_mutation(keep, "none")
    except OSError:
        await ctx.run_mutation(keep, "other")
    names.remove("a")
    opened = text.replace("open", "opened")
    is_there = path in [Path("a"), path.parent]
    return f"{suffix}{opened}{is_there}{os.sep}{names}"


# ----- threads


@app.workflow
async def wrong_threads(ctx: WorkflowCtx) -> None:
    await asyncio.to_thread(sum, [1, 2])  # expect: PEN024
    threading.Thread(target=print).start()  # expect: PEN024
    with ThreadPoolExecutor() as workers:  # expect: PEN024
        workers.submit(print)
    with concurrent.futures.ProcessPoolExecutor() as others:  # expect: PEN024
        others.submit(print)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, print)  # expect: PEN024
    lock = threading.Lock()  # expect: PEN024
    with lock:
        pass
    asyncio.run(count_up())  # expect: PEN024
    asyncio.run_coroutine_threadsafe(count_up(), loop)  # expect: PEN024
    await anyio.to_thread.run_sync(print)  # expect: PEN024
    asyncio.new_event_loop()  # expect: PEN024


async def count_up() -> int:
    return 1


@app.workflow
async def right_threads(ctx: WorkflowCtx) -> int:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ctx.run_query(count))
        second = group.create_task(count_up())
    lock = asyncio.Lock()
    async with lock:
        await ctx.run_query(count)
    limit = asyncio.Semaphore(3)
    async with limit:
        await ctx.run_query(count)
    queue: asyncio.Queue[int] = asyncio.Queue()
    await queue.put(1)
    ready = asyncio.Event()
    ready.set()
    await ready.wait()
    async with asyncio.timeout(3):
        await asyncio.sleep(1)
    done, _ = await asyncio.wait([asyncio.create_task(ctx.run_query(count))])
    task = asyncio.create_task(ctx.run_query(count))
    await asyncio.wait_for(task, 3)
    try:
        await ctx.run_action(send, "a")
    except concurrent.futures.TimeoutError:
        return 0
    return first.result() + second.result() + len(done) + await queue.get()


# ----- awaits that are not recorded


@app.workflow
async def wrong_awaits(ctx: WorkflowCtx, backend: Backend) -> None:
    await fetch_rates("eur")  # expect: PEN024
    await warm_up()  # expect: PEN024
    await keep(ctx, "a")  # expect: PEN024
    await count(ctx)  # expect: PEN024
    await send(ctx, "a")  # expect: PEN024
    await child(ctx)  # expect: PEN024
    await backend.run_mutation(keep, "a")  # expect: PEN024
    await pool.enqueue(ctx, send, "a")  # expect: PEN024
    await asyncio.gather(fetch_both(), ctx.run_query(count))
    rates = await fetch_rates("usd")  # expect: PEN024
    await anyio.sleep(rates)  # expect: PEN024


async def fetch_both() -> None:
    await fetch_rates("czk")  # expect: PEN024


@app.workflow
async def right_awaits(ctx: WorkflowCtx) -> list[int]:
    found = [await ctx.run_query(count), await ctx.run_workflow(child)]
    await ctx.run_mutation(keep, "a")
    await ctx.wait_for(said)
    await ctx.sleep(timedelta(days=1))
    await keep_twice(ctx)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(contextlib.nullcontext())
    task = asyncio.create_task(ctx.run_query(count))
    found.append(await task)
    found += await asyncio.gather(*(ctx.run_query(count) for _ in range(3)))
    for one in asyncio.as_completed([asyncio.create_task(ctx.run_query(count))]):
        found.append(await one)
    return found


async def keep_twice(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(keep, "b")
    await ctx.run_mutation(keep, "c")
