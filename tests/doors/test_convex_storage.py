"""Files by the calls of Convex's own tests of its storage: over its HTTP endpoints, and by an HTTP action."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock import ActionCtx, App, File, Id, MutationCtx, QueryCtx, public
from penstock.files.file import ANY_TYPE
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores
app = App()
TEXT = b"Hello, file storage!"


@app.mutation(name="files:uploadUrl", access=public)
async def upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.query(name="files:url", access=public)
async def url(ctx: QueryCtx, storageId: Id[File]) -> str | None:  # noqa: N803 - as Convex says
    return await ctx.storage.get_url(storageId)


@app.query(name="files:metadata", access=public)
async def metadata(ctx: QueryCtx, storageId: Id[File]) -> File | None:  # noqa: N803 - as Convex says
    return await ctx.storage.get_metadata(storageId)


@app.query(name="files:list", access=public)
async def listed(ctx: QueryCtx) -> list[File]:
    return await ctx.storage.list()


@app.mutation(name="files:delete", access=public)
async def delete(ctx: MutationCtx, storageId: Id[File]) -> None:  # noqa: N803 - as Convex says
    await ctx.storage.delete(storageId)


@app.action(name="files:copy", access=public)
async def copy(ctx: ActionCtx, storageId: Id[File], gone: bool) -> Id[File] | None:  # noqa: N803 - as Convex says
    opened = await ctx.storage.open(storageId)
    if opened is None:
        return None
    made = await ctx.storage.store(await opened.read(), content_type=opened.file.content_type)
    if gone:
        await ctx.storage.delete(storageId)
    return made


@app.action(name="files:uploadUrlOfAction", access=public)
async def upload_url_of_action(ctx: ActionCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.action(name="files:urlInAction", access=public)
async def url_in_action(ctx: ActionCtx, storageId: Id[File]) -> str | None:  # noqa: N803 - as Convex says
    return await ctx.storage.get_url(storageId)


@app.http("POST", "/pictures", access=public)
async def take(ctx: ActionCtx, request: Request) -> Response:
    given = request.headers
    digest = given["digest"].removeprefix("sha-256=") if "digest" in given else None
    return Response(await ctx.storage.store(request.stream(), content_type=given.get("content-type"), sha256=digest))


@app.http("GET", "/pictures/bytes", access=public)
async def give_bytes(ctx: ActionCtx, request: Request) -> Response:
    opened = await ctx.storage.open(request.query_params["id"])
    return Response(status_code=404) if opened is None else Response(await opened.read())


@app.http("GET", "/pictures", access=public)
async def give(ctx: ActionCtx, request: Request) -> Response:
    found = await ctx.storage.get_url(request.query_params["id"])
    return Response(status_code=404) if found is None else RedirectResponse(found)


@app.http("DELETE", "/pictures", access=public)
async def remove(ctx: ActionCtx, request: Request) -> Response:
    await ctx.storage.delete(request.query_params["id"])
    return Response(status_code=204)


async def call(test: TestApp, kind: str, name: str, **args: Any) -> Any:
    body = {"path": f"files:{name}", "args": args, "format": "json"}
    return (await test.http.post(f"/api/{kind}", json=body)).json()


async def upload(test: TestApp, content: bytes = TEXT, *, action: bool = False, **headers: str) -> httpx.Response:
    asked = ("action", "uploadUrlOfAction") if action else ("mutation", "uploadUrl")
    where = (await call(test, *asked))["value"]
    return await test.http.post(where, content=content, headers={"content-type": "text/plain", **headers})


def digest_header(content: bytes) -> str:
    return f"sha-256={base64.b64encode(hashlib.sha256(content).digest()).decode()}"


@pytest.mark.parametrize("content", [TEXT, b""])
async def test_a_file_is_found_by_both_of_its_ids(database_url: str, content: bytes) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        answer = await upload(test, content)
        assert (answer.status_code, [*answer.json()]) == (200, ["storageId"])
        new = answer.json()["storageId"]
        known = (await call(test, "query", "metadata", storageId=new))["value"]
        digest = hashlib.sha256(content)
        assert (known["sha256"], known["size"], known["contentType"]) == (
            digest.hexdigest(),
            len(content),
            "text/plain",
        )
        old = known["storageId"]
        assert (await call(test, "query", "list"))["value"] == [known]
        for name in (new, old):
            assert (await call(test, "query", "metadata", storageId=name))["value"] == known
            where = (await call(test, "query", "url", storageId=name))["value"]
            assert where == f"/api/storage/{old}"
            shown = await test.http.get(where, headers={"range": "bytes=0-4"})
            assert (shown.status_code, shown.content) == (206 if content else 200, content[:5])
            whole = await test.http.get(where)
            assert whole.headers["digest"] == f"sha-256={base64.b64encode(digest.digest()).decode()}"
            made = (await call(test, "action", "copy", storageId=name, gone=False))["value"]
            assert (await call(test, "query", "metadata", storageId=made))["value"]["sha256"] == digest.hexdigest()
        assert (await call(test, "mutation", "delete", storageId=old))["status"] == "success"
        for name in (new, old):
            for kind, function in (("query", "metadata"), ("query", "url")):
                assert (await call(test, kind, function, storageId=name))["value"] is None
            again = await call(test, "mutation", "delete", storageId=name)
            assert again["status"] == "error"
            assert name in again["errorMessage"]
            assert (await call(test, "action", "copy", storageId=name, gone=True))["value"] is None
        gone = await test.http.get(f"/api/storage/{old}")
        assert (gone.status_code, gone.json()["code"]) == (404, "FileNotFound")


async def test_what_is_no_id_names_its_argument(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        for wrong in ("nonsense", "", "k57anfqvz2v8y1qfqnk9wxw3h56ey7x1", 7, None):
            for kind, name in (("query", "url"), ("query", "metadata"), ("mutation", "delete")):
                told = await call(test, kind, name, storageId=wrong)
                assert told["status"] == "error"
                assert "storageId" in told["errorMessage"], told


async def test_an_action_moves_a_file_and_a_broken_upload_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        wrong = base64.b64encode(hashlib.sha256(b"").digest()).decode()
        answer = await upload(test, digest=f"sha-256={wrong}")
        assert (answer.status_code, answer.json()["code"]) == (400, "Sha256Mismatch")
        assert (await call(test, "query", "list"))["value"] == []
        old = (await upload(test)).json()["storageId"]
        new = (await call(test, "action", "copy", storageId=old, gone=True))["value"]
        assert [one["_id"] for one in (await call(test, "query", "list"))["value"]] == [new]


async def test_an_http_action_takes_gives_and_deletes(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        file = (await test.http.post("/pictures", content=TEXT, headers={"content-type": "image/png"})).text
        answer = await test.http.get("/pictures", params={"id": file})
        assert answer.status_code == 307
        shown = await test.http.get(answer.headers["location"])
        assert (shown.content, shown.headers["content-type"]) == (TEXT, "image/png")
        assert (await test.http.delete("/pictures", params={"id": file})).status_code == 204
        assert (await test.http.get("/pictures", params={"id": file})).status_code == 404
        assert (await test.http.delete("/pictures", params={"id": file})).status_code >= 400
        for content, headers in ((TEXT, {}), (b"", {"content-type": "text/plain"}), (b"", {})):
            file = (await test.http.post("/pictures", content=content, headers=headers)).text
            where = (await test.http.get("/pictures", params={"id": file})).headers["location"]
            shown = await test.http.get(where)
            assert (shown.content, shown.headers["content-length"]) == (content, str(len(content)))
            assert shown.headers["content-type"].partition(";")[0] == headers.get("content-type", ANY_TYPE)


async def test_an_http_action_knows_files_by_both_ids(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        for which in ("_id", "storageId"):
            file = (await test.http.post("/pictures", content=TEXT)).text
            name = {"id": (await call(test, "query", "metadata", storageId=file))["value"][which]}
            assert (await test.http.get("/pictures/bytes", params=name)).content == TEXT
            assert (await test.http.delete("/pictures", params=name)).status_code == 204
            for path in ("/pictures", "/pictures/bytes"):
                assert (await test.http.get(path, params=name)).status_code == 404
            again = await test.http.delete("/pictures", params=name)
            assert (again.status_code, name["id"] in again.text) == (404, True), again.text
        wrong = await test.http.delete("/pictures", params={"id": "nonsense"})
        assert (wrong.status_code >= 400, "nonsense" in wrong.text) == (True, True), wrong.text


async def test_an_http_action_stores_nothing_under_a_wrong_digest(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        for content, status in ((TEXT, 200), (b"other bytes", 500)):
            answer = await test.http.post("/pictures", content=content, headers={"digest": digest_header(TEXT)})
            assert answer.status_code == status, answer.text
        (kept,) = (await call(test, "query", "list"))["value"]
        assert kept["size"] == len(TEXT)


async def test_an_action_makes_urls_for_uploads_and_of_files(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as test:
        new = (await upload(test, action=True, digest=digest_header(TEXT))).json()["storageId"]
        old = (await call(test, "query", "metadata", storageId=new))["value"]["storageId"]
        for name in (new, old):
            where = (await call(test, "action", "urlInAction", storageId=name))["value"]
            assert (await test.http.get(where)).content == TEXT
