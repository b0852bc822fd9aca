"""Traces arrive at a collector, and Prometheus reads the metrics and the alerts."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from recipes.running import Recipe
from stage.needs import program
from stage.servers import free_port

RECIPE = "monitoring"
CALL = {"path": "parcels_sent:send", "args": {"address": "Main Street 1"}}


class Collector(BaseHTTPRequestHandler):
    """Takes spans as OTLP over HTTP."""

    spans: dict[str, tuple[bytes, bytes, bytes]]

    def do_POST(self) -> None:
        asked = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in asked.resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {one.name: (one.trace_id, one.span_id, one.parent_span_id) for one in scope.spans}
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.long
@pytest.mark.both_stores
def test_the_trace_of_a_call_and_its_job_arrives(recipe: Recipe, database_url: str) -> None:
    Collector.spans = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        recipe.environment |= {
            "DATABASE_URL": database_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        web = recipe.start("penstock", "serve", "--services", "--port", "{port}")
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        httpx.post(f"{web.url}/api/mutation", json=CALL, headers={"traceparent": parent})
        names = ["mutation parcels_sent:send", "enqueue printer", "run printer", "action parcels_sent:print_label"]
        web.wait_for(lambda: {*names} <= {*Collector.spans})
        server.shutdown()
    found = [Collector.spans[name] for name in names]
    assert {trace.hex() for trace, _span, _parent in found} == {"0af7651916cd43dd8448eb211c80319c"}
    assert found[0][2].hex() == "b7ad6b7169203331"
    assert all(one[2] == before[1] for before, one in pairwise(found))


@pytest.mark.long
def test_prometheus_reads_the_metrics_and_the_alerts(recipe: Recipe, sqlite_url: str) -> None:
    program("prometheus")
    metrics, port = free_port(), free_port()
    recipe.environment |= {"DATABASE_URL": sqlite_url, "OTEL_SDK_DISABLED": "true"}
    (recipe.folder / "penstock.yaml").write_text(recipe.run("penstock", "monitoring", "alerts"))
    recipe.environment["PENSTOCK_METRICS_PORT"] = str(metrics)
    web = recipe.start("penstock", "serve", "--services", "--port", "{port}")
    httpx.post(f"{web.url}/api/mutation", json=CALL)
    file = recipe.folder / "prometheus.yml"
    file.write_text(file.read_text().replace("127.0.0.1:9100", f"127.0.0.1:{metrics}"))
    words = ["--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.path=data"]
    prometheus = recipe.start("prometheus", *words, port=port)

    def asked(path: str, **query: str) -> dict[str, object]:
        found: dict[str, object] = httpx.get(f"{prometheus.url}/api/v1/{path}", params=query).json()["data"]
        return found

    called = 'penstock_calls_total{function="parcels_sent:send",outcome="success"}'
    prometheus.wait_for(lambda: asked("query", query=called)["result"])
    assert "PenstockBacklog" in str(asked("rules"))
