from typing import Any

from django.contrib import admin
from django.db import connection, transaction

from clinic.models import Visit
from clinic.work import app, confirm, mail


@admin.register(Visit)
class VisitAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django ships no types
    list_display = ("email", "owner", "paid")
    list_editable = ("paid",)
    actions = ("confirm_again",)

    @admin.action(description="Confirm by mail again")  # type: ignore[untyped-decorator]  # Django ships no types
    def confirm_again(self, _request: object, visits: Any) -> None:
        with transaction.atomic():
            mail.enqueue_batch(connection, confirm, [{"email": visit.email} for visit in visits])
            transaction.on_commit(app.sync.wake)
