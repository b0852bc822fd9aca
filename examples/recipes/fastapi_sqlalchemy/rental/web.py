"""The endpoints: ``uvicorn rental.web:web``. The mails and bills are sent by ``penstock worker``."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import scrypt
from typing import Annotated

import jwt
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import OAuth2PasswordBearer
from pydantic import BaseModel
from rental.database import engine_url
from rental.models import Bike, Rental, User
from rental.work import ISSUER, SECRET, app, confirm, mail, mine
from rental.work import Rental as RentalRow
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from penstock import Backend, Identity
from penstock.fastapi import install

web = FastAPI()
backend = install(web, app, path="/backend")
sessions = async_sessionmaker(create_async_engine(engine_url()), expire_on_commit=False)
bearer = OAuth2PasswordBearer(tokenUrl="token")


async def open_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]
Work = Annotated[Backend, Depends(backend)]


class Login(BaseModel):
    username: str
    password: str


def hashed(password: str, name: str) -> str:
    return scrypt(password.encode(), salt=name.encode(), n=2**14, r=8, p=1).hex()


@web.post("/users", status_code=201)
async def sign_up(login: Login, session: Session) -> None:
    session.add(User(name=login.username, password=hashed(login.password, login.username)))
    await session.commit()


@web.post("/token")
async def log_in(login: Login, session: Session) -> dict[str, str]:
    user = await session.get(User, login.username)
    if user is None or user.password != hashed(login.password, login.username):
        raise HTTPException(401, "Incorrect username or password", {"WWW-Authenticate": "Bearer"})
    claims = {"iss": ISSUER, "sub": user.name, "exp": datetime.now(UTC) + timedelta(minutes=30)}
    return {"access_token": jwt.encode(claims, SECRET, algorithm="HS256"), "token_type": "bearer"}


async def current_user(token: Annotated[str, Depends(bearer)], work: Work) -> Identity:
    """Whoever sent the token. For a wrong one `verify` raises `Unauthenticated`, which is answered with 401."""
    return (await work.tokens.verify(token)).identity


CurrentUser = Annotated[Identity, Depends(current_user)]


class NewBike(BaseModel):
    model: str


@web.post("/bikes", status_code=201)
async def add_bike(bike: NewBike, session: Session) -> int:
    found = Bike(model=bike.model)
    session.add(found)
    await session.commit()
    return found.id


@web.post("/bikes/{bike}/rentals", status_code=201)
async def rent(bike: int, user: CurrentUser, session: Session, work: Work) -> int:
    rental = Rental(bike_id=bike, renter=user.subject)
    session.add(rental)
    await mail.enqueue(session, confirm, rental.renter, bike)
    await session.commit()  # the rental and its mail, or neither
    work.wake()
    return rental.id


@web.post("/rentals/{rental}/return")
async def give_back(rental: int, user: CurrentUser, session: Session) -> None:
    found = await session.get(Rental, rental)
    if found is None or found.renter != user.subject:
        raise HTTPException(404)
    found.returned_at = datetime.now(UTC)
    await session.commit()  # the task `bill` sees the row


@web.get("/rentals")
async def my_rentals(user: CurrentUser, work: Work) -> list[RentalRow]:
    return await work.with_identity(user).run_query(mine)
