"""``penstock serve``: the server, and the services too if asked for."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import click

from penstock.cli.opening import complete_serving, end_process, end_within, open_app
from penstock.cli.options import Options, metrics_port_option, pass_options
from penstock.cli.processes import config_at, find_place, processes_option, supervise
from penstock.server.run import bind, serve
from penstock.services.service import SERVICES


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="The port; 0 for any.")
@click.option("--services/--no-services", default=False, show_default=True, help="Run the services too.")
@click.option("--dashboard/--no-dashboard", default=False, show_default=True, help="Serve the dashboard, /dashboard.")
@metrics_port_option
@processes_option
@pass_options
def command(
    options: Options,
    /,
    host: str,
    port: int,
    services: bool,
    dashboard: bool,
    metrics_port: int | None,
    processes: int,
) -> int:
    """Run the server until SIGINT or SIGTERM. Run the services with penstock worker.

    Several processes share the port. One that dies is started again.
    """
    app = open_app(options, log_level="info")
    place = find_place()
    config = config_at(place, app.config(**options.place, metrics_port=metrics_port))
    listener = place.listener if place is not None and place.listener is not None else bind(host, port)
    if place is None and processes > 1:
        with closing(listener):
            return supervise(processes, listener)
    chosen = SERVICES if services else ()
    where = partial(serve, listener=listener, services=chosen, dashboard=dashboard, shares_ports=place is not None)
    ready = None if place is None else place.ready
    complete_serving(where(app, config, ready=ready, stopping=lambda _calls, _jobs: end_within(config.grace)))
    end_process()
    return 0
