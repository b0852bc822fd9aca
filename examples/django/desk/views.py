from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from desk.models import Ticket
from desk.work import app, close, confirm, mail, open_tickets
from penstock import Id


def tickets(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return JsonResponse([row.model_dump() for row in app.sync.run_query(open_tickets)], safe=False)
    with transaction.atomic():
        ticket = Ticket.objects.create(author=request.POST["author"], text=request.POST["text"])
        mail.enqueue(connection, confirm, ticket.author, ticket.id)  # both, or neither
        transaction.on_commit(app.sync.wake)  # a worker looks at once
        ticket.full_clean()
    return JsonResponse({"ticket": ticket.id}, status=201)


def closing(_request: HttpRequest, ticket: int) -> HttpResponse:
    app.sync.run_mutation(close, Id(str(ticket)))
    return HttpResponse(status=204)


urlpatterns = [path("tickets", tickets), path("tickets/<int:ticket>/closing", closing)]
