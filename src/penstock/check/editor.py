"""The editor mode of `penstock check`: a language server, which marks findings in open files and offers their fixes.

Owns what editors say and hear. What is found is the matter of `checker`. It needs the extra ``lsp``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from penstock.check import baseline
from penstock.check.checker import Report, check
from penstock.check.finding import Finding, Span
from penstock.check.fixing import Fixer
from penstock.check.settings import read_settings
from penstock.distribution import __version__

_QUIET = 0.2  # seconds without a further change, before the program is checked
_Marked = tuple[Finding, types.Diagnostic]


def serve() -> None:
    """Answer an editor on the standard streams until it says exit."""
    server = LanguageServer("penstock", __version__)
    checks = _Checks(server)
    for event in (types.TEXT_DOCUMENT_DID_OPEN, types.TEXT_DOCUMENT_DID_CHANGE, types.TEXT_DOCUMENT_DID_SAVE):
        server.feature(event)(partial(checks.soon))  # pygls sets attributes of it, which a method does not have
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(partial(checks.forget))
    kinds = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, kinds)(partial(checks.fixes))
    server.start_io(stdout=os.fdopen(os.dup(sys.stdout.fileno()), "wb"))  # pygls closes what it writes to


class _Checks:
    """The open files of an editor, and what was found in them."""

    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self._marked: dict[str, list[_Marked]] = {}
        self._checked: tuple[list[Path], dict[Path, str]] = [], {}
        self._timer: asyncio.TimerHandle | None = None

    def soon(
        self,
        event: types.DidOpenTextDocumentParams | types.DidChangeTextDocumentParams | types.DidSaveTextDocumentParams,
    ) -> None:
        self._marked.pop(event.text_document.uri, None)  # its lines may have moved
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_QUIET, self._run)

    def forget(self, event: types.DidCloseTextDocumentParams) -> None:
        self._publish(event.text_document.uri, [], None)

    def _run(self) -> None:
        """Check the whole program, as a change of one file may break a rule in another one."""
        opened = {Path(one.path).resolve(): one for one in self._server.workspace.text_documents.values()}
        try:
            found = self._find(opened)
        except ValueError as error:
            told = types.ShowMessageParams(type=types.MessageType.Error, message=f"penstock check: {error}")
            self._server.window_show_message(told)
            return
        for path, document in opened.items():
            marked = [self._mark(document, one) for one in found if one.path.resolve() == path]
            self._publish(document.uri, marked, document.version)

    def _find(self, opened: Mapping[Path, TextDocument]) -> list[Finding]:
        settings, folder = read_settings(Path(self._server.workspace.root_path or Path.cwd()))
        texts = {path: document.source for path, document in opened.items()}
        self._checked = [folder / one for one in settings.paths], texts
        report = check(self._checked[0], settings.codes(), unsaved=texts)
        if not settings.baseline:
            return report.findings
        return baseline.without_known(folder / settings.baseline, report.findings, report.lines)

    def _mark(self, document: TextDocument, finding: Finding) -> _Marked:
        message = f"{finding.message} {finding.fix}"
        warning = types.DiagnosticSeverity.Warning
        place = self._range(document, finding.span)
        return (finding, types.Diagnostic(place, message, warning, code=finding.code, source="penstock"))

    def _range(self, document: TextDocument, span: Span) -> types.Range:
        begin, end = types.Position(span.line - 1, span.column), types.Position(span.end_line - 1, span.end_column)
        return document.position_codec.range_to_client_units(document.lines, types.Range(begin, end))

    def _publish(self, uri: str, marked: list[_Marked], version: int | None) -> None:
        self._marked[uri] = marked
        told = types.PublishDiagnosticsParams(uri, [shown for _, shown in marked], version)
        self._server.text_document_publish_diagnostics(told)

    def fixes(self, event: types.CodeActionParams) -> list[types.CodeAction]:
        uri, asked = event.text_document.uri, event.range
        document = self._server.workspace.get_text_document(uri)
        found: list[types.CodeAction] = []
        for one, shown in self._marked.get(uri, ()):
            is_here = shown.range.start.line <= asked.end.line and asked.start.line <= shown.range.end.line
            if one.edits and is_here and Fixer(self._checked[0], Report([one], {}), self._checked[1]).held:
                edits = [types.TextEdit(self._range(document, edit.span), edit.text) for edit in one.edits]
                change = types.WorkspaceEdit(changes={uri: edits})
                quick = types.CodeActionKind.QuickFix
                found.append(types.CodeAction(one.fix, quick, [shown], is_preferred=True, edit=change))
        return found
