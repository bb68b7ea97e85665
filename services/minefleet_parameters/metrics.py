"""Prometheus metrics of parameters."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class ParametersMetrics:
    """All metrics of the role."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"minefleet_parameters_{name}", text, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"minefleet_parameters_{name}", text, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"minefleet_parameters_{name}", text, buckets=SECONDS, registry=registry)

        self.newest_version = gauge("newest_version", "The newest policy version.")
        self.published_at = gauge("published_timestamp_seconds", "When the newest version was published; 0 before.")
        self.kept_versions = gauge("kept_versions", "Versions that can be fetched.")
        self.stored_bytes = gauge("stored_bytes", "Bytes of the tensors on disk.")
        self.epoch = gauge("epoch", "The newest epoch.")
        self.publishes = counter("publishes_total", "Versions published.")
        self.publish_s = histogram("publish_seconds", "Time from a publish's header until it was visible.")
        self.publish_bytes = counter("publish_bytes_total", "Bytes of tensors that the learner sent.")
        self.publish_saved_bytes = counter(
            "publish_saved_bytes_total", "Bytes of tensors that it did not have to send."
        )
        self.fetch_s = histogram("fetch_seconds", "Time to send what a fetch asked for.")
        self.fetch_bytes = counter("fetch_bytes_total", "Bytes of tensors sent.")
        self.fetch_saved_bytes = counter(
            "fetch_saved_bytes_total", "Bytes of fetched versions that watchers had already."
        )
        self.corrupt_reads = counter("corrupt_reads_total", "Fetches that found a damaged tensor.")
        self.watchers = gauge("watchers", "Open watches.")
        self.oldest_running_version = gauge("oldest_running_version", "The oldest version that a watcher says it runs.")
