"""Operations of Django migrations for tables that penstock watches."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from penstock.api.holding import hold, release


class HoldCapture(Operation):  # type: ignore[misc]  # Django ships no types
    """Let the operations that follow drop and retype columns of a table. `ReleaseCapture` comes after them.

    Args:
        table: The SQL name of the table, such as ``shop_order``.
    """

    reduces_to_sql = False
    reversible = True

    def __init__(self, table: str) -> None:
        self.table = table

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: Django's models stay as they are."""

    def database_forwards(self, _app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        """Hold the table."""
        hold(schema_editor.connection, self.table)

    def database_backwards(self, _app_label: str, schema_editor: Any, _before: Any, _after: Any) -> None:
        """Release the table, after the operations that follow are undone."""
        release(schema_editor.connection, self.table)

    def describe(self) -> str:
        """Describe the operation for Django's output."""
        return f"{type(self).__name__} of {self.table}"


class ReleaseCapture(HoldCapture):
    """Capture the changes of a table again that `HoldCapture` holds."""

    def database_forwards(self, app_label: str, schema_editor: Any, before: Any, after: Any) -> None:
        """Release the table."""
        super().database_backwards(app_label, schema_editor, before, after)

    def database_backwards(self, app_label: str, schema_editor: Any, before: Any, after: Any) -> None:
        """Hold the table."""
        super().database_forwards(app_label, schema_editor, before, after)
