"""Erasing a person: rows, jobs, and what the change feed and the outboxes still hold.

``python people.py erase EMAIL`` erases; penstock's worker does the rest.
"""


from penstock import App, Index, Table

app = App()
mail = app.workpool("mail")


class Person(Table):
    email: str
    address: str

    by_email = Index("email", unique=True)
