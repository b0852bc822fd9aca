"""How `make docs` makes a site of the pages: from this folder, from the root's pages, and from docstrings.

The root of the repository is the source, so that links from page to page lead to the same places here and there.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import is_dataclass
from pathlib import Path

from docutils.nodes import Text, document
from pygments.lexers.special import TextLexer
from sphinx.addnodes import desc_signature
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

_STYLE = Config(napoleon_use_ivar=True, napoleon_custom_sections=[("Class arguments", "params_style")])

project = "penstock"
release = version = os.environ.get("DOCS_VERSION", "dev")
html_title = f"penstock {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/*/README.md", "src/penstock/check/pages/*.md"]
exclude_patterns = ["README.md", "docs/_*", ".*", "**/node_modules", "tests", "benchmarks", "dist"]
nitpicky = True
suppress_warnings = ["toc.not_included"]  # a test holds that all pages but decisions and rules are in the sidebar
# Types in signatures: those of other packages, and penstock's own that are no public names.
nitpick_ignore_regex = [("py:.*", r"(?!penstock\.[A-Z]\w*$).*")]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "exclude-members": "model_config"}
default_role = "code"
maximum_signature_line_length = 90

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_copy_source = False
html_show_copyright = False


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_lexer("mermaid", TextLexer)  # the site loads no script that draws it
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("doctree-read", shorten_types)
    app.connect("build-finished", list_versions)


def read_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Read a docstring in Google's style. To napoleon itself a colon in that of a property ends the name of a type."""
    kind = "method" if what in {"attribute", "data", "property"} else what
    lines[:] = GoogleDocstring(lines, _STYLE, app, kind, name, thing, options).lines()


def hide_constructor(
    _app: Sphinx, what: str, _name: str, thing: object, _options: object, signature: str | None, _returned: str
) -> tuple[str, None] | None:
    """Show no constructor of what users are given and do not make."""
    makes = what != "class" or not signature or is_dataclass(thing) or "Args:" in (thing.__doc__ or "")
    return None if makes else ("", None)


def shorten_types(_app: Sphinx, page: document) -> None:
    """Show the names of types without their modules in overloads too, where autodoc leaves its marks."""
    for signature in page.findall(desc_signature):
        for text in list(signature.findall(Text)):
            text.parent.replace(text, Text(re.sub(r"~(\w+\.)*", "", text)))


def list_versions(app: Sphinx, exception: Exception | None) -> None:
    """Write which versions lie beside this one, newest first, and lead from the root to the newest release."""
    if exception is not None:
        return
    site = Path(app.outdir).parent
    found = sorted((path.parent.name for path in site.glob("*/objects.inv")), key=newest_last, reverse=True)
    (site / "versions.json").write_text(json.dumps(found), "utf-8")
    target = f"{found[0]}/{root_doc}.html"
    (site / "index.html").write_text(
        f'<!doctype html><title>penstock</title><meta http-equiv="refresh" content="0; url={target}">'
        f'<a href="{target}">penstock</a>',
        "utf-8",
    )


def newest_last(name: str) -> tuple[int, ...]:
    """Releases by their numbers; `dev` has none, and comes first."""
    return tuple(map(int, re.findall(r"\d+", name)))
