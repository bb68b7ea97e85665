"""Prometheus metrics of parameters."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParametersMetrics:
    """All metrics of the role."""

    newest_version: Gauge
    published_at: Gauge
    kept_versions: Gauge
    stored_bytes: Gauge
    epoch: Gauge
    publishes: Counter
    publish_s: Histogram
    publish_bytes: Counter
    publish_saved_bytes: Counter
    fetch_s: Histogram
    fetch_bytes: Counter
    fetch_saved_bytes: Counter
    corrupt_reads: Counter
    watchers: Gauge
    oldest_running_version: Gauge


def parameters_metrics(registry: CollectorRegistry) -> ParametersMetrics:
    """Registers the metrics of the role."""

    def gauge(name: str, text: str) -> Gauge:
        return Gauge(f"minefleet_parameters_{name}", text, registry=registry)

    def counter(name: str, text: str) -> Counter:
        return Counter(f"minefleet_parameters_{name}", text, registry=registry)

    def histogram(name: str, text: str) -> Histogram:
        return Histogram(f"minefleet_parameters_{name}", text, buckets=SECONDS, registry=registry)

    return ParametersMetrics(
        newest_version=gauge("newest_version", "The newest policy version."),
        published_at=gauge("published_timestamp_seconds", "When the newest version was published; 0 before."),
        kept_versions=gauge("kept_versions", "Versions that can be fetched."),
        stored_bytes=gauge("stored_bytes", "Bytes of the tensors on disk."),
        epoch=gauge("epoch", "The newest epoch."),
        publishes=counter("publishes_total", "Versions published."),
        publish_s=histogram("publish_seconds", "Time from a publish's header until it was visible."),
        publish_bytes=counter("publish_bytes_total", "Bytes of tensors that the learner sent."),
        publish_saved_bytes=counter("publish_saved_bytes_total", "Bytes of tensors that it did not have to send."),
        fetch_s=histogram("fetch_seconds", "Time to send what a fetch asked for."),
        fetch_bytes=counter("fetch_bytes_total", "Bytes of tensors sent."),
        fetch_saved_bytes=counter("fetch_saved_bytes_total", "Bytes of fetched versions that watchers had already."),
        corrupt_reads=counter("corrupt_reads_total", "Fetches that found a damaged tensor."),
        watchers=gauge("watchers", "Open watches."),
        oldest_running_version=gauge("oldest_running_version", "The oldest version that a watcher says it runs."),
    )
