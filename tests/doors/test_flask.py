"""The example in Flask, in the threads of its server: a backend per process, errors with their statuses."""

from __future__ import annotations

from typing import Any

import parcels
import pytest
import with_flask

from penstock import Success

ADA = {"sender": "ada", "address": "Main Street 1", "due": "2035-01-01T12:00:00+00:00"}


def test_the_example_works_and_errors_have_their_statuses(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    http = with_flask.web.test_client()

    def answer(path: str, status: int, **request: Any) -> Any:
        answered = http.open(path, **request)
        assert (answered.status_code, answered.content_type) == (status, "application/json"), answered.text
        return answered.json

    try:
        parcel = answer("/parcels", 201, method="POST", data=ADA)
        late = answer("/parcels", 409, method="POST", data={**ADA, "due": "2001-01-01T12:00:00+00:00"})
        assert late["data"] == {"reason": "too late"}
        assert answer(f"/parcels/{parcel}/delivery", 200, method="POST")["delivered"] is True
        assert answer("/parcels/parcel_1/delivery", 422, method="POST")["code"] == "ArgumentsInvalid"
        gone = answer("/parcels/parcel_01jd3k4v5w6x7y8z9a0b1c2d3e/delivery", 404, method="POST")
        assert "parcel_0" not in gone["message"], "the text of the error is for the log"
        assert [found["id"] for found in answer("/parcels", 200, auth=("ada", "secret"))] == [parcel]
        assert answer("/parcels", 401)["code"] == "NotSignedIn"
        (job,) = parcels.app.sync.jobs("pending")
        with parcels.app.sync.open(services=("worker",)) as worker:
            assert parcels.printer.result(worker, job.id) == Success(f"label of {parcel}")
    finally:
        parcels.app.sync.close()
