"""The user's own modules on hosts that don't share his folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax

START = "%jaxcluster start --launcher ssh --hosts h1:2,h2:2"
HOSTS = ["h1", "h1", "h2", "h2"]


class Folder:
    """A folder of h0's with a notebook in it."""

    def __init__(self, rig: Rig, path: str, open_notebook: Callable[..., HostNotebook]) -> None:
        self.rig = rig
        self.path = path
        self.rig["h0"].path(path).mkdir(exist_ok=True)
        self._open = open_notebook
        self.notebook: HostNotebook

    def write(self, name: str, text: str) -> None:
        self.rig["h0"].write(f"{self.path}/{name}", text)

    def start(self, *options: str) -> str:
        self.notebook = self._open(directory=self.path)
        self.notebook.ok("%load_ext jaxcluster")
        return self.notebook.run(" ".join([START, *options])).text

    def each(self, source: str, expression: str) -> list[str]:
        """What an expression is on each rank after a cell."""
        cell = self.notebook.ok(f"%%spmd --all --out last\n{source}\nprint('=', {expression})")
        assert not cell.error, cell.text
        text = "[last.stdout(rank).split('= ')[-1].strip() for rank in range(4)]"
        return list(eval(self.notebook.ok(text).result))


@pytest.fixture
def folder(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> Iterator[Folder]:
    made = Folder(ssh, f"{ssh.home}/project", open_notebook)
    yield made
    made.rig["h0"].run("rm", "-r", made.path)


def test_modules_and_packages_beside_the_notebook(ssh: Rig, folder: Folder) -> None:
    folder.write("mine.py", "import socket\nvalue, host = 1, socket.gethostname()\n")
    folder.write("pkg/__init__.py", "from .sub import name\n")
    folder.write("pkg/sub.py", "import pathlib\nname = pathlib.Path(__file__).parent\n")
    folder.write("pkg/table.txt", "hello")
    folder.write("json.py", "raise RuntimeError('a module of the rank itself comes from here')\n")
    assert "ready" in folder.start()
    assert folder.each("import mine, pkg", "mine.host") == HOSTS
    assert folder.each("", "(pkg.name / 'table.txt').read_text()") == ["hello"] * 4
    # Changed files are sent before the next cell, whatever the times of the files are.
    for number in range(2, 5):
        folder.write("mine.py", f"value = {number}\n")
        assert (
            folder.each("import importlib; importlib.reload(mine)", "mine.value")
            == [str(number)] * 4
        )
    folder.write("new.py", "value = 'new'\n")
    assert folder.each("import new", "new.value") == ["new"] * 4
    # What is removed is gone there; so is a package, with what Python has compiled of it.
    folder.rig["h0"].run("rm", "-r", f"{folder.path}/pkg")
    cell = folder.notebook.run("%%spmd\nimport sys; del sys.modules['pkg']; import pkg")
    assert "No module named 'pkg'" in cell.text
    # Restarted ranks and new ones have it before they get their variables back.
    folder.write("kinds.py", "class Kind:\n    text = 'of the module'\n")
    folder.each("import kinds; kind = kinds.Kind()", "kind.text")
    folder.notebook.ok("%jaxcluster restart")
    assert folder.each("", "(kind.text, mine.value)") == ["('of the module', 4)"] * 4


def test_autoreload(ssh: Rig, folder: Folder) -> None:
    folder.write("mine.py", "def f():\n    return 1\n")
    folder.start()
    folder.notebook.ok("%%spmd\n%load_ext autoreload\n%autoreload 2")
    assert folder.each("import mine", "mine.f()") == ["1"] * 4
    for number in (2, 3, 2):  # of one size, within a second, and back again
        folder.write("mine.py", f"def f():\n    return {number}\n")
        assert folder.each("", "mine.f()") == [str(number)] * 4


def test_a_folder_without_code_gets_some_later(ssh: Rig, folder: Folder) -> None:
    folder.start()
    folder.notebook.ok("%%writefile late.py\nvalue = 5")
    assert folder.each("import late", "late.value") == ["5"] * 4


def test_a_successors_host_gets_it_again(ssh: Rig, folder: Folder) -> None:
    folder.write("mine.py", "value = 3\n")
    folder.start()
    folder.each("import mine, sys; sys.path.insert(1, '/mine')", "mine.value")
    (pid,) = [
        pid
        for pid, line in ssh["h2"].processes().items()
        if "-m jaxcluster.agent" in line and "sh -c" not in line
    ]
    ssh["h2"].kill(pid)
    folder.notebook.run("%%spmd\npass")
    folder.write("mine.py", "value = 4\n")
    assert folder.each("import importlib, mine; importlib.reload(mine)", "mine.value") == ["4"] * 4
    found = folder.each("import os, sys", "(os.listdir(sys.path[0]), sys.path[1])")
    assert all("mine.py" in one and one.endswith("'/mine')") for one in found)


def test_a_pushed_objects_class_is_there(ssh: Rig, folder: Folder) -> None:
    folder.start()
    folder.write("kinds.py", "class Kind:\n    text = 'mine'\n")
    folder.notebook.ok("from kinds import Kind\nkind = Kind()\n%push kind")
    assert folder.each("", "kind.text") == ["mine"] * 4


def test_what_is_not_sent_is_said(ssh: Rig, folder: Folder) -> None:
    folder.write("mine.py", "value = 1\n")
    folder.write("lib/far.py", "value = 2\n")
    folder.write("lib/readme.txt", "hello")
    folder.start("--no-sync")
    cell = folder.notebook.run("%%spmd\nimport mine")
    assert f"The notebook has mine (in {folder.path}); hosts h1, h2 don't." in cell.text
    assert f"--sync {folder.path}" in cell.text
    assert "host h2 does not" in folder.notebook.run("%%spmd --ranks 2\nimport mine").text
    assert "The notebook" not in folder.notebook.run("%%spmd\nimport mine_too").text
    folder.notebook.ok("%jaxcluster stop")
    folder.notebook.ok(f"{START} --sync lib")
    assert folder.each("import far, os", "far.value") == ["2"] * 4
    assert (
        folder.each("", "open(os.path.dirname(far.__file__) + '/readme.txt').read()")
        == ["hello"] * 4
    )


def test_too_much_is_refused_before_anything_runs(ssh: Rig, folder: Folder) -> None:
    folder.write("pkg/__init__.py", "")
    folder.write("pkg/weights.bin", "x" * (33 << 20))
    text = folder.start()
    assert "hold more than 32 MiB (most of it in pkg)" in text
    assert "--no-sync" in text
    assert "Traceback" not in text
    folder.notebook.ok(f"{START} --no-sync")
    folder.notebook.ok("%%spmd\npass")


def test_a_shared_folder_is_used_as_it_is(
    ssh: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    shared = Path(ssh.shared) / "project"
    made = Folder(ssh, str(shared), open_notebook)
    try:
        made.write("mine.py", "import os\nplace = os.path.dirname(__file__)\n")
        made.start()
        assert (
            made.each("import mine, os", "(mine.place, os.getcwd())")
            == [str((str(shared), str(shared)))] * 4
        )
        assert not list(shared.glob(".jaxcluster*"))
    finally:
        made.notebook.close()
        made.rig["h0"].run("rm", "-r", str(shared))
