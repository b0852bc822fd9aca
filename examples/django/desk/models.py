from django.db import models


class Ticket(models.Model):  # type: ignore[misc]  # Django ships no types
    author = models.EmailField()
    text = models.TextField()
    closed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.author}: {self.text}"
