from django.conf import settings
from django.db import models


class Visit(models.Model):  # type: ignore[misc]  # Django ships no types
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    email = models.EmailField()
    paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.email}, {'paid' if self.paid else 'not paid'}"
