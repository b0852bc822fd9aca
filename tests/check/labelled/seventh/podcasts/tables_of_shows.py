from typing import NewType

from penstock import Id, Index, Table

Url = NewType("Url", str)
Seconds = int


class Show(Table, name="podcast"):
    slug: str
    owner: str
    title: str
    language: str = "en"

    by_slug = Index("slug", unique=True)
    by_owner = Index("owner")


class Episode(Table):
    show: Id[Show]
    url: Url
    title: str
    length: Seconds = 0
    state: str = "draft"
    plays: int = 0

    by_show = Index("show")
    by_show_and_state = Index("show", "state")
    by_state = Index("state", "plays")
    by_url = Index("url")


class Listener(Table):
    email: str
    device: str = ""
    by_email = Index("email", unique=True)
    by_email_and_device = Index("email", "device")


class Subscription(Table):
    show: Id[Show]
    listener: Id[Listener]
    muted: bool = False

    by_show = Index("show", "listener", unique=True)
    by_listener = Index("listener")  # expect: PEN004
    by_listener_and_muted = Index("listener", "muted")
