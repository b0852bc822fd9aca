"""The pages of files: what they list, whom they show it to, and how a file is deleted."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from doors.board_fixtures import board
from pydantic import Field
from stage.servers import bytes_in, sweep
from stage.stories import tell_in

from penstock import App, File, Id, Table

pytestmark = pytest.mark.both_stores
HOSTILE = """image/png;a="<script>alert(1)</script>" """.strip()
PNG = b"\x89PNG\r\n\x1a\n"


class Frame(Table, name="frame_of_boards"):
    picture: Id[File]
    others: list[Id[File]] = Field(default_factory=list)


app = App(tables=[Frame])
write, _, _ = tell_in(app)


async def test_a_file_is_shown_with_the_rows_that_refer_to_it(database_url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "files")
    async with board(app, database_url, files=place) as page:
        storage = page.test.storage
        assert "There are no files." in await page.get("/files")
        picture = await storage.store(PNG, content_type=HOSTILE)
        script = await storage.store(b"<script>alert(1)</script>", content_type="image/svg+xml")
        known = await storage.get_metadata(picture)
        assert known is not None

        async def refer(ctx: Any) -> list[str]:
            first = Frame(picture=Id(known.storage_id), others=[script])
            return [await ctx.db.insert(one) for one in (first, Frame(picture=script), Frame(picture=picture))]

        rows = await page.test.run_mutation(write, refer)
        listed = await page.here.get("/files")
        assert "<script>" not in listed.text
        assert listed.text.index(script) < listed.text.index(picture), "newest first"
        assert [one in await page.get("/files", type="svg") for one in (script, picture)] == [True, False]
        for name in (picture, known.storage_id):
            found = await page.get("/files", file=name)
            assert picture in found
            assert script not in found
        for hostile in ("'; drop table", "%", "\\", "é", "x" * 5000):
            for word in ("file", "type"):
                assert "No file matches." in await page.get("/files", **{word: hostile})
        shown = (await page.here.get(f"/files/{picture}")).text
        assert [row in shown for row in rows] == [True, False, True]
        assert known.storage_id not in listed.text + shown
        assert known.sha256 in shown
        (path,) = set(re.findall(r'(?:src|href)="(/api/storage/[^"]*)"', shown))
        answer = await page.browser().get(f"http://localhost{path}")
        assert (answer.status_code, answer.content) == (200, PNG)
        page.test.clock.advance(timedelta(hours=1))
        assert (await page.browser().get(f"http://localhost{path}")).status_code == 401
        shown = (await page.here.get(f"/files/{script}")).text
        assert [row in shown for row in rows] == [True, True, False]
        assert "/api/storage" not in shown, "it may run scripts"
        await page.get("/files/file_of_nobody", 404)
        assert len(bytes_in(place)) == 2


async def test_who_may_edit_deletes_a_file(database_url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "files")
    async with board(app, database_url, files=place) as page:
        file = await page.test.storage.store(PNG, content_type="image/png")
        looking = await page.signed_in("dashboard:operate")
        assert "Delete" not in (await looking.get(f"/files/{file}")).text
        assert (await looking.post(f"/files/{file}", data={"act": "delete", "sure": "yes"})).status_code == 403
        assert "Delete this file?" in await page.ask(f"/files/{file}", "delete", {})
        assert await page.test.storage.get_metadata(file) is not None
        assert "The file is deleted." in await page.act(f"/files/{file}", "delete", sure="yes")
        await sweep(page.test)
        assert bytes_in(place) == {}
        assert file in await page.get("/audit")


async def test_many_files_are_listed_in_pages(database_url: str) -> None:
    async with board(app, database_url) as page:
        stored = [await page.test.storage.store(b"%d" % number, content_type="text/plain") for number in range(120)]
        seen, path = list[str](), "/files?type=text"
        while path:
            text = await page.see(path)
            seen += re.findall(r'data-key="(file_\w+)"', text)
            (path,) = re.findall(r'class="more"><a class="button" href="([^"]*)"', text) or [""]
            path = path and f"/files{path}"
        assert seen == stored[::-1]
