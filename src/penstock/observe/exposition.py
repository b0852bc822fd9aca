"""Meters as Prometheus reads them.

Owns the form. It imports prometheus-client, so only modules that show meters import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def exposed(meters: Meters, gauges: Gauges, accept: str) -> tuple[bytes, str]:
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
            if meter.kind == "counter":
                yield _counter(name, self._meters.counters[name])
            elif meter.kind == "histogram":
                yield _histogram(name, self._meters.histograms[name])
            else:
                yield _gauge(name, self._gauges.get(name, {}))


def _counter(name: str, numbers: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(name, METERS[name].meaning, labels=METERS[name].labels)
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family


def _gauge(name: str, values: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily(name, METERS[name].meaning, labels=METERS[name].labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(name: str, found: Mapping[Labels, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, METERS[name].meaning, labels=METERS[name].labels)
    for labels, histogram in found.items():
        family.add_metric(labels, _buckets(histogram), histogram.total)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds, and how many values lie below each."""
    below, buckets = 0, []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets
