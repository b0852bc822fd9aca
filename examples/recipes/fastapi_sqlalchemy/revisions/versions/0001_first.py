"""Accounts, bikes and rentals."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "account", sa.Column("name", sa.String(), primary_key=True), sa.Column("password", sa.String(), nullable=False)
    )
    op.create_table(
        "bike", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("model", sa.String(), nullable=False)
    )
    op.create_table(
        "rental",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("bike_id", sa.Integer(), sa.ForeignKey("bike.id"), nullable=False),
        sa.Column("renter", sa.String(), sa.ForeignKey("account.name"), nullable=False),
        sa.Column("returned_at", sa.DateTime(timezone=True)),
    )
    op.create_index("ix_rental_renter", "rental", ["renter"])


def downgrade() -> None:
    for table in ("rental", "bike", "account"):
        op.drop_table(table)
