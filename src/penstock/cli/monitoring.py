"""``penstock monitoring``: files for Grafana, Prometheus and Axiom, which know penstock's metrics and log events."""

from __future__ import annotations

from importlib.resources import files

import click


@click.group("monitoring")
def command() -> None:
    """Print a file for a monitoring system, to be saved: penstock monitoring alerts > penstock.yaml."""


@command.command("grafana")
def grafana() -> None:
    """Print a Grafana board as JSON; import it, and choose its data source."""
    click.echo(_read("grafana.json"), nl=False)


@command.command("alerts")
def alerts() -> None:
    """Print alert rules for Prometheus as YAML; name the file in rule_files."""
    click.echo(_read("alerts.yaml"), nl=False)


@command.command("axiom")
@click.option("--dataset", default="penstock", show_default=True, help="The dataset that receives the log.")
def axiom(dataset: str) -> None:
    """Print queries of monitors for Axiom; each reads the JSON log."""
    click.echo(_read("axiom.apl").replace("DATASET", dataset), nl=False)


def _read(name: str) -> str:
    return (files("penstock.observe") / "monitoring" / name).read_text("utf-8")
