"""The output of several ranks in a cell, as the notebook shows and keeps it."""

from __future__ import annotations

import base64
import re
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

from jaxcluster import wire
from jaxcluster.errors import CellFailed, CellInterrupted
from jaxcluster.model.notices import Passing
from jaxcluster.model.outputs import CellRecord
from jaxcluster.views import cell_outputs
from jaxcluster.views.displays import show_message
from jaxcluster.views.live import CellDisplay

PNG = base64.b64encode(b"\x89PNG not really").decode()


def record(*texts: str) -> CellRecord:
    """A cell of as many ranks, each of which has printed one of these."""
    made = CellRecord(seq=1, execution_count=7, source="x", ranks=range(len(texts)))
    for rank, text in enumerate(texts):
        if text:
            stream(made, rank, text)
    return made


def stream(made: CellRecord, rank: int, text: str, name: str = "stdout") -> None:
    made.add_output(wire.RankOutput(rank, 1, "stream", {"name": name, "text": text}))


def display(made: CellRecord, rank: int, kind: str = "display_data", **data: str) -> None:
    bundle = {key.replace("_", "/", 1).replace("_", "+"): value for key, value in data.items()}
    content = {"data": bundle, "metadata": {}, "transient": {}}
    made.add_output(wire.RankOutput(rank, 1, kind, content))


def shown(made: CellRecord) -> cell_outputs.RanksOutputs:
    found = cell_outputs.document(made, list(made.ranks))
    assert found is not None
    return found


def plain_text(group: cell_outputs.OutputGroup) -> str:
    (stream,) = group.outputs
    assert stream["output_type"] == "stream"
    return stream["text"]


def test_equal_outputs_are_said_once_in_the_order_of_the_ranks() -> None:
    found = shown(record("a\n", "b\n", "a\n", ""))
    assert [group.ranks for group in found.groups] == [[0, 2], [1], [3]]
    assert cell_outputs.text(found.groups).splitlines() == [
        "── ranks 0, 2 ──", "a", "── rank 1 ──", "b", "── rank 3 ──", "(no output)",
    ]  # fmt: skip


def test_pictures_html_and_text_each_have_their_html() -> None:
    made = record("")
    display(made, 0, image_png=PNG + "\n", text_plain="<Figure>")
    display(made, 0, image_svg_xml="<svg onload='x'/>")
    display(made, 0, text_html="<b>bold</b>", text_plain="bold")
    display(made, 0, "execute_result", text_plain="<object>")
    stream(made, 0, "\x1b[31m<script>alert(1)</script>\x1b[0m & more")
    found = cell_outputs.html(shown(made))
    assert "<pre>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more</pre>" in found
    assert f'<img src="data:image/png;base64,{PNG}" alt="figure"/>' in found
    assert "onload" not in found  # as data: it can't run
    assert "<div><b>bold</b></div>" in found
    assert "<pre>&lt;object&gt;</pre>" in found


def test_of_a_long_output_the_beginning_and_the_end_are_shown() -> None:
    text = "".join(f"{n:08}\n" for n in range(cell_outputs.MOST_SHOWN // 3))
    [group] = shown(record(text)).groups
    kept = plain_text(group)
    assert kept.startswith("00000000\n00000001\n")
    assert kept.endswith(text[-100:])
    assert f"[{len(text) - cell_outputs.MOST_SHOWN} more characters]" in kept
    [bar] = shown(record("0%\r50%\r100%\ndone\n")).groups  # what is to be seen of it
    assert plain_text(bar) == "100%\ndone\n"


def test_nbconvert_shows_groups_that_fold_and_messages_without_red() -> None:
    """What people see who are sent the notebook as HTML."""
    made = record("of two\n", "of two\n", "of one\n")
    display(made, 2, image_png=PNG)
    bundle = cell_outputs.bundle(shown(made))
    published: list[dict[str, Any]] = []
    show_message(Shell(published), "Rank 2 was replaced.\n")
    cell = nbformat.v4.new_code_cell(
        "%%spmd --all\nprint(...)",
        outputs=[
            nbformat.v4.new_output("display_data", data=data) for data in (bundle, *published)
        ],
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.validate(notebook)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert len(re.findall('<details open(="")?><summary><b>rank', html)) == 2
    assert "<b>ranks 0, 1</b>" in html
    assert "<b>rank 2</b>" in html
    assert f"data:image/png;base64,{PNG}" in html
    assert html.count("of two") == 1
    assert "Rank 2 was replaced." in html
    assert not re.search(r'application/vnd\.jupyter\.stderr"', html)


# --------------------------------------------------------------------------- messages


class Shell:
    """As much of a notebook's IPython as a message needs."""

    kernel = object()

    def __init__(self, published: list[dict[str, Any]]) -> None:
        self.display_pub = self
        self.publish = published.append


class Page:
    """The displays of a notebook, as a page folds them."""

    kernel = object()

    def __init__(self) -> None:
        self.display_pub = self
        self.shown: dict[str, str] = {}

    def publish(
        self,
        data: dict[str, Any],
        metadata: object = None,
        *,
        transient: Any = None,
        update: bool = False,
    ) -> None:
        id = (transient or {}).get("display_id") or f"message {len(self.shown)}"
        assert update == (id in self.shown)
        self.shown[id] = data["text/plain"]


def test_what_is_true_for_a_while_has_one_place_and_leaves_a_finished_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = Page()
    display = CellDisplay(page, SimpleNamespace(on_push=None))  # type: ignore[arg-type]
    display.on_notice("Rank 2 was replaced.\n")
    display.on_notice(Passing("Rank 1 still works (5 s).\n"))
    display.on_notice(Passing("Rank 1 still works (15 s).\n"))
    assert list(page.shown.values()) == ["Rank 2 was replaced.", "Rank 1 still works (15 s)."]
    display.close()
    assert list(page.shown.values()) == ["Rank 2 was replaced.", ""]
    log = CellDisplay(object(), SimpleNamespace(on_push=None))  # type: ignore[arg-type]
    log.on_notice(Passing("Rank 1 still works (5 s).\n"))
    log.close()
    assert log.on_status is None  # it is told now and then, as a notice
    assert capsys.readouterr().err == "Rank 1 still works (5 s).\n"


def test_a_message_goes_beside_the_output_and_an_alarm_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    published: list[dict[str, Any]] = []
    show_message(Shell(published), "a <message>\nof two lines\n")
    [bundle] = published
    assert bundle["text/plain"] == "a <message>\nof two lines"
    assert "a &lt;message&gt;\nof two lines</div>" in bundle["text/html"]
    assert capsys.readouterr().err == ""
    show_message(object(), "in a terminal")
    assert capsys.readouterr().err == "in a terminal\n"


def test_what_a_notebook_shows_below_a_cell_is_the_first_ranks_output_and_how_it_ended() -> None:
    made = record("a\n", "b\n")
    (text,) = cell_outputs.in_notebook(made)
    assert (text["output_type"], text["text"], made.is_over) == ("stream", "a\n", False)
    made.end(CellFailed("ZeroDivisionError on rank 1", "Run it again.", [1], traceback=["below"]))
    _, error = cell_outputs.in_notebook(made)
    assert (error["ename"], error["traceback"]) == ("CellFailed", ["below", "Run it again."])
    made.end(CellInterrupted("Cell [7] was stopped."))
    assert "was stopped" in cell_outputs.in_notebook(made)[-1]["traceback"][0]
    assert made.is_over
    well = record("a\n")
    well.end(None)
    assert well.is_over
    assert [one["output_type"] for one in cell_outputs.in_notebook(well)] == ["stream"]


def test_a_cell_that_showed_several_ranks_shows_them_again() -> None:
    made = record("a\n", "b\n", "c\n")
    made.shown = [0, 1]
    (display,) = cell_outputs.in_notebook(made)
    assert [g["ranks"] for g in display["data"][cell_outputs.MIME]["groups"]] == [[0], [1]]
    nothing = record("", "")
    nothing.shown = [0, 1]
    assert cell_outputs.in_notebook(nothing) == []
