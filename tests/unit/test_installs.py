"""``%pip install`` in a cell runs once for all ranks of an environment."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.engine import magics


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
        "'/opt/my python' -m pip install flax".replace("my ", "my"),
        "uv pip install flax",
        "conda install -y flax",
    ],
)
def test_one_of_many_ranks_installs(command: str) -> None:
    shells, ran = ranks(4, "cell 7")
    threads = [threading.Thread(target=shell.system, args=[command]) for shell in shells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [command]
    assert [shell.user_ns["_exit_code"] for shell in shells] == [0] * 4


def test_each_cell_installs_again() -> None:
    first, ran = ranks(1, "cell 7")
    first[0].system("pip install flax")
    second, again = ranks(1, "cell 8")
    second[0].system("pip install flax")
    assert ran == again == ["pip install flax"]


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
