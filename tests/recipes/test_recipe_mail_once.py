"""E-mail: retried while the server is away or busy, sent once, and given up for an unknown mailbox."""

from __future__ import annotations

import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from recipes.running import Recipe

RECIPE = "mail_once"


class Smtp(socketserver.StreamRequestHandler):
    """A server that defers each first attempt, and knows no mailbox of nobody."""

    server: Mailbox

    def handle(self) -> None:
        self.say("220 here")
        to = ""
        while line := self.rfile.readline().decode().strip():
            verb = line.upper().split()[0].partition(":")[0]
            if verb == "QUIT":
                self.say("221 bye")
                return
            if verb == "RCPT":
                to = line.partition("<")[2].rstrip(">")
                self.server.asked[to] += 1
                self.say("550 unknown" if "nobody" in to else "451 later" if self.server.asked[to] == 1 else "250 ok")
            elif verb == "DATA":
                self.say("354 go on")
                text = "".join(iter(lambda: self.rfile.readline().decode(), ".\r\n"))
                self.server.taken.append((to, text.partition("Message-ID: ")[2].split()[0]))
                self.say("250 taken")
            else:
                self.say("250 ok")

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class Mailbox(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Smtp)
        self.asked, self.taken = Counter[str](), list[tuple[str, str]]()


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.long
@pytest.mark.both_stores
def test_each_mail_is_taken_once(recipe: Recipe, database_url: str) -> None:
    with mailbox() as server:
        recipe.environment |= {"DATABASE_URL": database_url, "SMTP_HOST": "127.0.0.1"}
        recipe.environment["SMTP_PORT"] = str(server.server_address[1])
        web = recipe.start("penstock", "serve", "--services", "--port", "{port}")
        names = ["ada", "bob", "nobody"]
        for name in names:
            call = {"path": "signup:sign_up", "args": {"email": f"{name}@example.com"}}
            assert httpx.post(f"{web.url}/api/mutation", json=call).json()["status"] == "success"

        def counts() -> dict[str, int]:
            found: dict[str, int] = json.loads(recipe.run("penstock", "jobs", "--json"))["counts"]
            return found

        web.wait_for(lambda: counts().get("success") == 2 and counts().get("failed") == 1)
        assert sorted(to for to, _id in server.taken) == ["ada@example.com", "bob@example.com"]
        assert len({message for _to, message in server.taken}) == 2
        assert server.asked["nobody@example.com"] == 1, "an unknown mailbox is not asked again"
        assert web.stop() == 0
