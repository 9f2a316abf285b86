"""How supervising processes are started, and other processes of jaxcluster's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Python reads these when it starts, or imports numpy or jax, so a fork server keeps them.
# If they differ, a new fork server is started.
IMPORT_TIME_PREFIXES = (
    "JAX_",
    "XLA_",
    "TF_CPP_",
    "NPY_",
    "NUMPY_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "OMP_",
    "KMP_",
    "MKL_",
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "LC_",
    "PYTHON",
)
# These alone: they stand where others can read them, and LANGCHAIN_API_KEY is not theirs.
IMPORT_TIME_NAMES = (
    "TPU_LIBRARY_PATH",
    "CUDA_ROOT",
    "LANG",
    "LANGUAGE",
)


def import_time_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a process can't take on after its imports."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(IMPORT_TIME_PREFIXES) or name in IMPORT_TIME_NAMES
    }


def findable(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """``env`` for a ``python -P -m jaxcluster...`` that runs in the folder ``cwd``.

    With -P no module is taken from the current folder, which may be another user's. A checkout of
    jaxcluster itself that is used from its own folder must then be named.

    PYTHONWARNINGS is left out where it makes errors of warnings: those of ipykernel would end every
    rank.
    """
    env = dict(env)
    if "error" in env.get("PYTHONWARNINGS", ""):
        del env["PYTHONWARNINGS"]
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if os.path.realpath(cwd) == os.path.realpath(ROOT) and ROOT not in paths:
        env["PYTHONPATH"] = os.pathsep.join([ROOT, *paths])
    return env


def begin_users_code(*folders: str) -> None:
    """From here on a user's code runs: it finds modules in these folders, before all others.

    Not before: what a rank itself imports must not come from there (a folder of several people, a
    file ``token.py``), so it is started with ``python -P``.
    """
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path[:] = [*folders, *(path for path in sys.path if path not in folders)]
