"""Hosts, sshd, Slurm and MPI for tests: real ones, on this machine, gone with the session."""

from rig.hosts import Host, Missing, Rig
from rig.mpi import Mpi, find_mpi
from rig.notebook import HostNotebook
from rig.slurm import start_slurm
from rig.ssh import start_ssh

__all__ = ["Host", "HostNotebook", "Missing", "Mpi", "Rig", "find_mpi", "start_slurm", "start_ssh"]
