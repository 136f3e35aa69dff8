"""The metrics of a server, for Prometheus."""

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "nbtrain_requests",
            "Requests answered, by route and status.",
            ("route", "status"),
            registry=registry,
        )
        self.dropped = Counter(
            "nbtrain_dropped_clients",
            "Clients that disconnected or did not read their stream.",
            registry=registry,
        )
        self.prompt_tokens = Counter("nbtrain_prompt_tokens", "Prompt tokens read.", registry=registry)
        self.new_tokens = Counter("nbtrain_new_tokens", "Tokens generated.", registry=registry)
        self.running = Gauge("nbtrain_running_texts", "Texts in the batch.", registry=registry)
        self.waiting = Gauge(
            "nbtrain_waiting_texts", "Texts that wait for a slot in the batch.", registry=registry
        )
        self.loaded = Gauge("nbtrain_loaded_models", "Models in memory.", registry=registry)
        self.first_text = Histogram(
            "nbtrain_first_text_seconds",
            "Seconds from a request to its first generated text.",
            buckets=SECONDS,
            registry=registry,
        )
        self.seconds = Histogram(
            "nbtrain_request_seconds",
            "Seconds to answer a request.",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
