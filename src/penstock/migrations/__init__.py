"""Migration files: what `penstock migration new` writes, and penstock's own operations in such files.

Loads Alembic and SQLAlchemy, which servers and workers never do. Alembic writes the SQL of a file; penstock runs it on
its own connection, with short locks. See docs/migrations.md.
"""

from penstock.api.holding import held
from penstock.migrations.autogenerate import include_name
from penstock.migrations.operations import Backfill, Stored, relax, sync, unsync

__all__ = ["Backfill", "Stored", "held", "include_name", "relax", "sync", "unsync"]
