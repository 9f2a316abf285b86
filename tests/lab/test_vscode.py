"""What VS Code makes of a notebook of ours: a real one (code-server) draws the saved outputs.

A check before a release, without the Jupyter extension: no kernel runs there. ``code-server`` is
taken from CODE_SERVER (what starts it) or PATH; else these skip.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers import Home, free_port, until

PROGRAM = os.environ.get("CODE_SERVER") or shutil.which("code-server") or ""
pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not PROGRAM,
        reason="there is no code-server: put it in PATH, or its command in CODE_SERVER "
        "(docs/internals/tests.md)",
    ),
]
DEADLINE_S = 90
SETTINGS = {
    "workbench.editorAssociations": {"*.ipynb": "jupyter-notebook"},
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Dark Modern",
    "security.workspace.trust.startupPrompt": "never",
    "telemetry.telemetryLevel": "off",
    "chat.disableAIFeatures": True,
}
CELLS = {
    "start": "%load_ext jaxcluster\n%jaxcluster start -n 2",
    "print": "%%spmd\nimport jax, jax.numpy as jnp, numpy as np\n"
    "from jax.sharding import NamedSharding, PartitionSpec as P\n"
    "x = jax.device_put(np.arange(8.0), NamedSharding(jax.make_mesh((2,), ('i',)), P('i')))\n"
    "print(jax.process_index(), float(jnp.sum(x)))",
    "all": "%%spmd --all\nprint('I am', jax.process_index())",
    "shards": "%shards x",
    "widget": "%shards x --widget",
    "figure": "%%spmd\nimport matplotlib.pyplot as plt\n"
    "if jax.process_index() == 0:\n    plt.figure(figsize=(2, 2))\n    plt.plot([1, 2])\n"
    "    plt.show()",
    "script": "%%spmd\nfrom IPython.display import HTML\n"
    'display(HTML(\'<b id=bold>written</b><script>document.getElementById("bold")'
    '.textContent = "by a script"</script>\'))',
    "skip": "%%spmd\nif jax.process_index() == 0:\n    y = jnp.sum(x)",
    "report": "%jaxcluster report",
    "error": "%%spmd\nraise ValueError('boom')",
    "status": "%jaxcluster status --live",
    "history": "%jaxcluster outputs --history",
    "stop": "%jaxcluster stop",
}
RUN = """
import sys, nbformat, nbclient
book = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(book, timeout=120, allow_errors=True).execute()
nbformat.write(book, sys.argv[1])
"""


@dataclass
class Shown:
    text: str
    html: str


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The notebook of ``CELLS``, run on real ranks and saved."""
    path = tmp_path_factory.mktemp("book") / "book.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with Home.make() as home:
        subprocess.run([sys.executable, "-c", RUN, path], env=home.environ(), check=True)
        home.wait_until_empty()
    yield path


@contextmanager
def code_server(book: Path, *options: str) -> Iterator[str]:
    """One in a home of its own, on loopback, that asks nobody for extensions; its page."""
    port = free_port()
    with Home.make() as home:
        folder = home.path / "work"
        folder.mkdir()
        shutil.copy(book, folder)
        user = home.path / "data" / "User"
        user.mkdir(parents=True)
        (user / "settings.json").write_text(json.dumps(SETTINGS))
        command = [
            *shlex.split(PROGRAM), "--auth=none", f"--bind-addr=127.0.0.1:{port}",
            f"--user-data-dir={user.parent}", f"--extensions-dir={home.path}/extensions",
            "--disable-telemetry", "--disable-update-check", *options,
        ]  # fmt: skip
        own = {name: str(home.path) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")}
        environ = home.environ(EXTENSIONS_GALLERY="{}", **own)
        log = home.path / "log"
        with open(log, "wb") as out:
            server = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
        try:
            until(lambda: server.poll() is not None or answers(port), "it answers", DEADLINE_S)
            assert server.poll() is None, log.read_text()
            file = f"vscode-remote://127.0.0.1:{port}{folder}/{book.name}"
            opened = urllib.parse.quote(json.dumps([["openFile", file]]))
            yield f"http://127.0.0.1:{port}/?folder={folder}&payload={opened}"
        finally:
            server.terminate()
            server.wait()
            home.wait_until_empty()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def draw(chromium: Any, url: str) -> dict[str, Shown]:
    """What there is below each cell, by its name. VS Code draws the cells from top to bottom."""
    context = chromium.new_context(viewport={"width": 1300, "height": 3000})
    page = context.new_page()
    page.goto(url)

    def outputs() -> Any:
        for frame in page.frames:
            if "fake.html" in frame.url and (found := frame.query_selector_all(".cell_container")):
                return found
        page.wait_for_timeout(200)
        return []

    until(lambda: len(outputs()) == len(CELLS), "all cells have outputs", DEADLINE_S)
    page.wait_for_timeout(1000)  # scripts, pictures
    found = sorted(outputs(), key=lambda one: float(one.evaluate("e => parseFloat(e.style.top)")))
    shown = {
        name: Shown(one.evaluate("e => e.innerText").strip(), one.inner_html())
        for name, one in zip(CELLS, found, strict=True)
    }
    context.close()
    return shown


# What needs no HTML, and what the HTML of each other output begins with.
PLAIN = {
    "start": "Cluster 'main': ranks 0, 1", "print": "0 28.0",
    "skip": "ended the cell without the launch",
    "error": "On all 2 ranks:", "stop": "Stopped ranks 0, 1",
}  # fmt: skip
RICH = {
    "all": "I am 1", "shards": "2 parts on 2 devices of 2 processes",
    "widget": "2 parts on 2 devices of 2 processes", "script": "by a script",
    "report": "all of their ranks agreed on",
    "status": "as of", "history": "this notebook",
}  # fmt: skip


def test_in_a_trusted_folder_all_is_drawn(chromium: Any, book: Path) -> None:
    """HTML before what only our extension of JupyterLab knows; a widget as its tables."""
    with code_server(book, "--disable-workspace-trust") as url:
        shown = draw(chromium, url)
    for name, text in (PLAIN | RICH).items():
        assert text in shown[name].text, (name, shown[name].text)
    assert "<details" in shown["all"].html and "bgcolor" in shown["widget"].html
    assert shown["shards"].html.count("<tr") == shown["widget"].html.count("<tr") == 5
    assert "<img" in shown["figure"].html
    for name, one in shown.items():  # what is ours needs no script, and says nothing of JSON
        assert name == "script" or "<script" not in one.html, name
        assert "vnd.jaxcluster" not in one.text and "ShardWidget" not in one.text, name
