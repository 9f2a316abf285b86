"""A Jupyter server and a page of it, in the words of a user."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from documents import document_of, write_document
from helpers import DEADLINE_S, Home
from pace import Deadline

T = TypeVar("T")

START = "%load_ext jaxcluster\n%jaxcluster start -n 2"
SETUP = (
    "%%spmd\nimport jax, jax.numpy as jnp, numpy as np, os, time\n"
    "from jax.sharding import NamedSharding, PartitionSpec as P\n"
    "mesh = jax.make_mesh((jax.device_count(),), ('i',))\n"
    "x = jax.make_array_from_callback((8,), NamedSharding(mesh, P('i')),"
    " lambda i: np.arange(8.0)[i])\n"
    "rank = jax.process_index()"
)
# What a browser says that is not our fault.
HARMLESS = re.compile(
    r"favicon|WebSocket (connection|is already)|ERR_CONNECTION_REFUSED|net::ERR_ABORTED"
)


@dataclass
class Lab:
    """A running server."""

    url: str
    root: Path
    home: Home
    process: subprocess.Popen[bytes]
    log: Path

    def api(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=20) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def kernels_processes(self) -> dict[int, str]:
        """What runs in this home beside the server itself."""
        return {
            pid: line
            for pid, line in self.home.processes().items()
            if pid != self.process.pid and " -m jupyter" not in line and "jupyter-" not in line
        }


@dataclass
class LabPage:
    """A browser's page on it. ``index`` counts the current notebook's cells from 0."""

    page: Any
    lab: Lab
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(DEADLINE_S * 1000)
        self.page.on("pageerror", lambda error: self._note(f"page error: {error}"))
        self.page.on("console", lambda m: self._note(m.text) if m.type == "error" else None)

    def _note(self, text: str) -> None:
        if not HARMLESS.search(text):
            self.errors.append(text)

    # ------------------------------------------------------------------ notebooks

    def write(self, name: str, cells: Sequence[str]) -> None:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        write_document(document_of(*cells, kernelspec=kernel), self.lab.root / name)

    def open(self, name: str, *cells: str) -> LabPage:
        """Open a notebook with these cells, in a workspace of its own, and wait for its kernel."""
        if cells:
            self.write(name, cells)
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?reset")
        self.ready()
        return self

    def ready(self) -> None:
        self.until(
            f"(() => {{ const p = {CURRENT}; const k = p?.sessionContext?.session?.kernel;"
            " return !!k && p.sessionContext.isReady && k.connectionStatus === 'connected'"
            " && k.status === 'idle' && p.content.widgets.length > 0; })()",
            "the kernel is ready",
        )

    def run(self, index: int) -> None:
        """Run a cell without waiting for its end."""
        # Until its prompt is "*", a cell has the number of its last run.
        self.page.evaluate(
            f"i => {{ {CURRENT}.content.activeCellIndex = i;"
            f" const runs = (window.testRuns ??= new Map()), id = {cell(index)}.model.id;"
            " const run = window.jupyterapp.commands.execute('notebook:run-cell');"
            " runs.set(id, run); const over = () => runs.get(id) === run && runs.delete(id);"
            " run.then(over, over); }",
            index,
        )

    def finish(self, index: int, deadline_s: float = DEADLINE_S) -> str:
        """Wait until a cell has ended; its outputs as text."""
        self.until(
            f"!window.testRuns?.has({cell(index)}.model.id)"
            f" && /\\d/.test({cell(index)}.promptNode.textContent)"
            f" && !{cell(index)}.promptNode.textContent.includes('*')",
            f"end of cell {index}",
            deadline_s,
        )
        return self.output(index)

    def do(self, *indices: int) -> str:
        """Run cells one after the other; the last one's outputs as text."""
        text = ""
        for index in indices:
            self.run(index)
            text = self.finish(index)
        return text

    def output(self, index: int) -> str:
        return "".join(map(_text, self.outputs(index)))

    def outputs(self, index: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.page.evaluate(
            f"() => {cell(index)}.model.outputs.toJSON()"
        )
        return found

    def end_kernels(self) -> None:
        for kind in ("sessions", "kernels"):
            for one in self.lab.api(kind):
                # It may have gone meanwhile, or be about to restart.
                with contextlib.suppress(urllib.error.HTTPError):
                    self.lab.api(f"{kind}/{one['id']}", "DELETE")

    # ------------------------------------------------------------------ the page

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Execute one of Lab's commands, without waiting for it."""
        self.page.evaluate(
            "([n, a]) => { void window.jupyterapp.commands.execute(n, a ?? undefined); }",
            [name, arguments],
        )

    def until(self, expression: str, what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait for a JavaScript expression to be true."""
        end = time.monotonic() + deadline_s

        def look() -> bool:
            """The page itself looks for a second: a look from here costs three processes' time."""
            looks = max(1, min(25, int((end - time.monotonic()) / 0.04)))
            return bool(
                self.page.evaluate(
                    f"""async looks => {{
                        for (;;) {{
                            try {{ if ({expression}) return true; }} catch {{}}
                            if (--looks <= 0) return false;
                            await new Promise(done => setTimeout(done, 40));
                        }}
                    }}""",
                    looks,
                )
            )

        self.wait(look, what, deadline_s)

    def wait(self, condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
        """Wait for a condition of this side, while the page goes on."""
        deadline = Deadline(deadline_s)
        while not (found := condition()):
            if deadline.is_over:
                raise AssertionError(f"not within {deadline}: {what}")
            self.page.wait_for_timeout(50)
        return found

    def until_state(self, expression: str, what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait for the extension's state ``s`` to be so."""
        self.until(f"(s => {expression})(window.jaxcluster?.current?.state)", what, deadline_s)


# The notebook, also while a panel beside it has the focus.
CURRENT = "(window.jaxcluster?.currentPanel ?? window.jupyterapp.shell.currentWidget)"


def cell(index: int) -> str:
    return f"{CURRENT}.content.widgets[{index}]"


def _text(output: dict[str, Any]) -> str:
    match output["output_type"]:
        case "stream":
            text = output["text"]
            return "".join(text) if isinstance(text, list) else text
        case "error":
            return f"{output['ename']}: {output['evalue']}\n" + "\n".join(output["traceback"])
        case _:
            plain = output["data"].get("text/plain", "")
            return ("".join(plain) if isinstance(plain, list) else plain) + "\n"


# ------------------------------------------------------------------------------- what a rank asks


def asks(page: LabPage, index: int, part: str) -> Any:
    """A part of the prompt below a cell. One that was stopped stays there, as Lab leaves it."""
    cells = page.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")
    return cells.nth(index).locator(f".jp-Stdin-{part}")


def asked(page: LabPage, index: int, prompt: str, answer: str | None = None) -> None:
    """Wait for this prompt, and answer it."""
    # One that was answered goes a moment later, and has its answer until then.
    page.wait(
        lambda: (
            asks(page, index, "input").evaluate_all("all => all.map(one => one.value)") == [""]
            and [said.strip() for said in asks(page, index, "prompt").all_inner_texts()] == [prompt]
        ),
        f"the prompt {prompt!r}",
    )
    if answer is not None:
        asks(page, index, "input").fill(answer)
        asks(page, index, "input").press("Enter")
        page.wait(
            lambda: (
                f"{prompt} {answer}"
                in " ".join(page.page.locator(".jp-Notebook").inner_text().split())
            ),
            f"{answer!r} stands behind its prompt",
        )
