"""A server's own figures while it is measured: scraped before, now and then, and after."""

import threading
import time
from types import TracebackType
from typing import Self

from kvengine.telemetry.metrics import MetricsReading
from kvengine.telemetry.rates import Window, window_between
from kvengine.telemetry.scraper import MetricsEndpoint
from kvplan.timeline import Timeline, TimelineLog

_EVERY_S = 0.5


class ServerWatch:
    """Scrapes /metrics on a thread of its own; a server without one leaves everything unknown.

    Args:
        endpoint: Where to ask.
    """

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._usage = TimelineLog()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before: MetricsReading | None = None
        self._after: MetricsReading | None = None
        self._start_s = self._end_s = 0.0
        self._preemptions: int | None = None
        self.peak_used_blocks: int | None = None
        """Of the moments that were looked at; the true peak may be higher."""
        self.peak_running: int | None = None

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        self._before = self._endpoint.scrape()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._after = self._endpoint.scrape()
        self._end_s = time.monotonic()

    @property
    def window(self) -> Window | None:
        """What the server counted in between; None if it does not say, or was restarted."""
        if self._before is None or self._after is None:
            return None
        found = window_between(self._before, self._after, self._end_s - self._start_s)
        return None if found is None else found.total

    @property
    def last(self) -> MetricsReading | None:
        """The reading after the run."""
        return self._after

    @property
    def prefix_unit(self) -> str | None:
        """What prefix hits are counted in."""
        return self._after.total.counters.prefix_unit if self._after and self._after.total else None

    def timeline(self) -> Timeline | None:
        """Usage over time; None if no reading said it."""
        return self._usage.timeline()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._note(self._endpoint.scrape())

    def _note(self, reading: MetricsReading) -> None:
        if reading.total is None:
            return
        gauges, preemptions = reading.total.gauges, reading.total.counters.preemptions
        used, running = gauges.used_blocks, gauges.running
        if used is None or running is None:
            return
        self.peak_used_blocks = max(used, self.peak_used_blocks or 0)
        self.peak_running = max(running, self.peak_running or 0)
        new = (
            max(preemptions - self._preemptions, 0) if preemptions is not None and self._preemptions is not None else 0
        )
        self._preemptions = preemptions
        at = time.monotonic() - self._start_s
        self._usage.add(at, used=used, running=running, waiting=gauges.waiting or 0, preemptions=new)
