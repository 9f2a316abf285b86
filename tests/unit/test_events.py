"""Whoever wants to know is told what changes, and how far a start has come."""

from __future__ import annotations

import pytest

from jaxcluster.cluster import events


def test_watchers_are_told_of_cells_and_of_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(events, "watchers", [heard.append])
    events.tell()
    events.tell("a cell")
    assert heard == [None, "a cell"]


def test_news_of_a_start_end_with_it() -> None:
    heard: list[str] = []
    with events.going_on(heard.append) as say:
        say("starting 2 processes ...")
        assert events.progress == "starting 2 processes ..."
        with events.going_on() as inner:
            inner("engines 1/2")
        assert events.progress == "starting 2 processes ..."
    assert (events.progress, heard) == ("", ["starting 2 processes ..."])


def test_starts_that_end_in_another_order_than_they_began_leave_no_news() -> None:
    first, second = events.going_on(), events.going_on()
    first.__enter__()("starting 2 processes ...")
    second.__enter__()("saving the ranks' variables ...")
    first.__exit__(None, None, None)
    assert events.progress == "saving the ranks' variables ..."
    second.__exit__(None, None, None)
    assert events.progress == ""
