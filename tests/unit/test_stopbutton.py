"""The stop button while a cell is on its way."""

from __future__ import annotations

import signal
import threading

from jaxcluster.cluster import stopbutton


def test_a_press_is_held_and_known_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stopbutton.held() as pressed:
        assert not pressed
        signal.raise_signal(signal.SIGINT)
        assert pressed
    assert signal.getsignal(signal.SIGINT) is before


def test_elsewhere_than_on_the_main_thread_it_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def look() -> None:
        with stopbutton.held() as pressed:
            found.append((signal.getsignal(signal.SIGINT) is before, pressed))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(True, [])]
