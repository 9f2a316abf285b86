"""What comms come to, and what an Output shows: pure, without ipywidgets."""

from __future__ import annotations

import threading
from typing import Any

from jaxcluster.engine.output_widgets import Captured, overwritten
from jaxcluster.views.snapshot import as_text, is_over, parts, snapshot
from jaxcluster.wire import WIDGET, CommState, opening_order
from jaxcluster.wire.comms import KEPT_MESSAGES


def widget(**state: Any) -> CommState:
    return CommState.opened({"target_name": WIDGET, "data": {"state": state}}, [])


def test_a_widget_is_opened_with_the_state_that_it_has_come_to() -> None:
    body = {
        "target_name": WIDGET,
        "data": {
            "state": {"value": 1, "image": {"format": "png"}, "many": [None, 2]},
            "buffer_paths": [["image", "data"], ["many", 0]],
        },
        "metadata": {"version": "2.1.0"},
    }
    state = CommState.opened(body, [b"one", memoryview(b"two")])
    state.take({"method": "update", "state": {"value": 7}}, {}, [])
    update = {"method": "echo_update", "state": {"image": {}}, "buffer_paths": [["image", "data"]]}
    state.take(update, {}, [b"three"])
    state.take({"method": "custom", "content": {"state": {"value": 9}}}, {}, [])
    data, buffers = state.opening()
    assert data["state"] == {"value": 7, "image": {}, "many": [None, 2]}
    assert data["buffer_paths"] == [["image", "data"], ["many", 0]]
    assert buffers == [b"three", b"two"]
    assert state.opening() == (data, buffers), "it can be opened more than once"


def test_the_messages_of_another_librarys_comm_are_kept_and_their_number_is_bounded() -> None:
    state = CommState.opened({"target_name": "bokeh", "data": {"a": 1}}, [b"x"])
    for n in range(KEPT_MESSAGES + 3):
        state.take({"n": n}, {}, [])
    assert state.opening() == ({"a": 1}, [b"x"])
    assert len(state.later) == KEPT_MESSAGES
    assert state.later[-1][0] == {"n": KEPT_MESSAGES + 2}


def test_a_model_is_opened_after_those_that_it_names() -> None:
    known = {
        "box": widget(children=["IPY_MODEL_a", "IPY_MODEL_b"], layout="IPY_MODEL_l"),
        "a": widget(style={"of": "IPY_MODEL_s"}, label="IPY_MODEL_"),
        "b": widget(link="IPY_MODEL_box"),  # a circle
        "l": widget(),
        "s": widget(),
        "other": widget(),
    }
    order = opening_order(["box"], known)
    assert set(order) == {"box", "a", "b", "l", "s"}
    assert order.index("s") < order.index("a") < order.index("box")
    assert order.index("l") < order.index("box")
    assert opening_order(["gone", "l"], known) == ["l"]


def outputs_of(*said: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    shown: list[tuple[list[dict[str, Any]], bool]] = []
    captured = Captured(lambda outputs, is_last: shown.append((outputs, is_last)))
    for kind, content in said:
        captured.add(kind, content)
    captured.end()
    assert shown[-1][1]
    return shown[-1][0]


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def test_an_output_has_what_a_cell_would_have() -> None:
    shown = {"data": {"text/plain": "a"}, "metadata": {}, "transient": {"display_id": "d"}}
    found = outputs_of(
        stream("gone"),
        ("clear_output", {"wait": False}),
        stream("one "),
        stream("two\n"),
        stream("err", "stderr"),
        ("display_data", shown),
        ("update_display_data", shown | {"data": {"text/plain": "b"}}),
        ("execute_result", {"data": {"text/plain": "4"}, "metadata": {}}),
    )
    assert [o.get("text") for o in found[:2]] == ["one two\n", "err"]
    assert [o["data"]["text/plain"] for o in found[2:]] == ["b", "4"]
    wait = ("clear_output", {"wait": True})
    assert outputs_of(stream("a"), wait) == outputs_of(stream("a"))
    assert outputs_of(stream("a"), wait, stream("b"))[0]["text"] == "b"


def test_of_a_bar_in_an_output_its_last_state_is_kept() -> None:
    assert overwritten("10%\r50%\r100%\ndone") == "100%\ndone"
    assert outputs_of(*(stream(f"{n}%\r") for n in range(50)))[0]["text"] == "49%\r"


def test_an_output_is_shown_while_more_may_come() -> None:
    told = threading.Event()
    captured = Captured(lambda outputs, is_last: None if is_last else told.set())
    captured.add(*stream("soon"))
    assert told.wait(30)
    captured.end()


# ---------------------------------------------------------------------- in saved notebooks

CONTROLS = {"_model_module": "@jupyter-widgets/controls"}


def model(name: str, **state: Any) -> CommState:
    return widget(_model_name=name, **(CONTROLS | state))


BOX = {
    "box": model("HBoxModel", children=["IPY_MODEL_about", "IPY_MODEL_bar", "IPY_MODEL_rest"]),
    "about": model("HTMLModel", value="epoch:&nbsp;<b>50%</b>", description=""),
    "bar": model("FloatProgressModel", value=2.0, min=0.0, max=4.0, bar_style=""),
    "rest": model("HTMLModel", value=" 2/4 &lt;00:01", description=""),
}


def test_a_widget_is_text_in_a_saved_notebook() -> None:
    told = "epoch: 50% |██████████          | 2/4 <00:01"
    assert snapshot("box", BOX) == told
    assert "&lt;00:01" in as_text(told)["text/html"]
    models = {
        "all": model("VBoxModel", children=[f"IPY_MODEL_{n}" for n in "abcd"]),
        "a": model("IntSliderModel", description="k", value=3),
        "b": model("DropdownModel", description="of", _options_labels=["x", "y"], index=1),
        "c": model("ButtonModel", description="<go>"),
        "d": model("OutputModel", outputs=outputs_of(stream("shown\n")), _model_module=OUTPUT),
    }
    assert snapshot("all", models) == "k: 3\nof: y\n[ <go> ]\nshown"
    assert snapshot("gone", models) is None
    assert snapshot("c", {"c": model("AnyModel", _model_module="anywidget")}) is None
    circle = {"c": model("VBoxModel", children=["IPY_MODEL_c"])}
    assert snapshot("c", circle) is None


OUTPUT = "@jupyter-widgets/output"


def test_a_bar_is_over_when_tqdm_has_styled_it_so() -> None:
    assert not is_over("box", BOX)
    done = BOX | {"bar": model("FloatProgressModel", bar_style="success")}
    assert is_over("box", done)
    assert set(parts("box", done)) == set(BOX)
    assert not is_over("about", done)
