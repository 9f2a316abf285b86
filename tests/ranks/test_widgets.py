"""Widgets that are made on ranks: shown by the notebook, and alive in both directions.

What the page does is done here by messages, as a frontend sends them; in a real page:
``tests/lab/test_widgets_of_ranks.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import DEADLINE_S, Cell, Notebook, until

pytestmark = pytest.mark.any_jax

SETUP = """%%spmd
import ipywidgets as W, jax, jax.numpy as jnp, numpy as np, threading, time
from IPython.display import clear_output, display
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("i",))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("i")), lambda i: np.arange(8.0)[i])
rank = jax.process_index()
"""


class Page:
    """What a page knows of a kernel's models, by the messages that it has had."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for message in self.notebook.comm_messages:
            if message.kind == "comm_open" and "state" in message.data:
                missing = set(_references(message.data["state"])) - set(found)
                assert not missing, "a model was opened before one that it names"
                found[message.comm_id] = dict(message.data["state"])
            elif message.kind == "comm_close":
                found.pop(message.comm_id, None)
            elif message.comm_id in found and message.data.get("method") in UPDATES:
                found[message.comm_id].update(message.data["state"])
        return found

    def find(self, name: str, **state: Any) -> str:
        """The model made last of this name and state."""
        found = [
            id
            for id, model in self.models.items()
            if model["_model_name"] == name and state.items() <= model.items()
        ]
        assert found, f"no {name} with {state}"
        return found[-1]

    def shown(self, cell: Cell) -> list[str]:
        """The ids of the models that a cell shows."""
        bundles = list(cell.bundles)
        for bundle in cell.bundles:
            for group in bundle.get("application/vnd.jaxcluster.outputs+json", {"groups": []})[
                "groups"
            ]:
                bundles += [output["data"] for output in group["outputs"] if "data" in output]
        views = [bundle.get("application/vnd.jupyter.widget-view+json") for bundle in bundles]
        return [view["model_id"] for view in views if view]

    def text(self, model: str) -> str:
        """What an Output shows."""
        parts = []
        for output in self.models[model]["outputs"]:
            data = output.get("data", {}).get("text/plain", "")
            parts.append(output.get("text") or output.get("evalue") or data)
        return "|".join(parts)

    def set(self, model: str, **state: Any) -> None:
        self.say(model, {"method": "update", "state": state, "buffer_paths": []})

    def click(self, model: str) -> None:
        self.say(model, {"method": "custom", "content": {"event": "click"}})

    def say(self, model: str, data: dict[str, Any]) -> None:
        self.notebook.send("comm_msg", {"comm_id": model, "data": data})


UPDATES = ("update", "echo_update")


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("IPY_MODEL_"):
        yield value.removeprefix("IPY_MODEL_")
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


@pytest.fixture(scope="module")
def page(notebook: Notebook) -> Iterator[Page]:
    """A page of a notebook with a cluster of two ranks."""
    notebook.ok("%jaxcluster start -n 2 --name widgets")
    notebook.ok(SETUP)
    yield Page(notebook)
    notebook.ok("%jaxcluster stop")


@pytest.mark.promise("The promise")
def test_what_a_user_does_is_done_on_all_ranks_that_made_the_widget(page: Page) -> None:
    made = page.notebook.ok(
        "%%spmd\n"
        "slider, seen = W.IntSlider(), []\n"
        "slider.observe(lambda change: seen.append(change['new']), 'value')\n"
        "W.VBox([slider, W.Label('below')])"
    )
    (box,) = page.shown(made)  # one widget is shown, not one for each rank
    assert len(page.models[box]["children"]) == 2
    slider = page.find("IntSliderModel")
    page.set(slider, value=42)
    page.notebook.until(lambda: page.models[slider]["value"] == 42, "the echo of the new value")
    text = page.notebook.ok("%%spmd --all\nprint(slider.value, seen)").text
    assert "42 [42]" in text
    assert "── ranks 0, 1 ──" in text
    page.notebook.ok("%%spmd\nslider.value = 7")
    assert page.models[slider]["value"] == 7


def test_interact_computes_on_all_ranks_and_shows_it_in_its_place(page: Page) -> None:
    made = page.notebook.ok(
        "%%spmd\n@W.interact(k=(0, 9))\ndef total(k=2):\n"
        "    print('total', float(jnp.sum(x * k)))\n    return k"
    )
    assert "total" not in made.stdout
    slider, output = page.find("IntSliderModel", max=9), page.find("OutputModel")
    assert page.text(output) == "total 56.0\n|2"
    for k in (3, 5):
        page.set(slider, value=k)
        wanted = f"total {28.0 * k}\n|{k}"
        page.notebook.until(lambda w=wanted: page.text(output) == w, f"sum for {k}")  # type: ignore[misc]
    text = page.notebook.ok("%%spmd --all\nprint(float(jnp.sum(x)), total.widget.result)").text
    assert "28.0 5" in text
    assert "── ranks 0, 1 ──" in text


def test_an_output_has_what_is_put_out_inside_of_it(page: Page) -> None:
    made = page.notebook.ok(
        "%%spmd\n"
        "out, inner = W.Output(), W.Output()\n"
        "display(out, inner)\n"
        "with out:\n"
        "    print('old')\n"
        "    clear_output(wait=True)\n"
        "    print('one\\rtwo')\n"
        "    with inner:\n"
        "        print('inner')\n"
        "    display({'text/plain': 'shown'}, raw=True)\n"
        "with out:\n"
        "    raise ValueError('inside')\n"
        "def late():\n"
        "    with inner:\n"
        "        print('of a thread')\n"
        "threading.Timer(0.5, late).start()\n"
        "print('outside')"
    )
    assert made.stdout == "outside\n"
    out, inner = page.shown(made)
    assert page.text(out) == "two\n|shown|inside"
    wanted = "inner\nof a thread\n"
    page.notebook.until(lambda: page.text(inner) == wanted, "the thread's line in its Output")
    told = "%%spmd --all\nprint([o.get('text') for o in out.outputs], len(inner.outputs))"
    text = page.notebook.ok(told).text
    assert "['two\\n', None, None] 1" in text
    assert "── ranks 0, 1 ──" in text


def test_what_observes_a_widget_shows_and_fails_below_it(page: Page) -> None:
    made = page.notebook.ok(
        "%%spmd\n"
        "button = W.Button(description='go')\n"
        "@button.on_click\n"
        "def go(_):\n"
        "    print('gone')\n"
        "    display({'text/plain': 'shown'}, raw=True)\n"
        "    if rank == 1:\n"
        "        raise ValueError('rank 1 alone')\n"
        "button"
    )
    page.click(page.shown(made)[0])
    page.notebook.until(lambda: "ValueError: rank 1 alone" in made.text, "the error of rank 1")
    assert "gone\nshown\n" in made.text
    assert "On rank 1" in made.text
    assert "line 8" in made.text
    assert "ipywidgets" not in made.text.partition("On rank 1")[2]
    assert "28.0" in page.notebook.ok("%%spmd\nprint(float(jnp.sum(x)))").stdout


def test_a_widget_of_one_rank_is_that_ranks_alone(page: Page) -> None:
    """Also while the other ranks run."""
    made = page.notebook.ok("%%spmd --ranks 1\nown = W.IntSlider(max=50)\nown")
    (slider,) = page.shown(made)
    page.notebook.ok("%%spmd --ranks 0 --async --out waits\nwhile not globals().get('go_on'):\n"
                     "    time.sleep(0.01)")  # fmt: skip
    page.set(slider, value=9)
    page.notebook.until(lambda: page.models[slider]["value"] == 9, "rank 1's slider")
    assert "9" in page.notebook.ok("%%spmd --ranks 1\nprint(own.value)").stdout
    page.notebook.ok("import jaxcluster\njaxcluster.current().interrupt()")
    page.notebook.run("waits.wait()")


def test_comms_of_other_libraries_go_both_ways(page: Page) -> None:
    """By whichever class a rank opens them."""
    page.notebook.ok(
        "%%spmd\n"
        "import warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from ipykernel.comm import Comm\n"
        "mine = Comm(target_name='mine', data={'hello': 1})\n"
        "@mine.on_msg\n"
        "def heard(message):\n"
        "    mine.send({'back': message['content']['data']['n'] + 1})"
    )
    heard = page.notebook.comm_messages
    (mine,) = [m.comm_id for m in heard if m.kind == "comm_open" and m.data == {"hello": 1}]
    page.say(mine, {"n": 1})
    page.notebook.until(lambda: any(m.data == {"back": 2} for m in heard), "the answer of a rank")


def test_a_page_that_is_loaded_again_gets_the_models_of_ranks(page: Page) -> None:
    page.notebook.ok("%%spmd\nimage = W.Image(value=b'\\x00\\x01binary', format='png')\nimage")
    image = page.find("ImageModel")
    content = {"comm_id": "control", "target_name": "jupyter.widget.control"}
    page.notebook.send("comm_open", content | {"data": {}}, {"version": "1.0.0"})
    heard = page.notebook.comm_messages
    refused = lambda: any(m.comm_id == "control" and m.kind == "comm_close" for m in heard)  # noqa: E731
    page.notebook.until(refused, "that the page has to ask each model")
    page.say(image, {"method": "request_state"})

    def answer() -> dict[str, Any] | None:
        told = [m.data for m in heard if m.comm_id == image and m.data.get("method") == "update"]
        return told[-1] if told else None

    told = page.notebook.until(answer, "the model's state")
    assert told["state"]["_model_name"] == "ImageModel"
    assert ["value"] in told["buffer_paths"]


def test_stop_ends_an_observer(page: Page) -> None:
    made = page.notebook.ok(
        "%%spmd\n"
        "button = W.Button()\n"
        "@button.on_click\n"
        "def wait(_):\n"
        "    print('in', float(jnp.sum(x)))\n"  # all ranks are in it
        "    time.sleep(600)\n"
        "button"
    )
    page.click(page.shown(made)[0])
    page.notebook.until(lambda: "in 28.0" in made.stdout, "the observer to begin")
    page.notebook.press_stop()
    page.notebook.until(lambda: "was stopped" in made.text, "that it was stopped")
    assert "28.0" in page.notebook.ok("%%spmd\nprint(float(jnp.sum(x)))").stdout


def test_a_dead_widget_says_so(page: Page) -> None:
    made = page.notebook.ok("%%spmd\nslider = W.IntSlider(max=77)\nslider")
    (slider,) = page.shown(made)
    told = "The widgets of cell"
    restarted = page.notebook.ok("%jaxcluster restart")
    assert "slider (" in restarted.text
    page.set(slider, value=1)
    page.notebook.until(lambda: told in made.stdout, "that its ranks are gone")
    assert "the ranks have new processes" in made.stdout
    page.notebook.ok(SETUP)
    again = page.notebook.ok("%%spmd\nslider = W.IntSlider(max=78)\nslider")
    page.set(page.shown(again)[0], value=3)
    text = page.notebook.ok("%%spmd\nprint(slider.value)").stdout
    assert text == "3\n"


def test_what_a_widget_is_told_comes_under_the_cell_that_tells_it(page: Page) -> None:
    """By that nbclient knows it, and keeps the models that nbconvert then shows."""
    page.notebook.ok("%%spmd\nslider = W.IntSlider()\nslider")
    id = page.notebook.client.execute("%%spmd\nslider.value = 7")

    def told() -> dict[str, Any]:
        message: dict[str, Any] = page.notebook.client.get_iopub_msg(timeout=DEADLINE_S)
        own = message["parent_header"].get("msg_id") == id
        return message["content"] if own and message["msg_type"] == "comm_msg" else {}

    said = until(told, "what the slider is told")
    assert said["data"]["state"] == {"value": 7}
