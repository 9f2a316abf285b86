"""What unit tests need: folders of their own, and IPython."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Home
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster.hosts.records.runtimefolder import runtime_root


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Folders of the test's own: it sees and changes no cluster of the user's."""
    with Home.make() as home:
        for name, value in home.variables.items():
            monkeypatch.setenv(name, value)
        yield home


@pytest.fixture
def root(home: Home) -> Path:
    """The folder of all clusters."""
    return runtime_root()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    """The shell that ``get_ipython()`` finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of another one than its own
        made = InteractiveShell.instance()
        made.history_manager.enabled = False
        yield made
        made.history_manager.end_session()
        atexit.unregister(made.atexit_operations)
        made.restore_sys_module_state()
        InteractiveShell.clear_instance()
