"""The kernel's side of the Lab extension: what telling it costs a cell, and a state of 256 ranks.

python benchmarks/bench_panel.py
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit"))

from test_panel import of_size, state

from jaxcluster.cluster import events
from jaxcluster.notebook.panel import protocol
from jaxcluster.notebook.panel.model import AutoMode, Model

REPEATS = 7
RANKS = 256


def median_us(call: Callable[[], object], times: int = 1) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(times):
            call()
        taken.append((time.perf_counter() - began) / times)
    return 1e6 * statistics.median(taken)


def main() -> None:
    event = threading.Event()
    events.watchers.append(lambda cell: event.set())
    tell, bare = median_us(events.tell, 10_000), median_us(event.set, 10_000)
    print(f"events.tell {tell:.2f} us, {tell / bare:.1f} times Event.set")
    with pytest.MonkeyPatch.context() as patch:
        running = of_size(RANKS, patch)
        model = Model(AutoMode())
        model.submitted.append(running.submit(1, "a"))
        running.link.states = {
            r: state(r, "running", seq=1, line=3, launching="jit(step)") for r in range(RANKS)
        }
        model.look(0)
        model.look(0)

        def text() -> str:
            shown, cells = model.take_in()
            return json.dumps([protocol.plain(shown), *map(protocol.plain, cells)])

        made, plain = median_us(text), json.loads(text())
        dumped = median_us(lambda: json.dumps(plain))
    print(
        f"a state of {RANKS} ranks: {made / 1000:.1f} ms, {made / dumped:.0f} times json.dumps of "
        f"the same, {len(text()):,} characters"
    )


if __name__ == "__main__":
    main()
