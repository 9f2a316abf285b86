"""Which files are brought to the hosts, what has changed, and what is said where that fails."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster.agent import requests
from jaxcluster.agent.folder import Folder
from jaxcluster.allocation import sync
from jaxcluster.allocation.fleet import Place
from jaxcluster.allocation.sync import Changes, Sync, batches, find_module, look, plan
from jaxcluster.engine.state import settings
from jaxcluster.errors import UsageError
from jaxcluster.launchers.factory import launcher_of
from jaxcluster.launchers.sync import SyncedFolder, synced_folder


def make(folder: Path, *names: str, text: str = "x = 1\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


# ------------------------------------------------------------------------------------------ look


def test_modules_and_packages_are_sent_and_nothing_else(tmp_path: Path) -> None:
    make(
        tmp_path,
        *("mine.py", "notes.txt", "work.ipynb", "data/big.npy", "with-dash/a.py", ".hidden.py"),
        *("pkg/__init__.py", "pkg/table.json", "pkg/sub/more.py", "pkg/sub/work.ipynb"),
        *("pkg/__pycache__/a.pyc", "pkg/.ipynb_checkpoints/a.py", "pkg/data/x.bin"),
        *("plain/tool.py", "plain/big.npy", "plain/deeper/a.py", "plain/docs/b.txt"),
        *(".git/hook.py", "env/pyvenv.cfg", "env/a.py", "conda/conda-meta/x", "conda/a.py"),
        *("node_modules/a.py", "projects/other/a.py"),
    )
    assert set(look(SyncedFolder(tmp_path))) == {
        *("mine.py", "pkg/__init__.py", "pkg/table.json", "pkg/sub/more.py", "pkg/data/x.bin"),
        *("plain/tool.py", "plain/deeper/a.py"),
    }
    found = look(SyncedFolder(tmp_path, whole=True))
    assert set(found) >= {"notes.txt", "data/big.npy", "with-dash/a.py"}
    assert not {p for p in found if "env/" in p or "/." in f"/{p}"}
    assert look(SyncedFolder(None)) == {}


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    make(tmp_path, "elsewhere/lib/__init__.py", "elsewhere/one.py", "here/own.py")
    here = tmp_path / "here"
    (here / "one.py").symlink_to("../elsewhere/one.py")
    (here / "lib").symlink_to("../elsewhere/lib")
    (here / "lib" / "round").symlink_to("../../here")
    (here / "broken.py").symlink_to("nowhere")
    os.mkfifo(here / "pipe.py")
    assert set(look(SyncedFolder(here))) == {"own.py", "one.py", "lib/__init__.py"}


def test_what_is_too_much_is_refused_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "pkg/__init__.py", "a.py")
    with open(tmp_path / "pkg" / "weights.bin", "wb") as file:
        file.truncate(sync.MOST_NBYTES)
    with pytest.raises(UsageError, match=r"hold more than 32 MiB.*most of it in pkg") as caught:
        look(SyncedFolder(tmp_path))
    assert "--sync FOLDER" in caught.value.hint and "--no-sync" in caught.value.hint
    (tmp_path / "pkg" / "weights.bin").unlink()
    monkeypatch.setattr(sync, "MOST_FILES", 10)
    make(tmp_path, *(f"many/m{n}.py" for n in range(20)))
    with pytest.raises(UsageError, match=r"are more than 10 files .*many"):
        look(SyncedFolder(tmp_path))


# ------------------------------------------------------------------------------------------ plan


def stamps(**files: int) -> dict[str, sync.Stamp]:
    return {name.replace("__", "/") + ".py": (number,) for name, number in files.items()}


@pytest.mark.parametrize(
    ("there", "here", "changes"),
    [
        ({}, {}, Changes((), ())),
        ({}, stamps(a=1, p__b=1), Changes(("a.py", "p/b.py"), ())),
        (stamps(a=1, b=1), stamps(a=1, b=2), Changes(("b.py",), ())),
        (stamps(a=1, b=1), stamps(a=1), Changes((), ("b.py",))),
        (stamps(p__a=1, p__b=1), stamps(p__a=1), Changes((), ("p/b.py",))),
        (stamps(p__q__a=1, p__q__b=1, p__c=1), stamps(p__c=1), Changes((), ("p/q",))),
        (stamps(p__q__a=1, p__c=1), {}, Changes((), ("p",))),
        (stamps(p__a=1), {"p": (1,)}, Changes(("p",), ("p",))),  # a file where a folder was
        ({"p": (1,)}, stamps(p__a=1), Changes(("p/a.py",), ("p",))),
    ],
)
def test_changes(
    there: Mapping[str, sync.Stamp], here: Mapping[str, sync.Stamp], changes: Changes
) -> None:
    assert plan(there, here) == changes


def test_batches_keep_the_order_and_the_limit() -> None:
    sizes = [("a", 3), ("b", 3), ("c", 5), ("d", 20), ("e", 1), ("f", 0)]
    assert list(batches(sizes, 8)) == [
        [("a", 3), ("b", 3)],
        [("c", 5)],
        [("d", 20)],
        [("e", 1), ("f", 0)],
    ]
    assert list(batches([])) == []


# ------------------------------------------------------------------------------------------ synced


def test_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert synced_folder({}) == SyncedFolder(tmp_path)
    assert synced_folder({"sync": "."}) == SyncedFolder(tmp_path, whole=True)
    assert synced_folder({"sync": ""}) == synced_folder({"no_sync": "yes"}) == SyncedFolder(None)
    with pytest.raises(UsageError, match="can't be used together"):
        synced_folder({"sync": ".", "no_sync": "yes"})
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path}/nowhere") as caught:
        launcher_of("ssh", {"hosts": "h1", "sync": "nowhere"})
    assert "--sync ." in caught.value.hint
    launcher_of("ssh", {"hosts": "h1", "sync": ""})
    with pytest.raises(UsageError, match="--launcher local does not know --sync"):
        launcher_of("local", {"sync": "."})


# ------------------------------------------------------------------------------------------ sync


class Agent:
    """An agent's folder and its requests, without the connection."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.folder = Folder(path, path)
        self.asked: list[str] = []

    def ask(self, request: requests.Request[Any], timeout_s: float = 0, data: Any = b"") -> Any:
        self.asked.append(request.cmd)
        return requests.answer(self.folder, request, data)[0]

    def put(self, path: str, data: bytes, timeout_s: float) -> None:
        self.ask(requests.Put(path), data=data)

    def place(self) -> Place:
        path = str(self.folder.path)
        return cast(Place, SimpleNamespace(name="h1", lost="", agent=self, folder=path))

    def has(self) -> dict[str, str]:
        code = self.folder.path / "code"
        files = [path for path in code.rglob("*") if path.is_file()]
        return {str(path.relative_to(code)): path.read_text() for path in files}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    found = Agent(tmp_path / "agent")
    hides = requests.answer

    def answer(folder: Folder, request: requests.Request[Any], data: bytes) -> Any:
        if request.cmd == "shares":  # it is another host's
            return False, b""
        return hides(folder, request, data)

    monkeypatch.setattr(requests, "answer", answer)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def age(folder: Path) -> None:
    """Make its files old enough for their times to be believed."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100))


def test_a_copy_follows_the_folder(agent: Agent, folder: Path) -> None:
    make(folder, "a.py", "pkg/__init__.py", "pkg/b.py")
    make(folder, "large.py", text="#" * (sync.BATCH_NBYTES + 1))
    age(folder)
    syncing, places = Sync(SyncedFolder(folder)), [agent.place()]
    syncing.bring(places)
    assert set(agent.has()) == {"a.py", "large.py", "pkg/__init__.py", "pkg/b.py"}
    assert agent.has()["large.py"] == (folder / "large.py").read_text()
    agent.asked.clear()
    syncing.bring(places)
    assert agent.asked == []  # nothing has changed: nobody is asked
    (folder / "a.py").write_text("x = 2\n")
    (folder / "pkg" / "b.py").unlink()
    syncing.bring(places)
    assert agent.has()["a.py"] == "x = 2\n"
    assert "pkg/b.py" not in agent.has()
    (agent.folder.path / "code" / "pkg" / "__pycache__").mkdir()
    (folder / "pkg" / "__init__.py").unlink()
    syncing.bring(places)
    assert not (agent.folder.path / "code" / "pkg").exists()
    make(folder, "pkg/b.py")  # as it was before it went
    syncing.bring(places)
    assert "pkg/b.py" in agent.has()
    assert not list(folder.glob(".jaxcluster*"))


def test_each_version_of_a_file_is_a_second_newer_there(agent: Agent, folder: Path) -> None:
    syncing, places = Sync(SyncedFolder(folder)), [agent.place()]
    seen = []
    for number in range(4):  # of one size, and all within a second
        (folder / "a.py").write_text(f"x = {number}\n")
        syncing.bring(places)
        assert agent.has() == {"a.py": f"x = {number}\n"}
        seen.append(int((agent.folder.path / "code" / "a.py").stat().st_mtime))
    assert seen == sorted(set(seen))
    (folder / "a.py").touch()
    agent.asked.clear()
    syncing.bring(places)
    assert "write" not in agent.asked  # it was only touched
    age(folder)
    syncing.bring(places)
    agent.asked.clear()
    syncing.bring(places)
    assert agent.asked == []
    assert int((agent.folder.path / "code" / "a.py").stat().st_mtime) == seen[-1]


def test_a_young_file_is_looked_at_again(agent: Agent, folder: Path) -> None:
    """Its time may be the same after the next write, where the clock ticks slowly."""
    syncing, places = Sync(SyncedFolder(folder)), [agent.place()]
    path = folder / "a.py"
    path.write_text("x = 1\n")
    status = path.stat()
    syncing.bring(places)
    real = sync._stamp
    path.write_text("x = 2\n")
    try:
        sync._stamp = lambda _: real(status)
        syncing.bring(places)
    finally:
        sync._stamp = real
    assert agent.has() == {"a.py": "x = 2\n"}


def test_a_file_that_fails_on_its_way_is_sent_again(
    agent: Agent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, "a.py")
    age(folder)
    syncing, places = Sync(SyncedFolder(folder)), [agent.place()]
    with monkeypatch.context() as patched:
        patched.setattr(agent, "put", None)
        patched.setattr(sync, "BATCH_NBYTES", 1)
        with pytest.raises(TypeError):
            syncing.bring(places)
    assert agent.has() == {}
    syncing.bring(places)
    assert set(agent.has()) == {"a.py"}


def test_a_folder_that_is_gone_takes_nothing_along(agent: Agent, folder: Path) -> None:
    make(folder, "a.py")
    syncing, places = Sync(SyncedFolder(folder)), [agent.place()]
    syncing.bring(places)
    folder.rename(folder.with_name("away"))
    syncing.bring(places)
    assert set(agent.has()) == {"a.py"}


def test_a_saved_path_leads_to_the_modules_of_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", ["", "/usr/lib"])
    monkeypatch.setattr(settings, "_code", "")
    settings.use_code("/one/code")
    assert sys.path == ["/one/code", "", "/usr/lib"]
    sys.path.insert(1, "/mine")
    saved = settings._read_path()
    sys.path[:] = ["", "/usr/lib"]
    settings.use_code("/two/code")
    settings._write_path(saved)
    assert sys.path == ["/two/code", "/mine", "", "/usr/lib"]


def test_another_agent_gets_all_of_it(agent: Agent, folder: Path, tmp_path: Path) -> None:
    make(folder, "a.py")
    age(folder)
    syncing = Sync(SyncedFolder(folder))
    syncing.bring([agent.place()])
    other = Agent(tmp_path / "successor")
    syncing.bring([other.place()])
    assert set(other.has()) == {"a.py"}


def test_a_shared_folder_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    make(folder, "a.py")
    agent = Agent(tmp_path / "agent")
    syncing, place = Sync(SyncedFolder(folder)), agent.place()
    syncing.bring([place])
    assert agent.asked == ["shares"]
    assert agent.has() == {}
    assert syncing.path_on(place) == str(folder)
    syncing.bring([place])
    assert agent.asked == ["shares"]


def test_nothing_is_written_outside_the_agents_folder(agent: Agent) -> None:
    with pytest.raises(PermissionError):
        agent.ask(requests.Write("code", [("../../x", 1)]), data=b"x")
    agent.ask(requests.Write("code", [("x", 1)]), data=b"x")
    for name in ("../x", "/tmp/jaxcluster-test-x"):
        with pytest.raises(PermissionError):
            agent.ask(requests.Move("code/x", name))


# --------------------------------------------------------------------------------------- explain


def test_a_module_that_the_notebook_has_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, "lib/far.py", "space/inner/tool.py", "site-packages/wheel_of_mine/__init__.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(folder / "lib"))
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    place = Agent(tmp_path / "agent").place()

    def explained(module: str, synced: SyncedFolder | None = None) -> str:
        synced = synced or SyncedFolder(folder)
        return " ".join(Sync(synced).explain(f"No module named '{module}'", [place, place]))

    assert explained("far").startswith(f"The notebook has far (in {folder}/lib); host h1 does not.")
    assert f"--sync {folder}/lib" in explained("far")
    assert "pip install wheel_of_mine" in explained("wheel_of_mine")
    assert f"--sync {folder}" in explained("space.inner.tool", SyncedFolder(None))
    assert explained("space.inner.nowhere") == explained("nowhere") == ""
    assert find_module("os.path.x") is None
