"""``penstock serve``: the server, and the services too if asked for."""

from __future__ import annotations

from functools import partial

import click

from penstock.app import SERVICES
from penstock.cli.opening import complete_serving, end_process, end_within, open_app
from penstock.cli.options import Options, pass_options
from penstock.server.run import serve


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="The port; 0 for any.")
@click.option("--services/--no-services", default=False, show_default=True, help="Run the services too.")
@click.option("--dashboard/--no-dashboard", default=False, show_default=True, help="Serve the dashboard, /dashboard.")
@pass_options
def command(options: Options, host: str, port: int, services: bool, dashboard: bool) -> None:
    """Run the server until SIGINT or SIGTERM. Run the services with penstock worker."""
    app = open_app(options, log_level="info")
    config = app.config(**options.place)
    running = SERVICES if services else ()
    where = partial(serve, host=host, port=port, services=running, dashboard=dashboard)
    complete_serving(where(app, config, stopping=lambda _calls, _jobs: end_within(config.grace)))
    end_process()
