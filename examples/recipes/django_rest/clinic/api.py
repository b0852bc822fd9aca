"""The API of Django REST framework."""

from django.db import connection, transaction
from rest_framework import decorators, request, response, serializers, viewsets

from clinic.models import Visit
from clinic.work import app, confirm, mail, pay
from penstock import Id, Identity


class VisitSerializer(serializers.ModelSerializer):  # type: ignore[misc]  # it ships no types
    class Meta:
        model = Visit
        fields = ("id", "email", "paid")
        read_only_fields = ("paid",)


class VisitViewSet(viewsets.ModelViewSet):  # type: ignore[misc]  # it ships no types
    serializer_class = VisitSerializer

    def get_queryset(self) -> object:
        return Visit.objects.filter(owner=self.request.user).order_by("id")

    def perform_create(self, serializer: VisitSerializer) -> None:
        with transaction.atomic():
            visit = serializer.save(owner=self.request.user)
            mail.enqueue(connection, confirm, visit.email)  # both, or neither
            transaction.on_commit(app.sync.wake)  # a worker looks at once

    @decorators.action(detail=True, methods=["post"])  # type: ignore[untyped-decorator]  # it ships no types
    def payment(self, asked: request.Request, pk: str) -> response.Response:
        user = Identity(subject=str(asked.user.pk), issuer="django")
        visit = app.sync.with_identity(user).run_mutation(pay, Id(pk))
        return response.Response(visit.model_dump(include={"id", "paid"}))
