"""Parcels in FastAPI. Start it in this folder: ``uvicorn with_fastapi:web``; its documentation is at ``/docs``.

Sign in with any name, and the password ``secret``.
"""

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from parcels import Parcel, app, deliver, mine, send

from penstock import Backend, CallerBackend, Id, Identity
from penstock.fastapi import FromJson, install

web = FastAPI()
backend = install(web, app, services="all", path="/backend")
Post = Annotated[Backend, Depends(backend)]


def post_of_user(given: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())], post: Post) -> CallerBackend:
    if given.password != "secret":  # noqa: S105 - of an example
        raise HTTPException(401)
    return post.with_identity(Identity(subject=given.username, issuer="https://post.example"))


UserPost = Annotated[CallerBackend, Depends(post_of_user)]


@web.post("/parcels", status_code=201)
async def send_parcel(parcel: FromJson[Parcel], post: Post) -> Id[Parcel]:
    return await post.run_mutation(send, parcel)


@web.get("/parcels")
async def my_parcels(post: UserPost) -> list[Parcel]:
    return await post.run_query(mine)


@web.post("/parcels/{parcel}/delivery")
async def deliver_parcel(parcel: Id[Parcel], post: Post) -> Parcel:
    return await post.run_mutation(deliver, parcel)
