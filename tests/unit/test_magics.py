"""What magics do on a rank: ``%%time`` keeps a cell's lines, and ``%pip`` runs once for a host."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster.rank import magics, tracebacks
from jaxcluster.rank.places import CELL_DIRECTORY

HERE = (
    "import sys\ndef here():\n  f = sys._getframe(1); at.append((f.f_code.co_filename, f.f_lineno))"
)
MAGICS = ["time", "timeit -n1 -r1", "capture out"]
running = [""]


@pytest.fixture(scope="module")
def shell(shell: InteractiveShell) -> InteractiveShell:
    digests: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    shell.compile.get_code_name = lambda raw, *_: f"{CELL_DIRECTORY}/7-{digests[raw]:012}.py"
    magics.install(shell, lambda: running[0])
    shell.run_cell(HERE)
    return shell


def places(shell: InteractiveShell, source: str) -> list[tuple[str, int]]:
    """Where a cell calls ``here``; the files without their numbers."""
    shell.user_ns["at"], running[0] = [], source
    shell.run_cell(source)
    return [(str(Path(file).parent), line) for file, line in shell.user_ns["at"]]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.usefixtures("capsys")
def test_each_line_of_a_body_is_a_cells_with_the_number_that_it_has_there(
    shell: InteractiveShell, magic: str
) -> None:
    assert places(shell, f"%%{magic}\nx = 1\n\nhere()\nif x:\n    here()\nhere()") == [
        (CELL_DIRECTORY, 4),
        (CELL_DIRECTORY, 6),
        (CELL_DIRECTORY, 7),
    ]
    assert places(shell, f"\n\n%%{magic}\n\n\nhere()") == [(CELL_DIRECTORY, 6)]
    assert places(shell, f"%%capture a\n%%{magic}\n\nhere()") == [(CELL_DIRECTORY, 4)]
    # It is not its own.
    assert places(shell, "%%capture a\n\n%time here()") != [(CELL_DIRECTORY, 3)]


@pytest.mark.parametrize("magic", MAGICS[:2])  # ``capture`` shows it, and goes on
@pytest.mark.usefixtures("capsys")
def test_an_error_has_the_cells_line(shell: InteractiveShell, magic: str) -> None:
    running[0] = f"%%{magic}\nx = 1\n1 / 0"
    error = shell.run_cell(running[0]).error_in_exec
    assert isinstance(error, ZeroDivisionError)
    assert tracebacks.line_of(error) == 3
    name = f"{CELL_DIRECTORY}/7-0123456789ab.py"
    assert shell.compile.format_code_name(name) == ("Cell", "In[7]")


# --------------------------------------------------------------------------- installs


class Shell:
    def __init__(self, ran: list[str], code: int = 0) -> None:
        self.ran, self.code = ran, code
        self.user_ns: dict[str, Any] = {}

    def system(self, command: str) -> None:
        self.ran.append(command)
        self.user_ns["_exit_code"] = self.code


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(magics.tempfile, "gettempdir", lambda: str(tmp_path))


def ranks(count: int, cell: str, code: int = 0) -> tuple[list[Shell], list[str]]:
    ran: list[str] = []
    shells = [Shell(ran, code) for _ in range(count)]
    for shell in shells:
        magics.run_once(shell, lambda: cell)
    return shells, ran


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python3 -m pip install flax",
        "pip install -U flax optax",
        "'/opt/python' -m pip install flax",
        "uv pip install flax",
        "conda install -y flax",
    ],
)
def test_in_each_cell_one_of_many_ranks_installs(command: str) -> None:
    for cell in ("cell 7", "cell 8"):
        shells, ran = ranks(4, cell)
        threads = [threading.Thread(target=shell.system, args=[command]) for shell in shells]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ran == [command]
        assert [shell.user_ns["_exit_code"] for shell in shells] == [0] * 4


def test_a_failed_install_is_an_error_on_all_ranks() -> None:
    shells, ran = ranks(2, "cell 7", code=1)
    for shell in shells:
        with pytest.raises(RuntimeError, match="failed with exit status 1: pip install nosuch"):
            shell.system("pip install nosuch")
    assert len(ran) == 1


@pytest.mark.parametrize("command", ["pip list", "ls", "echo pip", "python train.py install"])
def test_other_commands_run_on_each_rank(command: str) -> None:
    shells, ran = ranks(2, "cell 7", code=1)
    for shell in shells:
        shell.system(command)
    assert ran == [command] * 2
