"""The folder of all clusters: it must be the user's alone, whatever is done to its path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jaxcluster.errors import JaxClusterError
from jaxcluster.hosts.records import registry, runtimefolder


@pytest.fixture(autouse=True)
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runtimefolder, "MAX_SOCKET_PATH", 1000)  # pytest's folders have long names
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(folder))
    return folder


def test_only_this_user_can_enter_the_folder(root: Path) -> None:
    root.chmod(0o755)
    assert registry.runtime_root() == root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_the_chosen_folder_comes_first(tmp_path: Path) -> None:
    environ = {"JAXCLUSTER_RUNTIME_DIR": str(tmp_path / "mine"), "XDG_RUNTIME_DIR": "/nowhere"}
    assert registry.runtime_root(environ) == tmp_path / "mine"
    made = registry.runtime_root({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert made == tmp_path / "jaxcluster"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_path_too_long_for_sockets_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimefolder, "MAX_SOCKET_PATH", 100)
    assert registry.runtime_root({"JAXCLUSTER_RUNTIME_DIR": "/tmp/" + "long" * 20}) == Path(
        f"/tmp/jaxcluster-{os.getuid()}"
    )


def test_another_users_folder_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(JaxClusterError) as caught:
        registry.runtime_root()
    assert str(caught.value) == (
        f"{root} belongs to another user.\n"
        "Set JAXCLUSTER_RUNTIME_DIR to a folder of your own with a short path."
    )


def test_a_link_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a folder of the user's own: the link may be somebody else's, and he may turn it."""
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(JaxClusterError) as caught:
        registry.runtime_root()
    assert f"It is a symbolic link (to {tmp_path}/mine)" in str(caught.value)
    assert "Set JAXCLUSTER_RUNTIME_DIR to a folder of your own" in caught.value.hint
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755  # not touched
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_link_put_in_its_place_later_is_refused_too(root: Path, tmp_path: Path) -> None:
    assert registry.runtime_root() == root
    root.rename(tmp_path / "moved")
    (tmp_path / "trap").mkdir()
    root.symlink_to(tmp_path / "trap")
    with pytest.raises(JaxClusterError, match="is a symbolic link"):
        registry.records()
    assert list((tmp_path / "trap").iterdir()) == []


def test_a_place_in_which_anybody_could_exchange_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(shared / "a" / "run"))
    with pytest.raises(JaxClusterError) as caught:
        registry.runtime_root()
    assert f"Every user can write to {shared}" in str(caught.value)
    assert f"chmod o-w {shared}" in caught.value.hint
    shared.chmod(0o1777)  # as /tmp: only an entry's owner can rename it
    assert registry.runtime_root() == shared / "a" / "run"


@pytest.mark.parametrize("path", ["/proc/nothing/run", "/dev/null/run", "/dev/null"])
def test_a_folder_that_can_not_be_used_says_why(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", path)
    with pytest.raises(JaxClusterError) as caught:
        registry.runtime_root()
    assert str(caught.value).startswith(f"{path}, the folder of your clusters, can't be used: ")
    assert "JAXCLUSTER_RUNTIME_DIR" in caught.value.hint
