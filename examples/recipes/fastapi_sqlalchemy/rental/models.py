"""The team's own tables. Alembic makes them, and SQLAlchemy writes them."""

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "account"

    name: Mapped[str] = mapped_column(primary_key=True)
    password: Mapped[str]


class Bike(Base):
    __tablename__ = "bike"

    id: Mapped[int] = mapped_column(primary_key=True)
    model: Mapped[str]


class Rental(Base):
    __tablename__ = "rental"

    id: Mapped[int] = mapped_column(primary_key=True)
    bike_id: Mapped[int] = mapped_column(ForeignKey("bike.id"))
    renter: Mapped[str] = mapped_column(ForeignKey("account.name"), index=True)
    returned_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
