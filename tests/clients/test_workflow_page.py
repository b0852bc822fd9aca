"""Workflows in Chromium: the page of the docs starts a run and tells it an event; the dashboard retries one."""

from __future__ import annotations

import importlib
import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from programs.identities import provider
from stage.clients import CHAT, COMPILERS, axe, browser, check, node_modules, quiet_page
from stage.needs import program
from stage.repository import ROOT, blocks_of, modules_of
from stage.sockets import listening
from stage.waits import passing, until
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock import OIDC, ActionCtx, App, WorkflowCtx, asgi_app
from penstock.codegen.description import describe
from penstock.codegen.typescript import typescript_files
from penstock.testing import TestApp, TestClock

pytestmark = pytest.mark.long
_DOCS = ROOT / "docs" / "workflows.md"
ICON = '<link rel="icon" href="data:,">'
_MAIN = """
import { ConvexProvider, ConvexReactClient } from "convex/react";
import { createRoot } from "react-dom/client";
import { Report } from "./report";

const convex = new ConvexReactClient(location.origin);
convex.setAuth(async () => document.body.dataset.token);
createRoot(document.getElementById("root")).render(
  <ConvexProvider client={convex}><Report topic="tea" /></ConvexProvider>
);
"""
_SETTINGS = {
    "compilerOptions": {
        "strict": True, "noEmit": True, "module": "esnext", "moduleResolution": "bundler", "target": "es2022",
        "jsx": "react-jsx", "lib": ["es2022", "dom"], "types": [],
    },
    "include": ["report.tsx"],
}  # fmt: skip


errands = App()
failing = ["bad"]


@errands.internal_action
async def fetch(ctx: ActionCtx, what: str) -> None:
    if failing:
        raise ValueError(what)


@errands.workflow
async def errand(ctx: WorkflowCtx, what: str) -> None:
    await ctx.run_action(fetch, what)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of the page."""
    (tmp_path / "reports.py").write_text(modules_of(_DOCS)["reports"], "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("reports").app


def build(app: Any, folder: Path) -> None:
    """Compile the page with the clients of its program, and bundle it."""
    (shown,) = ["\n".join(block.lines) for block in blocks_of(_DOCS) if block.language == "tsx"]
    for name, text in typescript_files(describe(one for one in app.registry if one.public)).items():
        (folder / "api").mkdir(exist_ok=True)
        (folder / "api" / name).write_text(text, "utf-8")
    (folder / "report.tsx").write_text(shown, "utf-8")
    (folder / "main.tsx").write_text(_MAIN, "utf-8")
    (folder / "tsconfig.json").write_text(json.dumps(_SETTINGS), "utf-8")
    modules = folder / "node_modules"
    modules.symlink_to(node_modules(COMPILERS) / "node_modules")
    run(folder, modules / ".bin" / "tsc")
    modules.unlink()
    modules.symlink_to(node_modules(CHAT) / "node_modules")
    run(folder, modules / ".bin" / "esbuild", "main.tsx", "--bundle", "--jsx=automatic", "--outdir=built")


def run(folder: Path, *command: str | Path) -> None:
    program("node", "nodejs")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_person_starts_a_run_and_approves_it(database_url: str, app: Any, tmp_path: Path) -> None:
    build(app, tmp_path)
    with provider(clock := TestClock()) as issuer:
        app.auth = [OIDC(issuer.url, "shop")]
        async with TestApp(app, database_url, clock=clock) as test:
            token = issuer.token("ada")
            body = f'<body data-token="{token}"><div id="root"></div><script src="/built/main.js"></script>'
            web = Starlette(
                routes=[
                    Route("/", lambda _: HTMLResponse(f"<!doctype html><title>Report</title>{ICON}{body}")),
                    Mount("/built", StaticFiles(directory=tmp_path / "built")),
                    Mount("/", asgi_app(app, backend=test)),
                ]
            )
            async with listening(web) as url, passing(clock), browser() as opened, quiet_page(opened) as ada:
                await ada.goto(url)
                await ada.get_by_role("button", name="Write about tea").click()
                await expect(ada.get_by_text("queued")).to_be_visible()
                await test.run_until_idle(advance=False)
                await expect(ada.get_by_text("All about tea.")).to_be_visible()
                await ada.get_by_role("button", name="Publish").click()

                async def is_published() -> bool:
                    await test.run_until_idle(advance=False)
                    return await ada.get_by_role("heading", name="All about tea.").is_visible()

                await until(is_published)


async def test_a_person_retries_and_forks_a_run(database_url: str) -> None:
    async with (
        TestApp(errands, database_url, dev=True) as test,
        listening(asgi_app(errands, backend=test, dashboard=True)) as server,
        browser() as opened,
        quiet_page(opened) as page,
    ):
        await page.context.add_init_script(path=axe())
        failing[:] = ["bad"]
        run = await test.scheduler.run_after(timedelta(0), errand, "ada")
        await test.run_until_idle(raise_errors=False)
        await page.goto(f"{server.replace('127.0.0.1', 'localhost')}/dashboard/workflows/{run}")
        await page.get_by_text("Go on from a step").click()
        await check(page)
        await page.get_by_role("button", name="Retry from the last failed step").click()
        await expect(page.get_by_role("heading", name=f"Go on with {run} from an earlier step?")).to_be_visible()
        await check(page)
        failing.clear()
        await page.get_by_role("button", name="Yes, do it").click()
        await expect(page.get_by_text("It goes on.")).to_be_visible()
        await test.run_until_idle()
        await expect(page.get_by_role("region", name="State").get_by_text("success")).to_be_visible()
        await page.get_by_text("Go on from a step").click()
        await page.get_by_role("form", name="Fork from a step").get_by_label("Step").fill("1")
        await page.get_by_role("button", name="Fork").click()
        await page.get_by_role("button", name="Yes, do it").click()
        await expect(page.get_by_text(f"This run begins with the history of {run}.")).to_be_visible()
        assert not page.url.endswith(run)
