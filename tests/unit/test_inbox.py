"""Whoever waits for a message is woken by one, or when the time is over."""

from __future__ import annotations

import queue
import signal

import pytest

from jaxcluster.wire import Inbox


@pytest.mark.timeout(60)
@pytest.mark.parametrize("timeout", [0.0, 1e-7, 1e-6, 3e-6, 1e-4])
def test_a_wait_ends_however_short_it_is(timeout: float) -> None:
    for _ in range(2000):
        inbox: Inbox[int] = Inbox()
        inbox.put(1)
        inbox.get()
        for _ in range(2):
            with pytest.raises(queue.Empty):
                inbox.get(timeout=timeout)


def test_a_signal_handler_may_put() -> None:
    """Also where it has interrupted a wait, on the same thread."""
    inbox: Inbox[int] = Inbox()
    before = signal.signal(signal.SIGALRM, lambda *_: inbox.put(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)
        assert [inbox.get(timeout=10) for _ in range(200)] == [1] * 200
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
