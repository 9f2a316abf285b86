"""In the path of an agent: its fork server imports neither jax nor a kernel, and is there at once.

Its ranks have a process of a session of their own, and do nothing.
"""

import importlib.abc
import importlib.machinery
import subprocess
import sys
import time
import types

LEFT_OUT = ("IPython", "ipykernel", "ipyparallel", "jax", "zmq")
IDLE = ("jaxcluster.hosts.controller", "jaxcluster.rank.app")


class Nothing:
    """What stands for all that is in a module that is left out."""

    def __init__(self, *args: object, **options: object) -> None: ...

    def __getattr__(self, name: str) -> object:
        return Nothing

    def structured_traceback(self, *args: object) -> None: ...


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in LEFT_OUT or name in IDLE:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.VerboseTB = Nothing  # type: ignore[attr-defined]
        module.main = idle  # type: ignore[attr-defined]


def idle(**about: object) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True):
        time.sleep(1000)


if any("hosts.forkserver" in word for word in sys.orig_argv):
    sys.meta_path.insert(0, Finder())
