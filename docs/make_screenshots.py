"""Makes the images of the README and the docs in a real JupyterLab with real clusters.

    pip install playwright
    python docs/make_screenshots.py                  all of them, into docs/images
    python docs/make_screenshots.py shards           one of them
    python docs/make_screenshots.py lab              all of docs/lab.md
    python docs/make_screenshots.py plain divergence hang    the README's

It takes a Chromium, which is never downloaded: CHROMIUM names it, or one in PATH is taken.
JupyterLab, its kernels and their clusters write to a folder of their own, and end with this.
The shards' table shows this machine's hostname.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MARK = "JAXCLUSTER_RUNTIME_DIR"
WIDTH = 1000
DEADLINE_S = 240

START = "%load_ext jaxcluster\n%jaxcluster start -n 4 --devices-per-process 2"

SUM = """\
%%spmd
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ('i', 'j'))
x = jax.device_put(np.arange(32).reshape(4, 8), NamedSharding(mesh, P('i', 'j')))
print(jax.process_index(), float(jnp.sum(jnp.sin(x))))"""


SKIP = "if jax.process_index() != 1:\n    print(float(jnp.sum(x)))"

# The same processes without jaxcluster: ipyparallel's engines, and JAX as its guide sets it up.
ENGINES = """\
import socket
import ipyparallel as ipp
client = ipp.Cluster(n=4).start_and_connect_sync()
client[:].scatter('rank', range(4), flatten=True)
with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    client[:]['address'] = f'127.0.0.1:{probe.getsockname()[1]}'"""

INITIALIZE = """\
%%px
import jax
jax.config.update('jax_num_cpu_devices', 2)
jax.distributed.initialize(address, 4, rank)"""


@dataclass(frozen=True)
class Shot:
    """An image of the last cells of a notebook.

    Attributes:
      cells: the sources of all its cells.
      shown: how many of them, from the end, are in the image.
      width: of the window, in pixels.
      fails: whether one of them is meant to raise.
      hangs_s: the last cell is not waited for; the image is made this much later, in seconds.
    """

    cells: Sequence[str]
    shown: int
    width: int = WIDTH
    fails: bool = False
    hangs_s: float = 0


SHOTS = {
    # Without the first cell: its output says how long the start took on a busy machine.
    "quickstart": Shot([START, SUM, "%%spmd --all\njax.local_devices()", "%pull x\nx.sum()"], 3),
    "divergence": Shot(
        [
            START,
            SUM.replace("jnp.sin(x)", "x"),  # compiles the sum: so all ranks wait in the next cell
            f"%%spmd\n{SKIP}",
            "%%spmd\nprint(float(jnp.sum(x)))",
        ],
        2,
        width=1150,
        fails=True,
    ),
    "plain": Shot(
        [ENGINES, INITIALIZE, SUM.replace("%%spmd", "%%px"), f"%%px\n{SKIP}"],
        1,
        width=1150,
        hangs_s=120,
    ),
    "shards": Shot([START, SUM, "%shards x"], 1),
}

# The notebook of the images of docs/lab.md.
SETUP = SUM.rpartition("\n")[0].replace("import jax,", "import jax, time,") + (
    "\nrank = jax.process_index()"
    "\nw = {'kernel': jax.device_put(np.ones((64, 64)), NamedSharding(mesh, P('i'))),"
    "\n     'bias': jax.device_put(np.zeros(64), NamedSharding(mesh, P()))}"
)
SLOW = """\
%%spmd
time.sleep(6 if rank == 2 else 0.2 + 0.1 * rank)
print(f'rank {rank} has {x.addressable_shards[0].data.sum()}')"""
EACH = """\
%%spmd --all
for step in range(3):
    print('step', step, 'loss', 4 - step + (rank == 3 and step == 1))"""
ASKS = """\
%%spmd
if rank == 1:
    here = 5
    breakpoint()
print(float(jnp.sum(x)))"""
LAB = [START, SETUP, SLOW, EACH, f"%%spmd\n{SKIP}", ASKS]
LAB_SIZE = {"width": 1500, "height": 860}

# One above the other, each below its words.
JOINED = {
    "hang": [
        (
            "plain",
            "Plain JAX on four processes: after two minutes the cell still waits, and nothing "
            "is printed.",
        ),
        (
            "divergence",
            "jaxcluster: an error names rank 1 and the line at once, and the next cell works.",
        ),
    ],
}


# ------------------------------------------------------------------------------------ JupyterLab


@contextlib.contextmanager
def jupyterlab() -> Iterator[tuple[str, Path]]:
    """A JupyterLab with nobody's settings: its address and its folder of notebooks."""
    # Sockets are made below it, so its path has to be short.
    home = Path(tempfile.mkdtemp(prefix="jc-shots-", dir="/tmp"))
    settings = home / "settings" / "@jupyterlab"
    for file, text in {
        "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
        "apputils-extension/themes": '{"theme": "JupyterLab Light"}',
        # Cells outside the window would have no height to measure.
        "notebook-extension/tracker": '{"windowingMode": "none"}',
    }.items():
        path = settings / f"{file}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    notebooks = home / "notebooks"
    notebooks.mkdir()
    extension = home / "data" / "labextensions" / "jaxcluster-labextension"
    shutil.copytree(ROOT / "jaxcluster" / "labextension", extension)
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
        MARK: "run",
    }
    environ = {**os.environ, **{name: str(home / folder) for name, folder in folders.items()}}
    environ |= {"HOME": str(home), "JAX_PLATFORMS": "cpu"}
    environ["JUPYTER_PREFER_ENV_PATH"] = "0"  # else an extension installed beside this Python wins
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    log = home / "lab.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"),
                *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"),
                *("--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"),
                *(f"--ServerApp.root_dir={notebooks}", "--LabApp.expose_app_in_browser=True"),
            ],
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_up(address, server, log)
        yield address, notebooks
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        _end_leftovers(str(home))
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_up(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text()}") from None
            time.sleep(0.1)


def _end_leftovers(home: str) -> None:
    """Wait for what carries our environment to end by itself, and kill what does not."""
    deadline = time.monotonic() + 10
    while left := [p for p in psutil.process_iter() if _carries(p, home)]:
        if time.monotonic() > deadline:
            for process in left:
                print(f"killed what was left: {process}", file=sys.stderr)
                process.kill()
            return
        time.sleep(0.1)


def _carries(process: psutil.Process, home: str) -> bool:
    try:
        running = process.status() != psutil.STATUS_ZOMBIE
        return running and process.environ().get(MARK, "").startswith(home)
    except psutil.Error:
        return False


# -------------------------------------------------------------------------------------- notebooks

READY = """() => {
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
  const kernel = context?.session?.kernel;
  return !!kernel && context.isReady && kernel.connectionStatus === 'connected'
    && kernel.status === 'idle';
}"""

# Not awaited: a command that runs cells resolves only when they have ended.
RUN = """(index) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = index;
  window.jupyterapp.commands.execute('notebook:run-cell');
}"""

# kernel.status says idle in the middle of a cell; the prompt does not.
ENDED = """(index) => {
  const cell = window.jupyterapp.shell.currentWidget.content.widgets[index];
  return cell.promptNode.textContent.match(/\\[\\d+\\]/) !== null;
}"""

OUTPUTS = """(index) =>
  window.jupyterapp.shell.currentWidget.content.widgets[index].model.outputs.toJSON()
"""

# No caret, no selected cell, no toolbar over a cell: what is left is the notebook.
TIDY = """
  .jp-Toolbar, .jp-cell-toolbar, .jp-Notebook-footer, .jp-Collapser { visibility: hidden; }
  .cm-cursor, .cm-cursorLayer { display: none !important; }
  .jp-Cell.jp-mod-active { box-shadow: none !important; }
  .jp-InputPrompt, .jp-OutputPrompt { opacity: 1 !important; }
  .jp-InputPrompt { color: var(--jp-cell-inprompt-font-color) !important; }
  .jp-OutputPrompt { color: var(--jp-cell-outprompt-font-color) !important; }
  .jp-Notebook, .jp-WindowedPanel-outer { overflow: visible !important; }
"""


def shoot(page: Page, address: str, folder: Path, name: str, shot: Shot) -> None:
    """Run a notebook cell by cell and save the image of its last ones."""
    page.set_viewport_size({"width": shot.width, "height": 1600})
    open_notebook(page, f"{address}/doc", folder, name, shot.cells)
    for index in range(len(shot.cells)):
        if shot.hangs_s and index == len(shot.cells) - 1:
            page.evaluate(RUN, index)
            page.wait_for_timeout(1000 * shot.hangs_s)
            if page.evaluate(ENDED, index):
                raise RuntimeError(f"{name}: the cell was meant to hang")
            break
        run(page, index)
        outputs = page.evaluate(OUTPUTS, index)
        if raised := [o for o in outputs if o["output_type"] == "error"]:
            if not shot.fails:
                raise RuntimeError("\n".join(raised[0]["traceback"]))
            print("\n".join(raised[0]["traceback"]))
    page.add_style_tag(content=TIDY)
    page.evaluate("() => document.activeElement?.blur()")
    page.wait_for_timeout(1000)  # for pictures that are drawn late
    cells = page.locator(".jp-NotebookPanel .jp-Cell")
    first = cells.nth(len(shot.cells) - shot.shown).bounding_box()
    last = cells.nth(len(shot.cells) - 1).bounding_box()
    assert first is not None and last is not None
    top = max(0.0, first["y"] - 4)
    clip = {
        "x": first["x"],
        "y": top,
        "width": first["width"],
        "height": last["y"] + last["height"] + 4 - top,
    }
    page.screenshot(path=IMAGES / f"{name}.png", clip=clip)
    print(f"docs/images/{name}.png: {clip['width']:.0f} x {clip['height']:.0f}")
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


def open_notebook(page: Page, address: str, folder: Path, name: str, cells: Sequence[str]) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}},
    )
    nbformat.write(notebook, folder / f"{name}.ipynb")
    page.goto(f"{address}/tree/{name}.ipynb?reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    page.wait_for_function(READY)


def shoot_lab(page: Page, address: str, folder: Path) -> None:
    """Use a notebook with the extension, and save what is on the page."""
    page.set_viewport_size(LAB_SIZE)
    open_notebook(page, f"{address}/lab", folder, "train", LAB)
    cells = page.locator(".jp-NotebookPanel .jp-Cell")

    def command(name: str, **args: str) -> None:
        page.evaluate("([n, a]) => { window.jupyterapp.commands.execute(n, a); }", [name, args])

    def save(name: str, part: Locator | None = None) -> None:
        page.wait_for_timeout(500)
        (part or page).screenshot(path=IMAGES / f"{name}.png")
        print(f"docs/images/{name}.png")

    command("filebrowser:hide-main")
    run(page, 0)
    run(page, 1)
    command("jaxcluster:show-clusters")
    page.evaluate(RUN, 2)
    page.locator(".jxl-badge[data-status=done]").nth(2).wait_for()  # three of four
    page.wait_for_timeout(1200)  # so that the time in the cell is not 0
    cells.nth(2).locator(".jxl-badge").nth(1).click()
    page.get_by_text("rank 1 has").wait_for()
    save("lab")
    cells.nth(2).get_by_role("button", name="Close").click()
    page.wait_for_function(ENDED, arg=2)

    run(page, 3)
    save("lab-all", cells.nth(3))

    command("jaxcluster:arrays")
    inspector = page.locator(".jxl-inspector")
    inspector.locator("tr[data-variable=x]").click()
    inspector.locator(".jxc-tile").nth(1).click()
    panel = page.locator(".jxl-details")
    save("lab-inspector", panel)
    run(page, 4)
    cells.nth(4).get_by_role("button", name="Report").click()
    page.locator(".jxl-report").wait_for()
    save("lab-report", panel)

    page.evaluate("() => [...window.jupyterapp.shell.widgets('down')].map(w => w.close())")
    page.evaluate(RUN, 5)
    asking = cells.nth(5).locator(".jp-Stdin-input")
    asking.fill("p here + 1")
    asking.press("Enter")
    cells.nth(5).get_by_text("p here + 1").wait_for()
    save("lab-asking", cells.nth(5))
    command("notebook:interrupt-kernel")
    page.wait_for_function(ENDED, arg=5)

    command("jaxcluster:start")
    save("lab-form", page.locator(".jp-Dialog-content"))
    page.keyboard.press("Escape")


def run(page: Page, index: int) -> None:
    page.evaluate(RUN, index)
    page.wait_for_function(ENDED, arg=index)
    page.wait_for_function(READY)


JOIN_STYLE = """
  body { margin: 0; background: white; font: 600 17px/1.3 system-ui, "DejaVu Sans", sans-serif; }
  p { margin: 0; padding: 14px 10px 8px; color: #111; }
  img { display: block; }
"""


def join(page: Page, name: str, parts: Sequence[tuple[str, str]]) -> None:
    """Save images that were made before as one, each with a line above it."""
    body = ""
    for part, words in parts:
        data = base64.b64encode((IMAGES / f"{part}.png").read_bytes()).decode()
        body += f"<p>{words}</p><img src='data:image/png;base64,{data}'>"
    page.set_content(f"<style>{JOIN_STYLE}</style><div style='width: max-content'>{body}</div>")
    page.evaluate("() => [...document.images].forEach(i => { i.width = i.naturalWidth / 2; })")
    page.locator("div").screenshot(path=IMAGES / f"{name}.png")
    print(f"docs/images/{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    every = [*SHOTS, *JOINED, "lab"]
    parser.add_argument(
        "names", nargs="*", choices=[*every, []], metavar="NAME", help="all by default"
    )
    names = parser.parse_args().names or every
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    IMAGES.mkdir(exist_ok=True)
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with jupyterlab() as (address, folder), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for name in names:
            scale = 1 if name == "lab" else 2
            page = browser.new_page(device_scale_factor=scale, color_scheme="light")
            page.set_default_timeout(DEADLINE_S * 1000)
            if name in JOINED:
                join(page, name, JOINED[name])
            elif name == "lab":
                shoot_lab(page, address, folder)
            else:
                shoot(page, address, folder, name, SHOTS[name])
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
