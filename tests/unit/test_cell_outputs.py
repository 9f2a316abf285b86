"""The output of several ranks in a cell, as the notebook shows and keeps it."""

from __future__ import annotations

import base64
import re
from types import SimpleNamespace
from typing import Any

import pytest
from documents import document_with, html_of

from jaxcluster import wire
from jaxcluster.errors import CellFailed
from jaxcluster.model.outputs import CellRecord, RankRecord
from jaxcluster.views import cell_outputs
from jaxcluster.views.displays import show_message
from jaxcluster.views.live import CellDisplay
from jaxcluster.views.messages import OUTPUTS_MIME, RanksOutputs
from jaxcluster.wire.forks import RESTARTED

PNG = base64.b64encode(b"\x89PNG not really").decode()


def record(*texts: str) -> CellRecord:
    """A cell of as many ranks, each of which has printed one of these."""
    made = CellRecord(seq=1, execution_count=7, source="x", ranks=range(len(texts)))
    for rank, text in enumerate(texts):
        if text:
            made.add_output(wire.RankOutput(rank, 1, "stream", {"name": "stdout", "text": text}))
    return made


def display(made: CellRecord, rank: int, kind: str = "display_data", **data: str) -> None:
    bundle = {key.replace("_", "/", 1).replace("_", "+"): value for key, value in data.items()}
    content = {"data": bundle, "metadata": {}, "transient": {}}
    made.add_output(wire.RankOutput(rank, 1, kind, content))


def shown(made: CellRecord) -> RanksOutputs:
    found = cell_outputs.document(made, list(made.ranks))
    assert found is not None
    return found


def test_equal_outputs_are_said_once_in_the_order_of_the_ranks() -> None:
    found = shown(record("a\n", "b\n", "a\n", ""))
    assert [group.ranks for group in found.groups] == [[0, 2], [1], [3]]
    told = "── ranks 0, 2 ──\na\n── rank 1 ──\nb\n── rank 3 ──\n(no output)"
    assert cell_outputs.bundle(found)["text/plain"] == told


def test_pictures_html_and_text_each_have_their_html() -> None:
    made = record("\x1b[31m<script>alert(1)</script>\x1b[0m & more")
    display(made, 0, image_png=PNG + "\n", text_plain="<Figure>")
    display(made, 0, image_svg_xml="<svg onload='x'/>")
    display(made, 0, text_html="<b>bold</b>", text_plain="bold")
    display(made, 0, "execute_result", text_plain="<object>")
    found = cell_outputs.bundle(shown(made))["text/html"]
    assert "<pre>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more</pre>" in found
    assert f'<img src="data:image/png;base64,{PNG}" alt="figure"/>' in found
    assert "onload" not in found  # as data: it can't run
    assert "<div><b>bold</b></div>" in found
    assert "<pre>&lt;object&gt;</pre>" in found


def test_of_a_long_output_the_beginning_and_the_end_are_shown() -> None:
    text = "".join(f"{n:08}\n" for n in range(cell_outputs.MOST_SHOWN // 3))
    ((kept,),) = (group.outputs for group in shown(record(text)).groups)
    assert kept["text"].startswith("00000000\n00000001\n")
    assert kept["text"].endswith(text[-100:])
    assert f"[{len(text) - cell_outputs.MOST_SHOWN} more characters]" in kept["text"]
    ((bar,),) = (group.outputs for group in shown(record("0%\r50%\r100%\ndone\n")).groups)
    assert bar["text"] == "100%\ndone\n"  # what is to be seen of it


def test_nbconvert_shows_groups_that_fold_and_messages_without_red() -> None:
    """What people see who are sent the notebook as HTML."""
    made = record("of two\n", "of two\n", "of one\n")
    display(made, 2, image_png=PNG)
    page = Page()
    show_message(page, "Rank 2 was replaced.\n")
    bundles = [cell_outputs.bundle(shown(made)), *page.bundles.values()]
    html = html_of(document_with(*(("display_data", {"data": data}) for data in bundles)))
    assert len(re.findall('<details open(="")?><summary><b>rank', html)) == 2
    for part in ("<b>ranks 0, 1</b>", "<b>rank 2</b>", PNG, "Rank 2 was replaced."):
        assert part in html
    assert html.count("of two") == 1
    assert not re.search(r'application/vnd\.jupyter\.stderr"', html)


# --------------------------------------------------------------------------- messages


class Page:
    """A notebook's IPython, with its displays as a page folds them."""

    kernel = object()

    def __init__(self) -> None:
        self.display_pub = self
        self.bundles: dict[str, Any] = {}

    def publish(
        self, data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False
    ) -> None:
        id = (transient or {}).get("display_id") or f"message {len(self.bundles)}"
        assert update == (id in self.bundles)
        self.bundles[id] = data

    @property
    def shown(self) -> list[str]:
        return [data["text/plain"] for data in self.bundles.values()]


def test_the_status_has_one_place_above_a_bar_and_leaves_a_finished_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Between two parts of a bar it would leave the first one as it was then."""
    page = Page()
    display = CellDisplay(page, SimpleNamespace(on_push=None))  # type: ignore[arg-type]
    assert display.on_status is not None
    display.on_notice("Rank 2 was replaced.\n")
    for text in ("a line\r\n", "\r 10%", "\r 20%"):
        display.show(wire.RankOutput(0, 1, "stream", {"name": "stdout", "text": text}))
    assert page.shown == ["Rank 2 was replaced.", ""]
    display.on_status("Rank 1 still works (5 s).")
    display.on_status("Rank 1 still works (15 s).")
    assert page.shown == ["Rank 2 was replaced.", "Rank 1 still works (15 s)."]
    display.close()
    assert page.shown == ["Rank 2 was replaced.", ""]
    assert capsys.readouterr().out == "a line\r\n\r 10%\r 20%"
    log = CellDisplay(object(), SimpleNamespace(on_push=None))  # type: ignore[arg-type]
    assert log.on_status is None  # it is told now and then, as a notice


def test_a_message_goes_beside_the_output_and_an_alarm_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = Page()
    show_message(page, "a <message>\nof two lines\n")
    [bundle] = page.bundles.values()
    assert bundle["text/plain"] == "a <message>\nof two lines"
    assert "a &lt;message&gt;\nof two lines</div>" in bundle["text/html"]
    show_message(object(), "in a terminal")
    assert capsys.readouterr().err == "in a terminal\n"


# --------------------------------------------------------------------------- as nbformat has them


def test_what_a_notebook_shows_below_a_cell_is_the_first_ranks_output_and_how_it_ended() -> None:
    made = record("a\n", "b\n")
    (text,) = cell_outputs.in_notebook(made)
    assert (text["output_type"], text["text"], made.is_over) == ("stream", "a\n", False)
    made.end(CellFailed("ZeroDivisionError on rank 1", "Run it again.", [1], traceback=["below"]))
    _, error = cell_outputs.in_notebook(made)
    assert (error["ename"], error["traceback"]) == ("CellFailed", ["below", "Run it again."])
    assert made.is_over


def test_a_cell_that_showed_several_ranks_shows_them_again() -> None:
    made = record("a\n", "b\n", "c\n")
    made.shown = [0, 1]
    (display,) = cell_outputs.in_notebook(made)
    assert [g["ranks"] for g in display["data"][OUTPUTS_MIME]["groups"]] == [[0], [1]]
    nothing = record("", "")
    nothing.shown = [0, 1]
    assert cell_outputs.in_notebook(nothing) == []


@pytest.mark.parametrize(
    ("why", "told"),
    [("killed by SIGKILL", "rank 1 died: killed by SIGKILL"), (RESTARTED, RESTARTED)],
)
def test_a_ranks_own_output_ends_in_its_death(why: str, told: str) -> None:
    died = cell_outputs.notebook_outputs(RankRecord(1, died=why), 7)[-1]
    assert (died["ename"], died["evalue"]) == ("RankDied", told)
