"""Writes kubernetes.yaml: what the chart makes of its default values, for those who have no Helm."""

from __future__ import annotations

from pathlib import Path

import helm_python

FOLDER = Path(__file__).parent

with helm_python.Chart.load(str(FOLDER / "chart")) as chart:
    made = chart.render({}, name="app", namespace="default")
parts = "---\n".join(f"{made[name].strip()}\n" for name in sorted(made) if name.endswith(".yaml"))
(FOLDER / "kubernetes.yaml").write_text(f"# Made by deploy/render.py; change the chart instead.\n---\n{parts}", "utf-8")
