"""How ipywidgets' own widgets look, as text: what a saved notebook has of them.

A widget's view is drawn by the page out of models that end with the kernel. Frontends that know no
models, nbconvert among them, take the text beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape, unescape
from typing import Any

from jaxcluster.model.outputs import ANSI
from jaxcluster.views.displays import Bundle
from jaxcluster.wire import CommState

BAR = 20  # characters of a bar
OVER = ("success", "danger")  # how a bar of tqdm that has ended is styled
REFERENCE = "IPY_MODEL_"
ACROSS = ("HBoxModel", "ControllerModel")


def snapshot(id: str, models: Mapping[str, CommState]) -> str | None:
    """A widget as it looks now; None where it has a part that is not known here."""
    try:
        return _text(id, models, ())
    except (KeyError, TypeError, ValueError, IndexError):  # a state of another version, or halfway
        return None


def as_text(shown: str) -> Bundle:
    """A text for frontends that draw no widgets."""
    return {"text/plain": shown, "text/html": f"<pre>{escape(shown)}</pre>"}


def is_over(id: str, models: Mapping[str, CommState]) -> bool:
    """Whether it is a progress bar that has ended, and nothing else."""
    bars = [state.get("bar_style") for state in _tree(id, models, set()) if "bar_style" in state]
    return bool(bars) and all(style in OVER for style in bars)


def parts(id: str, models: Mapping[str, CommState]) -> list[str]:
    """The ids of a widget and of all that it names."""
    seen: set[str] = set()
    for _ in _tree(id, models, seen):
        pass
    return list(seen)


def _tree(id: str, models: Mapping[str, CommState], seen: set[str]) -> Iterator[Mapping[str, Any]]:
    if id in seen or id not in models:
        return
    seen.add(id)
    yield models[id].state
    for other in models[id].references():
        yield from _tree(other, models, seen)


def _text(id: str, models: Mapping[str, CommState], above: tuple[str, ...]) -> str:
    state = models[id].state
    name = str(state["_model_name"])
    if id in above or not str(state["_model_module"]).startswith("@jupyter-widgets/"):
        raise ValueError(name)
    if "children" in state:
        children = [c.removeprefix(REFERENCE) for c in state["children"]]
        between = " " if name in ACROSS else "\n"
        return between.join(_text(child, models, (*above, id)) for child in children)
    if "outputs" in state:
        return "\n".join(map(_output, state["outputs"]))
    return _bar(state) if "bar_style" in state else _control(name, state)


def _control(name: str, state: Mapping[str, Any]) -> str:
    """One without parts."""
    about = str(state.get("description") or "")
    if name in ("HTMLModel", "HTMLMathModel", "LabelModel"):
        value = unescape(re.sub(r"<[^>]*>", "", str(state["value"])))
        value = value.replace("\u2007", " ").replace("\xa0", " ").strip()  # of tqdm
        return f"{about} {value}" if about else value
    if name in ("ButtonModel", "ToggleButtonModel"):
        return f"[ {about} ]"
    if name == "CheckboxModel":
        return f"[{'x' if state['value'] else ' '}] {about}"
    if "_options_labels" in state:
        chosen = state["index"]
        chosen = [chosen] if isinstance(chosen, int) else chosen or []
        value = ", ".join(str(state["_options_labels"][at]) for at in chosen)
    elif "value" in state:
        value = str(state["value"])
    else:
        raise ValueError(name)
    return f"{about}: {value}" if about else value


def _bar(state: Mapping[str, Any]) -> str:
    low, high = float(state.get("min") or 0), float(state["max"])
    share = (float(state["value"]) - low) / (high - low) if high > low else 1.0
    done = round(min(1.0, max(0.0, share)) * BAR)
    about = f"{state['description']} " if state.get("description") else ""
    return f"{about}|{'█' * done}{' ' * (BAR - done)}|"


def _output(output: Mapping[str, Any]) -> str:
    """What an ``Output`` has: text; of a picture what it is called."""
    lines = output.get("traceback") or [(output.get("data") or {}).get("text/plain", "")]
    return ANSI.sub("", output.get("text") or "\n".join(lines)).rstrip("\n")
