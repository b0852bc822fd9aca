"""What a release hands out: an sdist that builds, a wheel that runs on nothing but what it requires, its licences."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from house import packages
from stage.releases import ROOT, alone, build, install, run


def test_a_wheel_of_the_sdist_runs_a_new_project_with_what_it_requires_and_nothing_else(tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path, "sdist")
    run("tar", "-x", "-f", sdist, "-C", tmp_path)
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert {"CHANGELOG.md", "LICENSE", "Makefile", "docs", "examples", "requirements-dev.txt", "tests"} <= {
        path.name for path in source.iterdir()
    }
    wheel = build(source, tmp_path, "wheel")
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/penstock").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith("penstock-")}
    assert packed == {name for name in package if "__pycache__" not in name}

    penstock = install(wheel, tmp_path / "venv") / "penstock"
    environment = alone({})
    run(penstock, "init", "shop", cwd=tmp_path, env=environment)
    run(penstock, "migrate", cwd=tmp_path / "shop", env=environment)
    run(penstock, "run", "add", "text=two words", cwd=tmp_path / "shop", env=environment)
    notes = json.loads(run(penstock, "run", "notes", cwd=tmp_path / "shop", env=environment))
    assert [note["text"] for note in notes] == ["two words"]


def test_the_page_of_licences_and_the_bill_of_materials_name_what_is_installed() -> None:
    """Write the page: `PYTHONPATH=tests .venv/bin/python -m house.packages licences > docs/reference/licences.md`."""
    assert (ROOT / "docs/reference/licences.md").read_text("utf-8") == packages.page()
    bill = packages.bill()
    known = {component["bom-ref"] for component in bill["components"]}
    assert len(known) > len(packages.by_extra()[""])
    assert {ref for edge in bill["dependencies"] for ref in edge["dependsOn"]} == known
