"""The packages that come with penstock: their licences as a page, or all of them as a CycloneDX bill of materials.

`python -m house.packages bill` prints the one, which `make dist` keeps beside the wheel, and `licences` the other.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from uuid import UUID

from packaging.requirements import Requirement
from stage.repository import required

from penstock.distribution import NAME, __version__

ROOT = Path(__file__).parents[2]
DEVELOPING = {"check", "docs", "test"}


def by_extra() -> dict[str, list[str]]:
    """The distributions that penstock installs, by the extra that brings them, '' for none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: sorted(required([Requirement(text) for text in wanted], set()))
        for extra, wanted in groups.items()
        if extra not in DEVELOPING
    }


def licence(name: str) -> str:
    """What a distribution says of its licence: as an SPDX expression, as a classifier, or in words."""
    metadata = distribution(name).metadata
    classified = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if line[:9] == "License :"]
    words = [text.strip().splitlines()[0] for text in metadata.get_all("License", []) if text.strip()]
    (said, *_) = [*metadata.get_all("License-Expression", []), *classified, *words]
    return str(said)


def page() -> str:
    """`docs/reference/licences.md`."""
    groups = by_extra()
    always = set(groups[""])
    rows = [f"| {name} | {licence(name)} | always |" for name in groups[""]]
    for extra in sorted(groups.keys() - {""}):
        rows += [f"| {name} | {licence(name)} | `{extra}` |" for name in groups[extra] if name not in always]
    return "\n".join(
        [
            "# Licences",
            "",
            "penstock has the Apache License 2.0. It installs these packages, always or with one of its extras:",
            "",
            "| package | licence | comes with |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def components() -> Iterator[dict[str, Any]]:
    names = sorted({name for found in by_extra().values() for name in found})
    for name in names:
        version = distribution(name).version
        yield {
            "type": "library",
            "bom-ref": f"{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "licenses": [{"license": {"name": licence(name)}}],
        }


def bill() -> dict[str, Any]:
    """A bill of materials, with the versions that were tested; the same each time."""
    found, version = [*components()], __version__
    edges = {extra: [f"{name}@{distribution(name).version}" for name in names] for extra, names in by_extra().items()}
    digest = hashlib.sha256(json.dumps([version, found]).encode()).digest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{UUID(bytes=digest[:16], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": f"{NAME}@{version}",
                "name": NAME,
                "version": version,
                "purl": f"pkg:pypi/{NAME}@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": found,
        "dependencies": [
            {"ref": f"{NAME}@{version}", "dependsOn": sorted({ref for refs in edges.values() for ref in refs})}
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(page() if sys.argv[1] == "licences" else json.dumps(bill(), indent=2) + "\n")
