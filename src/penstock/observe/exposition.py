"""Meters as Prometheus reads them.

Owns the form. It imports prometheus-client, so only modules that show meters import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from penstock.observe.meters import METERS, Histogram, Labels, Meters

Gauges = Mapping[str, Mapping[Labels, float]]

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def expose(meters: Meters, gauges: Gauges, accept: str) -> tuple[bytes, str]:
    """All meters as text, in a form that the reader accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(meters, gauges))
    text: bytes = encode(registry)
    return text, content_type


class _Collector:
    def __init__(self, meters: Meters, gauges: Gauges) -> None:
        self._meters = meters
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, meter in METERS.items():
            family = _FAMILIES[meter.kind](name, meter.meaning, labels=meter.labels)
            if meter.kind == "histogram":
                for labels, histogram in self._meters.histograms[name].items():
                    family.add_metric(labels, _buckets(histogram), histogram.total)
            else:
                values = self._meters.counters[name] if meter.kind == "counter" else self._gauges.get(name, {})
                for labels, value in values.items():
                    family.add_metric(labels, value)
            yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds, and how many values lie below each."""
    below = map(float, accumulate(histogram.counts))
    return list(zip((*map(str, histogram.bounds), "+Inf"), below, strict=True))
