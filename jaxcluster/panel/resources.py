"""What the ranks use, for the pages.

It is no comm's message but an update of a display that nobody has (``views/displays``), so that a
kernel whose ranks are idle looks idle. Frontends pass it by; the extension hears it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster.cluster import Cluster
from jaxcluster.cluster.resources import EVERY_S, Meter, Sample
from jaxcluster.panel import protocol
from jaxcluster.views import displays

WAIT_S = 0.3  # for the ranks' answers; later ones are not lost


class ResourceFeed:
    """Measures while there is a page, and sends what it has measured.

    Used by the panel's thread alone, except ``greet``.

    Attributes:
      due: when it wants to be stepped next, by ``time.monotonic``.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._meter: Meter | None = None
        self._told: Mapping[int, Sample] = {}  # that pages have; {}: some page has none
        self._told_widget: Mapping[int, Sample] = {}
        self.due = 0.0

    def greet(self) -> None:
        """A new page, or a new view of the notebook's widget, knows nothing. Any thread."""
        self._told, self._told_widget, self.due = {}, {}, 0.0

    def step(
        self,
        current: Cluster | None,
        widget: Callable[[dict[str, Any]], Any] | None = None,
        is_busy: bool = False,
    ) -> None:
        """Measure, and send it.

        Args:
          widget: sends it to the notebook's widget: at first, and then while ranks are busy, since
            these messages count as activity of the kernel.
        """
        self.due = time.monotonic() + EVERY_S
        if current is None or current.closed:
            return
        if self._meter is not current.meter:
            self._meter, self._told, self._told_widget = current.meter, {}, {}
        self._meter.keep_up(WAIT_S)
        self.due, latest = self._meter.due, self._meter.latest
        if latest and latest is not self._told:
            self._told = latest
            data = {protocol.RESOURCES_MIME: protocol.plain(message(latest))}
            displays.update_display(self._kernel, data, protocol.RESOURCES_ID)
        is_wanted = latest and (is_busy or not self._told_widget)
        if widget is not None and is_wanted and latest is not self._told_widget:
            self._told_widget = latest
            widget(protocol.plain(message(latest)))


def message(samples: Mapping[int, Sample]) -> protocol.Resources:
    """These samples as a page gets them, in whole percents."""
    return protocol.Resources(
        [
            protocol.RankUse(
                rank,
                _percent(one.cpu),
                one.rss_nbytes,
                _percent(one.gpu),
                one.gpu_used_nbytes,
                one.gpu_total_nbytes,
            )
            for rank, one in sorted(samples.items())
        ]
    )


def _percent(value: float | None) -> int | None:
    return None if value is None else round(value)
