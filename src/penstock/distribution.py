"""The distribution that installs penstock: its name, its version, and what to write to install it.

The name is not that of the import, which is another project's in the public index.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

NAME = "penstock-backend"

try:
    __version__ = version(NAME)
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"


def install(*extras: str) -> str:
    """The command that adds extras to what is installed."""
    return f"pip install '{NAME}[{','.join(extras)}]'"


def requirement(*extras: str) -> str:
    """The requirement by which a project gets penstock from where this installation came."""
    wanted = f"{NAME}[{','.join(extras)}]"
    try:
        source: dict[str, Any] = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return wanted
    if not source:
        return f"{wanted}=={__version__}"
    commit, archive = source.get("vcs_info"), source.get("archive_info", {})
    url = f"{commit['vcs']}+{source['url']}@{commit['commit_id']}" if commit else source["url"]
    parts = [f"subdirectory={source['subdirectory']}"] if "subdirectory" in source else []
    hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)] if "hash" in archive else ())
    parts += [f"{kind}={value}" for kind, value in hashes.items() if kind == "sha256"]
    return f"{wanted} @ {url}{'#' * bool(parts)}{'&'.join(parts)}"
