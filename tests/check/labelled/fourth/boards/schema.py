# convex/schema.ts
from datetime import datetime

from penstock import App, Id, Index, Retry, Table

app = App()


class Users(Table):
    tokenIdentifier: str
    name: str
    email: str
    avatarUrl: str | None = None

    by_token = Index("tokenIdentifier")
    by_name = Index("name")


class Boards(Table):
    title: str
    ownerId: Id[Users]
    archived: bool = False

    by_owner = Index("ownerId")  # expect: PEN004
    by_owner_archived = Index("ownerId", "archived")


class Members(Table):
    boardId: Id[Boards]
    userId: Id[Users]
    role: str = "viewer"

    by_board = Index("boardId")
    by_user_board = Index("userId", "boardId", unique=True)


class Cards(Table):
    boardId: Id[Boards]
    title: str
    position: float
    assigneeId: Id[Users] | None = None
    dueAt: datetime | None = None
    done: bool = False

    by_board_position = Index("boardId", "position")
    by_board_done = Index("boardId", "done")
    by_assignee = Index("assigneeId")


class Comments(Table):
    cardId: Id[Cards]
    authorId: Id[Users]
    body: str
    likes: int = 0

    by_card = Index("cardId")
    by_author = Index("authorId")


class Presence(Table):
    boardId: Id[Boards]
    userId: Id[Users]
    seenAt: datetime

    by_board = Index("boardId")
    by_board_user = Index("boardId", "userId")


POOLS = {
    "email": app.workpool("email", max_parallelism=5),
    "export": app.workpool("export", max_parallelism=1, default_retry=Retry.series([60, 600])),  # expect: PEN018
    "webhook": app.workpool("webhook", max_parallelism=8, retry_actions_by_default=True),
}
emailPool = POOLS["email"]
exportPool = POOLS["export"]
webhookPool = POOLS["webhook"]
