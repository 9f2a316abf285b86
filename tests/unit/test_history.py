"""What a rank writes of its cells, and what is read of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.agreement.messages import CellSpec
from jaxcluster.cluster.history import Following
from jaxcluster.cluster.history import History as Read
from jaxcluster.errors import UsageError
from jaxcluster.host import ringfile
from jaxcluster.model.outputs import PastCell
from jaxcluster.rank import history as writing
from jaxcluster.rank.history import History
from jaxcluster.views import history as view

S = 1_000_000_000


class Ranks:
    """A world of ranks that write into a folder."""

    def __init__(self, folder: Path, num_processes: int = 1) -> None:
        self.num_processes = num_processes
        self.processes = self
        self.folder = folder
        self.dead: dict[int, Any] = {}
        self.ranks = [History(folder / f"rank-{rank}") for rank in range(num_processes)]

    def read_history(self, log: str, wanted: dict[int, int]) -> dict[int, ringfile.Part]:
        return {r: ringfile.read(self.folder / f"rank-{r}" / log, at) for r, at in wanted.items()}

    def read(self) -> Read:
        for one in self.ranks:
            one.flush()
        return Read(self)  # type: ignore[arg-type]

    def cells(self) -> list[PastCell]:
        return self.read().cells

    def follow(self, number: int) -> PastCell:
        found = self.read()
        following = Following(found, found.find(number))
        following.look()
        return following.record

    def text(self, number: int, rank: int = 0) -> str:
        return self.follow(number).records[rank].text()


def cell(
    seq: int, source: str = "", number: int = 0, ranks: tuple[int, ...] = (0,), **more: Any
) -> wire.CellRequest:
    given: dict[str, Any] = {"sent_ns": seq * S, "who": "a.ipynb (process 7 on h)", **more}
    source = source or f"source {seq}"
    return wire.CellRequest(CellSpec(seq, ranks), source, number or seq, [0], **given)


def reply(seq: int, status: str = "ok", error: wire.ErrorInfo | None = None) -> wire.CellReply:
    return wire.CellReply(0, seq, status, 0.5, error)


def prints(rank: History, text: str, name: str = "stdout") -> None:
    rank.add("stream", {"name": name, "text": text})


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_cells_and_what_they_put_out(ranks: Ranks) -> None:
    rank = ranks.ranks[0]
    rank.begin(cell(1, "# first\n%magic\n\nx = 1", number=7))
    for name, text in [("stdout", "a"), ("stdout", "b\n"), ("stderr", "c"), ("stdout", "d")]:
        prints(rank, text, name)
    rank.end(reply(1))
    rank.begin(cell(2))
    prints(rank, "é\n\x1b[1m\r\n")
    rank.add("execute_result", {"data": {"text/plain": "42"}, "metadata": {}})
    one, two = ranks.cells()
    assert (one.seq, one.execution_count, one.state) == (1, 7, "ok")
    assert (one.seconds, one.first_line) == (0.5, "x = 1")
    assert (two.seq, two.state, two.who) == (2, "running", "a.ipynb (process 7 on h)")
    assert ranks.text(1) == "ab\ncd"
    assert ranks.text(2) == "é\n\x1b[1m\r\n"
    assert ranks.follow(2).result() == {"text/plain": "42"}


def test_what_a_widget_does_after_a_cell_is_that_cells(ranks: Ranks) -> None:
    rank = ranks.ranks[0]
    rank.begin(cell(1))
    rank.end(reply(1))
    prints(rank, "clicked\n")
    rank.begin(cell(3))
    assert ranks.text(1) == "clicked\n"
    assert [one.state for one in ranks.cells()] == ["ok", "running"]


@pytest.mark.parametrize("how", ["dead", "replaced"])
def test_a_rank_that_ended_in_a_cell_died_in_it(ranks: Ranks, how: str) -> None:
    ranks.ranks[0].begin(cell(1))
    prints(ranks.ranks[0], "last words")
    ranks.ranks[0].flush()
    if how == "dead":
        ranks.dead[0] = wire.Death("killed")
    else:
        ranks.ranks[0] = History(ranks.folder / "rank-0")
    (one,) = ranks.cells()
    assert one.state == "died"
    assert ranks.text(1) == "last words"
    if how == "replaced":
        ranks.ranks[0].begin(cell(2, sent_ns=5 * S))
        assert [(c.seq, c.state) for c in ranks.cells()] == [(1, "died"), (2, "running")]


def test_cells_that_are_not_kept_are_counted(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writing.NBYTES, writing.CELLS, 100_000)
    rank = History(ranks.folder / "rank-0")
    for seq in range(1, 1_001):
        rank.begin(cell(seq))
        rank.end(reply(seq))
    found = ranks.read()
    assert 100 < len(found.cells) < 800
    assert found.dropped == 1_000 - len(found.cells)
    with pytest.raises(UsageError, match=rf"it has {found.dropped + 1} to 1000"):
        found.find(1)
    shown = view.table(found, 2_000 * S, "me", 20)["text/plain"]
    assert shown.endswith(f"{found.dropped} older cells no longer kept.")
    History(ranks.folder / "rank-0").begin(cell(1_001))
    assert ranks.cells()[-1].seq == 1_001


def test_a_full_disk_is_no_error(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = ranks.ranks[0]
    rank.begin(cell(1))
    prints(rank, "before\n")
    rank.flush()

    with monkeypatch.context() as patched:
        patched.setattr(ringfile.free_space, "has_spare", lambda *_: False)
        prints(rank, "x" * 1000)
        rank.flush()
        prints(rank, "y" * 500)
        rank.flush()
    prints(rank, "after\n")
    assert ranks.text(1) == "before\nafter\n"


def test_a_cell_that_a_rank_has_not_begun_is_not_over(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    both = cell(1, ranks=(0, 1))
    first, second = ranks.ranks
    first.begin(both)
    first.end(reply(1))
    assert ranks.cells()[0].state == "running"
    second.end(replace(reply(1), skipped=wire.Skipped()))  # before its turn
    assert ranks.cells()[0].state == "interrupted"
    later = cell(2, ranks=(0, 1))
    first.begin(later)
    first.end(reply(2))
    assert ranks.cells()[1].state == "running"
    ranks.dead[1] = {}
    assert ranks.cells()[1].state == "died"


def test_of_a_display_what_can_be_shown_is_kept(ranks: Ranks) -> None:
    rank = ranks.ranks[0]
    rank.begin(cell(1))
    data = {
        "text/plain": "t",
        "image/png": "p" * writing.DISPLAY_CHARS,
        "image/jpeg": "j" * (writing.DISPLAY_CHARS + 1),
        "application/vnd.jaxcluster.shards+json": {"big": 1},
    }
    rank.add("display_data", {"data": data, "transient": {"display_id": "d"}})
    rank.add("clear_output", {"wait": True})
    (shown,) = ranks.follow(1).records[0].outputs()
    assert shown.content["data"] == {mime: data[mime] for mime in ("text/plain", "image/png")}
    assert shown.content["transient"] == {"display_id": "d"}


def test_the_table_has_what_each_cell_was(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    for number, rank in enumerate(ranks.ranks):
        rank.begin(cell(1, "x" * 100, ranks=(0, 1)))
        rank.end(reply(1, "error" if number else "ok"))
    ranks.ranks[0].begin(cell(2, "<b>", who="me"))
    bundle = view.table(ranks.read(), 5 * S, "me", 20)
    head, first, second = bundle["text/plain"].splitlines()
    assert head.split() == ["cell", "in", "state", "time", "began", "who", "ranks", "source"]
    assert first.startswith("1     [1]  error    0.5 s")
    assert first.endswith("x" * 57 + "...")
    assert "running  3.0 s" in second
    assert "this notebook" in second
    assert "<td>&lt;b&gt;</td>" in bundle["text/html"]


def test_a_cell_of_ranks_that_are_no_more_is_over(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.ranks[0].begin(cell(1, ranks=(0, 1)))
    ranks.ranks[0].end(reply(1))
    assert ranks.cells()[0].state == "running"
    ranks.num_processes = 1
    assert ranks.cells()[0].state == "unknown"
