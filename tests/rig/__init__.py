"""Hosts, sshd, Slurm and MPI for tests: real ones, on this machine, gone with the session."""

from rig.hosts import Host, Missing, Rig
from rig.leftovers import leaving_nothing
from rig.mpi import Mpi, find_mpi
from rig.notebook import HostNotebook
from rig.provided import provided
from rig.slurm import revive, start_slurm
from rig.ssh import start_ssh

__all__ = [
    "Host",
    "HostNotebook",
    "Missing",
    "Mpi",
    "Rig",
    "find_mpi",
    "leaving_nothing",
    "provided",
    "revive",
    "start_slurm",
    "start_ssh",
]
