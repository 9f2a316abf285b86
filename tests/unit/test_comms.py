"""What an Output shows: pure, without ipywidgets."""

from __future__ import annotations

import types
from typing import Any

from jaxcluster.rank import comms
from jaxcluster.rank.comms import Opened


def outputs_of(*said: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What an Output has after all that, which was shown at its end."""
    widget = types.SimpleNamespace(outputs=())
    opened: Any = Opened(comm_of(widget), None, "", is_output=True)  # type: ignore[arg-type]
    for kind, content in said:
        opened.add(kind, content)
    opened.show()
    return list(widget.outputs)


def comm_of(widget: types.SimpleNamespace) -> Any:
    return types.SimpleNamespace(_msg_callback=types.MethodType(print, widget))


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def test_a_result_is_a_display_and_a_clear_waits() -> None:
    (found,) = outputs_of(("execute_result", {"data": {"text/plain": "4"}, "metadata": {}}))
    assert found["output_type"] == "display_data"
    wait = ("clear_output", {"wait": True})
    assert outputs_of(stream("a"), wait) == outputs_of(stream("a"))
    assert outputs_of(stream("a"), wait, stream("b"))[0]["text"] == "b"
    assert outputs_of(stream("a"), wait, wait) == outputs_of(stream("a"))


def test_of_a_bar_in_an_output_its_last_state_is_kept() -> None:
    assert outputs_of(stream("10%\r50%\r100%\ndone"))[0]["text"] == "100%\ndone"
    assert outputs_of(stream("one\r\ntwo"))[0]["text"] == "one\r\ntwo"
    assert outputs_of(*(stream(f"{n}%\r") for n in range(50)))[0]["text"] == "49%\r"


def test_of_much_text_in_an_output_its_end_is_kept() -> None:
    (found,) = outputs_of(stream("x" * comms.KEPT_CHARS), stream("the end"))
    assert found["text"].endswith("xthe end")
    assert len(found["text"]) == comms.KEPT_CHARS
