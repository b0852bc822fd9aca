"""What a release hands out: an sdist that builds, a wheel that runs alone, its licences, and how it is deployed."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import partial
from pathlib import Path

import pytest
from house import packages
from stage.needs import LONG
from stage.repository import ROOT, alone, build, install, run
from stage.servers import free_port
from stage.waits import until

from penstock.config import Config

DEPLOY = ROOT / "deploy"
MIGRATES = "penstock migration run && penstock migrate"
pytestmark = pytest.mark.timeout(600)  # it builds and installs, which takes minutes on a busy machine


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    sdist = build(ROOT, folder, "sdist")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = lambda member, _folder: member  # the first releases of 3.11 take no argument for it
        archive.extractall(folder)
    source = folder / sdist.name.removesuffix(".tar.gz")
    assert {"CHANGELOG.md", "LICENSE", "Makefile", "deploy", "docs", "examples", "requirements-dev.txt", "tests"} <= {
        path.name for path in source.iterdir()
    }
    wheel = build(source, folder, "wheel")
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/penstock").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith("penstock_backend-")}
    assert packed == {name for name in package if "__pycache__" not in name}
    return install(wheel, folder / "venv")


@pytest.fixture(scope="module")
def project(installed: Path) -> Path:
    """A new project, whose database was migrated."""
    folder, environment = installed.parents[1], alone({})
    run(installed / "penstock", "init", "shop", cwd=folder, env=environment)
    run(installed / "penstock", "migrate", cwd=folder / "shop", env=environment)
    return folder / "shop"


@pytest.mark.long
def test_a_wheel_runs_a_new_project_with_what_it_requires_and_nothing_else(installed: Path, project: Path) -> None:
    run(installed / "penstock", "run", "add", "text=two words", cwd=project, env=alone({}))
    notes = json.loads(run(installed / "penstock", "run", "notes", cwd=project, env=alone({})))
    assert [note["text"] for note in notes] == ["two words"]


@pytest.mark.long
def test_a_new_project_requires_the_wheel_that_wrote_it(installed: Path, project: Path) -> None:
    (wanted,) = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    assert re.fullmatch(r"penstock-backend\[dashboard,migrations\] @ file://.*\.whl#sha256=[0-9a-f]{64}", wanted)
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--no-index",
        wanted,
    ]
    run(*command, cwd=project, env=alone({}))
    assert [path.name[:17] for path in project.glob("*.whl")] == ["penstock_backend-"], "pip takes it, with its hash"


def commands() -> dict[str, str]:
    """What the Procfile and the units of systemd start, without the folder of the program."""
    found = dict(line.split(": ", 1) for line in (DEPLOY / "Procfile").read_text("utf-8").splitlines())
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        started = re.findall(r"^ExecStart=/srv/app/.venv/bin/(.*)$", unit.read_text("utf-8"), re.MULTILINE)
        found[unit.name] = " && ".join(started)
    return found


@pytest.mark.skipif(not LONG, reason="for make test-long")
async def test_each_command_that_is_deployed_starts_and_ends_within_its_grace(installed: Path, project: Path) -> None:
    started = [Started(command, installed, project) for command in sorted(set(commands().values()))]
    try:
        for one in started:
            if one.command != MIGRATES:
                await until(partial(listens, one.port))
                one.process.terminate()
        assert {one.command: one.process.wait(20) in {0, -signal.SIGTERM} for one in started} == dict.fromkeys(
            (one.command for one in started), True
        )
    finally:
        for one in started:
            one.process.kill()


class Started:
    """A command of a deployment, on a port of its own."""

    def __init__(self, command: str, programs: Path, folder: Path) -> None:
        self.port = free_port()
        known = {"PATH": f"{programs}:{os.environ['PATH']}", "PORT": str(self.port), "PENSTOCK_GRACE": "5"}
        if "worker" in command:
            known["PENSTOCK_METRICS_PORT"] = known["PORT"]
        self.command = command
        served = command.replace("--port 8000", f"--port {self.port}")
        self.process = subprocess.Popen(
            ["sh", "-c", f"{'' if command == MIGRATES else 'exec '}{served}"], cwd=folder, env=alone(known)
        )


async def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_migration_files_run_before_each_release() -> None:
    templates = [ROOT / f"src/penstock/cli/project/{name}.txt" for name in ("base/Dockerfile", "postgres/compose.yaml")]
    texts = {path: path.read_text("utf-8") for path in (*DEPLOY.rglob("*"), *templates) if path.is_file()}
    migrating = {path for path, text in texts.items() if re.search(r"penstock,? ['\"]?migrate\b", text)}
    assert {path.name for path in migrating} >= {
        "Procfile",
        "compose.yaml",
        "kubernetes.yaml",
        "penstock-migrate.service",
    }
    for path in (*migrating, templates[0]):
        before, _, after = texts[path].partition("penstock migration run")
        assert re.search(r"penstock (migrate|serve)\b", after), path
        assert not re.search(r"^[^#]*penstock (migrate|serve)\b(?!:)", before, re.MULTILINE), path
    assert commands()["penstock-migrate.service"] == commands()["release"] == MIGRATES


def test_deployed_processes_are_given_longer_than_their_grace_and_watched_by_metrics_that_exist() -> None:
    yaml = importlib.import_module("yaml")
    known = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    objects = [one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")) if one]
    pods = [one["spec"]["template"]["spec"] for one in objects if "template" in one["spec"]]
    assert len(pods) == 3
    for pod in pods:
        (container,) = pod["containers"]
        settings = {setting["name"]: setting["value"] for setting in container["env"]}
        assert pod["terminationGracePeriodSeconds"] > float(settings["PENSTOCK_GRACE"]) + 5  # preStop
        assert all(name.removeprefix("PENSTOCK_").lower() in Config.__dataclass_fields__ for name in settings)
    (scaler,) = [one for one in objects if one["kind"] == "HorizontalPodAutoscaler"]
    assert all(f"`{one['external']['metric']['name']}`" in known for one in scaler["spec"]["metrics"])
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert compose["worker"]["deploy"]["replicas"] == 2
    assert all(compose[name]["stop_grace_period"] == "30s" for name in ("server", "worker"))


def test_the_page_of_licences_and_the_bill_of_materials_name_what_is_installed() -> None:
    """Write the page: `PYTHONPATH=tests .venv/bin/python -m house.packages licences > docs/reference/licences.md`."""
    assert (ROOT / "docs/reference/licences.md").read_text("utf-8") == packages.page()
    bill = packages.bill()
    known = {component["bom-ref"] for component in bill["components"]}
    assert len(known) > len(packages.by_extra()[""])
    assert {ref for edge in bill["dependencies"] for ref in edge["dependsOn"]} == known
