"""Jupyter servers for the tests, with nobody's settings and, if wanted, with our extension."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers import Home, free_port, until
from labpage import Lab

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "jaxcluster" / "labextension"
SETTINGS = {
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
    "apputils-extension/themes": '{"theme": "JupyterLab Light"}',
}


@contextmanager
def serving(root: Path, application: str = "lab", extension: bool = True) -> Iterator[Lab]:
    """A Jupyter server with nobody's settings; ``extension``: with ours."""
    with Home.make() as home:
        server = _start(home, root, application, extension)
        yield server
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(20)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
        home.wait_until_empty(20)


def _start(home: Home, root: Path, application: str, extension: bool) -> Lab:
    (home.path / "jupyter").mkdir(exist_ok=True)
    for file, text in SETTINGS.items():
        path = home.path / "settings" / "@jupyterlab" / f"{file}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    data = home.path / ("data" if extension else "data-without")
    if extension:
        place = data / "labextensions" / "jaxcluster-labextension"
        shutil.copytree(BUILT, place, dirs_exist_ok=True)  # older servers refuse links
    else:
        # This Python may have it installed.
        page = home.path / "config" / "labconfig" / "page_config.json"
        page.parent.mkdir(parents=True)
        page.write_text('{"disabledExtensions": {"jaxcluster-labextension": true}}')
    environ = home.environ(
        HOME=str(home.path),
        JUPYTER_CONFIG_DIR=str(home.path / "config"),
        JUPYTER_DATA_DIR=str(data),
        JUPYTERLAB_SETTINGS_DIR=str(home.path / "settings"),
        JUPYTERLAB_WORKSPACES_DIR=str(home.path / "workspaces"),
        JAX_PLATFORMS="cpu",
        PYTHONUNBUFFERED="1",
        JUPYTER_PREFER_ENV_PATH="0",  # or what is installed beside this Python would come first
    )
    environ.pop("JUPYTER_PATH", None)
    port = free_port()
    log = home.path / f"{application}-{port}.log"
    command = [sys.executable, "-m", "jupyter", application, "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password="]
    command += ["--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={root}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    if application == "notebook":
        command += ["--JupyterNotebookApp.expose_app_in_browser=True"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Lab(f"http://127.0.0.1:{port}", root, home, process, log)

    def answers() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"jupyter {application} ended:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"{server.url}/api/status", timeout=1) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    until(answers, f"jupyter {application} answers")
    return server
