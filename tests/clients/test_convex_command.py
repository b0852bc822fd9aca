"""The official command line of Convex on a penstock server: it shows tables and rows, or is refused by a sentence."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest
from stage.clients import COMPILERS, Server, client, node_modules, serving
from stage.needs import program
from stage.processes import Command, Process

ADMIN = "the-admin-token"
EMPTY = (0, "There are no documents in this table.\n")


class AlbumServer(Server):
    def spawn(self) -> Process:
        return Command("programs.album", self.database, "serve", "--port", str(self.port), **self.settings)


async def convex(server: Server, folder: Path, *arguments: str, admin: str = ADMIN) -> tuple[int, str]:
    """What ``npx convex`` ends with, and what it says."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "CI": "1", "NO_COLOR": "1",
        "CONVEX_SELF_HOSTED_URL": server.url, "CONVEX_SELF_HOSTED_ADMIN_KEY": admin,
    }  # fmt: skip
    command = [program("node", "nodejs"), "node_modules/convex/bin/main.js", *arguments]
    pipe, out = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=out
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "node_modules").symlink_to(node_modules(COMPILERS) / "node_modules")
    (tmp_path / "package.json").write_text('{"name": "album", "dependencies": {"convex": "*"}}', "utf-8")
    return tmp_path


@pytest.mark.both_stores
async def test_data_is_shown(database_url: str, project: Path) -> None:
    settings = {"admin_token": ADMIN, "files": str(project / "files")}
    async with serving(database_url, AlbumServer, **settings) as server, client("http", server.url) as page:
        assert await convex(server, project, "data") == (0, "_storage\nmessage_of_album\n")
        assert await convex(server, project, "data", "message_of_album") == EMPTY
        async with httpx.AsyncClient(base_url=server.url) as http:
            for author in ("Ada", "Bob", "Eve"):
                url = await page.mutation("messages:generateUploadUrl")
                file = (await http.post(url, content=author)).json()["storageId"]
                await page.mutation("messages:sendImage", storageId=file, author=author)
        code, said = await convex(server, project, "data", "message_of_album", "--limit", "2", "--format", "jsonLines")
        rows = [json.loads(line) for line in said.splitlines()]
        assert (code, [row["author"] for row in rows]) == (0, ["Eve", "Bob"])
        assert {*rows[0]} == {"_id", "_creationTime", "author", "picture"}
        code, said = await convex(server, project, "data", "_storage", "--order", "asc")
        assert code == 0
        assert rows[0]["picture"] in said


async def test_what_is_not_there_is_shown_as_such_and_variables_are_refused(database_url: str, project: Path) -> None:
    settings = {"admin_token": ADMIN, "files": str(project / "files")}
    async with serving(database_url, AlbumServer, **settings) as server:
        for table in ("_storage", "nothing"):
            assert await convex(server, project, "data", table) == EMPTY
        assert await convex(server, project, "env", "list") == (0, "No environment variables set\n")
        code, said = await convex(server, project, "env", "get", "A")
        assert 'Environment variable "A" not found' in said
        for arguments in (("set", "A", "b"), ("remove", "A")):
            code, said = await convex(server, project, "env", *arguments)
            assert code == 1
            assert "There are no environment variables here" in said
            assert "    at " not in said


async def test_only_administrators_name_these_queries(database_url: str, project: Path) -> None:
    async with serving(database_url, AlbumServer, admin_token=ADMIN) as server, client("node", server.url) as page:
        await page.subscribe("tables", "_system/cli/tables", paginationOpts={"numItems": 9, "cursor": None})
        await page.comes(lambda seen: "error" in seen.get("tables", {}))
        code, said = await convex(server, project, "data", admin="another-admin-token")
        assert code == 1
        assert "The admin token is wrong." in said
