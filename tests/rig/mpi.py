"""Three MPIs that start a command on hosts of a rig, over its sshd."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rig.hosts import CHECKOUT, Missing

WHEEL = "python -m venv {prefix} && {prefix}/bin/pip install {package}"


@dataclass(frozen=True)
class Mpi:
    """One implementation.

    Attributes:
        mpiexec: the same path on all hosts.
        options: what root needs.
        hosts_option: how hosts are named, with the number of processes on each.
    """

    name: str
    mpiexec: Path
    options: tuple[str, ...] = ()

    def argv(self, hosts: Mapping[str, int], *command: str | Path) -> list[str]:
        """A command line for h0 that starts the command that often on each host."""
        places = ",".join(f"{host}:{count}" for host, count in hosts.items())
        option = "-hosts" if self.name == "mpich" else "--host"
        start = [str(self.mpiexec), *self.options, option, places, "-n", str(sum(hosts.values()))]
        return [*start, *map(str, command)]


def find_mpi(name: str) -> Mpi:
    """``openmpi4`` is Debian's; ``openmpi5`` and ``mpich`` are wheels, in .venv-rig-* here."""
    as_root = ("--allow-run-as-root",)
    if name == "openmpi4":
        if (path := shutil.which("mpiexec.openmpi")) is None:
            raise Missing("there is no mpiexec.openmpi: apt-get install openmpi-bin")
        return Mpi(name, Path(path), as_root)
    package = {"openmpi5": "openmpi", "mpich": "mpich"}[name]
    prefix = CHECKOUT / f".venv-rig-{package}"
    if not (prefix / "bin/mpiexec").exists():
        raise Missing(f"no {name} here: {WHEEL.format(prefix=prefix.name, package=package)}")
    return Mpi(name, prefix / "bin/mpiexec", as_root if name == "openmpi5" else ())
