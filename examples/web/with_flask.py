"""Parcels in Flask. Start it in this folder: ``flask --app with_flask run``, and ``penstock worker --app parcels``.

Sign in with any name, and the password ``secret``.
"""

from datetime import datetime

from flask import Flask, Response, jsonify, request
from parcels import Parcel, app, deliver, mine, send

from penstock import Id, Identity
from penstock.flask import install

web = Flask(__name__)
install(web)


def signed_in() -> Identity | None:
    given = request.authorization
    if given is None or given.username is None or given.password != "secret":  # noqa: S105 - of an example
        return None
    return Identity(subject=given.username, issuer="https://post.example")


@web.post("/parcels")
def send_parcel() -> tuple[Response, int]:
    form = request.form
    parcel = Parcel(sender=form["sender"], address=form["address"], due=datetime.fromisoformat(form["due"]))
    return jsonify(app.sync.run_mutation(send, parcel)), 201


@web.get("/parcels")
def my_parcels() -> Response:
    found = app.sync.with_identity(signed_in()).run_query(mine)
    return jsonify([parcel.model_dump(mode="json") for parcel in found])


@web.post("/parcels/<parcel>/delivery")
def deliver_parcel(parcel: str) -> Response:
    return jsonify(app.sync.run_mutation(deliver, Id(parcel)).model_dump(mode="json"))
