from io import StringIO

from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import TransactionTestCase

from desk.models import Ticket
from desk.work import app, mail
from penstock import Success

ADA = {"author": "ada@example.com", "text": "It hums."}


class Tickets(TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    def setUp(self) -> None:
        self.addCleanup(app.sync.close)  # before Django drops the test database

    def test_a_ticket_is_stored_with_its_mail(self) -> None:
        ticket = self.client.post("/tickets", ADA).json()["ticket"]
        with self.assertRaises(ValidationError):
            self.client.post("/tickets", {**ADA, "author": "nobody"})
        assert Ticket.objects.count() == 1
        (job,) = app.sync.jobs("pending")
        with app.sync.open(services="all") as backend:
            result = mail.result(backend, job.id)
        assert result == Success(f"To ada@example.com: your ticket has the number {ticket}.")

    def test_functions_work_on_the_table_of_django(self) -> None:
        ticket = Ticket.objects.create(**ADA)
        assert self.client.get("/tickets").json() == [{"id": ticket.id, **ADA, "closed": False}]
        assert self.client.post(f"/tickets/{ticket.id}/closing").status_code == 204
        ticket.refresh_from_db()
        assert ticket.closed
        assert self.client.post(f"/tickets/{ticket.id}/closing").json()["data"] == "It is closed already."
        assert self.client.post("/tickets/4711/closing").status_code == 404

    def test_the_command_line_knows_the_app_and_the_database(self) -> None:
        call_command("penstock", "tasks", "--json")
        with self.assertRaises(CommandError):
            call_command("penstock", "jobs", "retry", "job_1", stderr=StringIO())
