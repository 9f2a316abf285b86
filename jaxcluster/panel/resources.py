"""What the ranks use, over time, for the pages that show it.

It is no comm's message but an update of a display that nobody has (``views/displays``), so that a
kernel whose ranks are idle looks idle. Frontends pass it by; the extension hears it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxcluster.cluster import Cluster
from jaxcluster.cluster.resources import EVERY_S, Meter, Sample
from jaxcluster.panel import protocol
from jaxcluster.views import displays

WAIT_S = 0.3  # for the ranks' answers; later ones are not lost


class ResourceFeed:
    """Measures while there is a page, and sends what it has measured while one shows it.

    Used by the panel's thread alone, except ``watch`` and ``forget``.

    Attributes:
      due: when it wants to be stepped next, by ``time.monotonic``.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._meter: Meter | None = None
        self._sent: dict[int, int] = {}  # ``Meter.taken`` by then
        self._sent_to_widget: dict[int, int] = {}
        self._watching: set[str] = set()
        self._whole = False  # some page knows nothing of what was before
        self.due = 0.0

    def watch(self, page: str, on: bool) -> None:
        """A page shows it from now on, or does not any more. Any thread."""
        if on:
            self._watching.add(page)
            self._whole, self.due = True, 0.0
        else:
            self._watching.discard(page)

    def greet(self) -> None:
        """The notebook's widget has a new view, which knows nothing. Any thread."""
        self._sent_to_widget, self.due = {}, 0.0

    def step(
        self,
        current: Cluster | None,
        pages: Iterable[str],
        widget: Callable[[dict[str, Any]], Any] | None = None,
        is_busy: bool = False,
    ) -> None:
        """Measure, and send it to whoever looks.

        Args:
          widget: sends it to the notebook's widget: all at first, and then while ranks are busy,
            since these messages count as activity of the kernel.
        """
        self.due = time.monotonic() + EVERY_S
        self._watching &= set(pages)
        if current is None or current.closed:
            self._meter = None
            return
        if self._meter is not current.meter:
            self._meter, self._whole = current.meter, True
            self._sent_to_widget = {}
        meter = current.meter
        meter.keep_up(WAIT_S)
        self.due = meter.due
        whole = not self._sent_to_widget
        if widget is not None and (whole or is_busy):
            shown, self._sent_to_widget = meter.since(self._sent_to_widget)
            if shown:
                widget(protocol.plain(message(current.name, shown, whole)))
        if not self._watching:
            return
        whole, self._whole = self._whole, False
        shown, self._sent = meter.since({} if whole else self._sent)
        if shown or whole:
            self._send(message(current.name, shown, whole))

    def _send(self, resources: protocol.Resources) -> None:
        data = {protocol.RESOURCES_MIME: protocol.plain(resources)}
        displays.update_display(self._kernel, data, protocol.RESOURCES_ID)


def message(name: str, samples: Mapping[int, Iterable[Sample]], whole: bool) -> protocol.Resources:
    """These samples as a page gets them: whole percents, and a list for each quantity."""
    series = []
    for rank, found in sorted(samples.items()):
        own = list(found)
        series.append(
            protocol.Series(
                rank,
                [_percent(one.cpu) for one in own],
                [one.rss_nbytes for one in own],
                [_percent(one.gpu) for one in own],
                [one.gpu_used_nbytes for one in own],
                own[-1].gpu_total_nbytes if own else 0,
            )
        )
    now = time.time_ns() // 1_000_000
    return protocol.Resources(now, name, series, whole, int(EVERY_S * 1000))


def _percent(value: float | None) -> int | None:
    return None if value is None else round(value)
