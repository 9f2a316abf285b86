"""Whoever wants to know is told what changes, and how far a start has come."""

from __future__ import annotations

import pytest

from jaxcluster import news


def test_watchers_are_told_of_cells_and_of_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(news, "watchers", [heard.append])
    news.tell()
    news.tell("a cell")
    assert heard == [None, "a cell"]


def test_news_of_a_start_end_with_it() -> None:
    heard: list[str] = []
    with news.going_on(heard.append) as say:
        say("starting 2 processes ...")
        assert news.progress == "starting 2 processes ..."
        with news.going_on() as inner:
            inner("engines 1/2")
        assert news.progress == "starting 2 processes ..."
    assert (news.progress, heard) == ("", ["starting 2 processes ..."])


def test_starts_that_end_in_another_order_than_they_began_leave_no_news() -> None:
    first, second = news.going_on(), news.going_on()
    first.__enter__()("starting 2 processes ...")
    second.__enter__()("saving the ranks' variables ...")
    first.__exit__(None, None, None)
    assert news.progress == "saving the ranks' variables ..."
    second.__exit__(None, None, None)
    assert news.progress == ""
