"""Pictures in a bucket: uploaded, shown and deleted over HTTP, and the bucket holds what the rows name."""

from __future__ import annotations

import importlib
import os

import httpx
import pytest
from recipes.running import Recipe
from stage.servers import bucket

pytest.importorskip("obstore", reason="it comes with the extra `files`")

RECIPE = "bucket"


@pytest.mark.long
@pytest.mark.both_stores
def test_a_picture_is_uploaded_shown_and_deleted(recipe: Recipe, database_url: str) -> None:
    with bucket() as place:
        recipe.environment |= {**os.environ, "DATABASE_URL": database_url, "PENSTOCK_FILES": place}
        web = recipe.start("penstock", "serve", "--services", "--port", "{port}")

        def call(kind: str, path: str, **arguments: str) -> object:
            asked = {"path": f"gallery:{path}", "args": arguments}
            answer = httpx.post(f"{web.url}/api/{kind}", json=asked).json()
            assert answer["status"] == "success", (answer, web.log)
            return answer["value"]

        name = place.removeprefix("s3://").partition("/")[0]
        objects = importlib.import_module("boto3").client("s3")

        def stored() -> list[bytes]:
            found = objects.list_objects_v2(Bucket=name).get("Contents", [])
            return [objects.get_object(Bucket=name, Key=one["Key"])["Body"].read() for one in found]

        url = httpx.URL(web.url).join(str(call("mutation", "upload_url")))
        answer = httpx.post(url, content=b"GIF89a", headers={"content-type": "image/gif"})
        picture = call("mutation", "add", title="A dot", file=answer.json()["storageId"])
        shown = call("query", "pictures")
        assert isinstance(shown, list)
        got = httpx.get(httpx.URL(web.url).join(shown[0]))
        assert (got.content, got.headers["content-type"]) == (b"GIF89a", "image/gif")
        assert b"GIF89a" in stored()
        call("mutation", "remove", picture=str(picture))
        web.wait_for(lambda: b"GIF89a" not in stored())
        assert httpx.get(got.url).status_code == 404
        assert web.stop() == 0
