"""What JAX has traced since a moment is traced again, by private names of JAX."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxcluster.engine.private import traces
from jaxcluster.engine.private.traces import Traces


class Counting:
    """A jitted function that counts how often it is traced."""

    def __init__(self) -> None:
        self.traced = 0

        def count(x: Any) -> Any:
            self.traced += 1
            return x + 1

        self.call = jax.jit(count)


def test_the_private_names_are_where_they_are_known_to_be() -> None:
    one = Counting()
    one.call(1.0)
    assert traces._counts()


def test_only_what_was_traced_since_is_traced_again() -> None:
    before, since, compiled = Counting(), Counting(), list[str]()
    before.call(1.0)
    moment = Traces()
    moment.note()
    since.call(1.0)
    before.call(1.0)
    thread = threading.Thread(target=moment.forget_later_ones)  # as a cell is undone
    thread.start()
    thread.join()
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **more: compiled.append(name) if "compile" in name else None
    )
    before.call(1.0)
    assert not any("backend_compile" in name for name in compiled)
    since.call(1.0)
    assert (before.traced, since.traced) == (1, 2)


def test_a_function_that_has_one_more_trace_is_traced_again() -> None:
    one = Counting()
    one.call(1.0)
    moment = Traces()
    moment.note()
    one.call(jnp.ones(3))
    assert moment.forget_later_ones()
    one.call(jnp.ones(3))
    assert one.traced == 3


def test_where_nothing_was_traced_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_forget", lambda functions: pytest.fail("forgotten"))
    one = Counting()
    one.call(1.0)
    moment = Traces()
    moment.note()
    one.call(2.0)
    assert not moment.forget_later_ones()


@pytest.mark.parametrize("moved", ["_cache", "_counts"])
def test_where_the_names_have_moved_all_is_traced_again(
    monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    def fails() -> None:
        raise AttributeError(moved)

    one = Counting()
    one.call(1.0)
    monkeypatch.setattr(traces, moved, fails)
    moment = Traces()
    moment.note()
    assert moment.forget_later_ones()
    one.call(1.0)
    assert one.traced == 2
