"""``penstock check --lsp`` as an editor talks to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import check

PROGRAM = """\
from penstock import App, Id, MutationCtx, Table

app = App()


class Plan(Table):
    name: str


@app.internal_mutation
async def add(ctx: MutationCtx, name: str) -> None:
    "🐎"; ctx.db.insert(Plan(name=name))
"""
LINE = PROGRAM.splitlines().index('    "🐎"; ctx.db.insert(Plan(name=name))')


class Editor:
    """Speaks the protocol over the streams of a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._number = 0

    def tell(self, method: str, params: Any, **more: Any) -> None:
        """Send a notification, or a request if it has an id."""
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def ask(self, method: str, params: Any) -> Any:
        """Send a request, and wait for its answer."""
        self._number += 1
        self.tell(method, params, id=self._number)
        return next(one["result"] for one in self._messages() if one.get("id") == self._number)

    def diagnostics(self) -> dict[str, Any]:
        """Wait for the next ones."""
        method = "textDocument/publishDiagnostics"
        found: dict[str, Any] = next(one["params"] for one in self._messages() if one.get("method") == method)
        return found

    def _messages(self) -> Iterator[dict[str, Any]]:
        stream = self._process.stdout
        assert stream is not None
        while True:
            size = 0
            while (line := stream.readline()) != b"\r\n":
                assert line, "the server has ended"
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            yield json.loads(stream.read(size))


def test_an_editor_sees_findings_of_unsaved_text_and_gets_their_fixes(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("", "utf-8")
    uri = (tmp_path / "app.py").as_uri()
    command = [sys.executable, "-m", "penstock", "check", "--lsp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        editor = Editor(process)
        editor.ask("initialize", {"processId": None, "rootUri": tmp_path.as_uri(), "capabilities": {}})
        editor.tell("initialized", {})
        opened = {"uri": uri, "languageId": "python", "version": 1, "text": PROGRAM}
        editor.tell("textDocument/didOpen", {"textDocument": opened})
        found = editor.diagnostics()
        assert (found["uri"], [one["code"] for one in found["diagnostics"]]) == (uri, ["PEN001"])
        place = found["diagnostics"][0]["range"]
        assert place["start"] == {"line": LINE, "character": 10}  # an editor counts the horse twice
        params = {"textDocument": {"uri": uri}, "range": place, "context": {"diagnostics": []}}
        (action,) = editor.ask("textDocument/codeAction", params)
        edit = {"range": {"start": place["start"], "end": place["start"]}, "newText": "await "}
        assert action["edit"]["changes"] == {uri: [edit]}
        changed = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{**edit, "text": "await "}]}
        editor.tell("textDocument/didChange", changed)
        assert editor.diagnostics() == {"uri": uri, "version": 2, "diagnostics": []}
        (tmp_path / "pyproject.toml").write_text("[tool.penstock.check]\nselct = []\n", "utf-8")
        editor.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
        said = next(one for one in editor._messages() if one.get("method") == "window/showMessage")
        assert "has no setting selct" in said["params"]["message"]
        editor.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        assert editor.diagnostics()["diagnostics"] == []
        editor.ask("shutdown", None)
        editor.tell("exit", None)
        assert process.wait(30) == 0


def test_without_pygls_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygls", None)
    for name in ("pygls.lsp.server", "penstock.check.editor"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = CliRunner().invoke(check.command, ["--lsp"])
    assert found.exit_code == 2
    assert "pip install 'penstock-backend[lsp]'" in found.stderr
