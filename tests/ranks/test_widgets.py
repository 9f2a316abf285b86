"""ipywidgets that are made on rank 0: shown by the notebook, and alive in both directions."""

from __future__ import annotations

import queue
import time
from typing import Any

import pytest
from helpers import Notebook, until

pytestmark = pytest.mark.any_jax

MAKE = """%%spmd
import ipywidgets
slider = ipywidgets.IntSlider()
seen = []
slider.observe(lambda change: seen.append(change["new"]), "value")
slider
"""


def messages(notebook: Notebook, source: str) -> list[dict[str, Any]]:
    """All that the frontend is sent while a cell runs."""
    id = notebook.client.execute(source)
    found: list[dict[str, Any]] = []
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            message = notebook.client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != id:
            continue
        found.append(message)
        state = message["content"].get("execution_state")
        if message["msg_type"] == "status" and state == "idle":
            return found
    raise AssertionError(f"no end of {source!r}")


def test_a_widget_of_rank_0_is_alive_in_both_directions(notebook: Notebook) -> None:
    notebook.ok("%jaxcluster start -n 2 --name widgets")
    try:
        made = messages(notebook, MAKE)
        opened = [m["content"] for m in made if m["msg_type"] == "comm_open"]
        (model,) = [
            o["comm_id"] for o in opened if o["data"]["state"]["_model_name"] == "IntSliderModel"
        ]
        update = {"method": "update", "state": {"value": 42}, "buffer_paths": []}
        session = notebook.client.session
        notebook.client.shell_channel.send(
            session.msg("comm_msg", {"comm_id": model, "data": update})
        )
        until(
            lambda: "42 [42]" in notebook.ok("%%spmd\nprint(slider.value, seen)").text,
            "the slider's new value on rank 0",
        )
        moved = messages(notebook, "%%spmd\nslider.value = 7")
        states = [m["content"]["data"]["state"] for m in moved if m["msg_type"] == "comm_msg"]
        assert {"value": 7} in states
        # One widget is shown, not one for each rank.
        assert len([o for o in opened if o["comm_id"] == model]) == 1
        assert len(opened) == 3
    finally:
        notebook.ok("%jaxcluster stop")


def test_a_progress_bar_of_tqdm_auto_is_a_widget(notebook: Notebook) -> None:
    notebook.ok("%jaxcluster start -n 2 --name bars")
    try:
        made = messages(
            notebook, "%%spmd\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass"
        )
        kinds = [m["msg_type"] for m in made]
        assert "comm_open" in kinds
        assert "error" not in kinds
    finally:
        notebook.ok("%jaxcluster stop")
