"""What a cluster's ranks run on, and their processes, wherever they are.

There are two kinds: this machine (``local``), which is reached without a network, and hosts with an
agent on each (``remote``, ``processes``). ``factory`` makes them. Nothing above this room can tell.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from jaxcluster import wire
from jaxcluster.agreement.server import KEY
from jaxcluster.allocation import bulk
from jaxcluster.allocation.fleet import Left, Place
from jaxcluster.allocation.supervisor import ForkServers, OnEvent
from jaxcluster.errors import LaunchError
from jaxcluster.host.procfs import ProcessLook, Silence
from jaxcluster.host.ringfile import Part
from jaxcluster.records import claims, registry
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.records.saved_states import StateFolder
from jaxcluster.wire.forks import STOPPED, Kill, Stop
from jaxcluster.wire.link import Link

Say = Callable[[str], None]

REFEREE = "referee.sock"  # beside the ranks' own sockets, on each host


class Processes(ABC):
    """The processes of one generation of ranks.

    Args:
      spec: with what the hosts' devices have decided.
      supervisor: the fork servers whose children they are.
      folder: the cluster's, on this machine.
      record: that of a cluster that another process has started; None: this one starts it.
    """

    def __init__(
        self,
        spec: wire.ClusterSpec,
        supervisor: ForkServers,
        folder: Path,
        record: ClusterRecord | None = None,
    ) -> None:
        self.spec, self.supervisor, self.folder = spec, supervisor, folder
        self.is_ours = record is None
        self._may_quit = record is not None and not record.owner  # it ends with its ranks
        self._pids = record.pids if record is not None else []

    @abstractmethod
    def start(self) -> list[int]:
        """Start controller and ranks; returns the ranks' pids, each on its own host.

        Raises:
          LaunchError: a fork server did not start them in time.
        """

    @abstractmethod
    def connect(self) -> Link:
        """The way to the ranks."""

    def start_coordinator(self, address: str, relays: str = "", key: str = "") -> int:
        """Start the referee beside rank 0, with JAX's coordination service; returns its pid.

        Args:
          address: where JAX's service listens; "": it is rank 0's own.
          relays, key: where the referee hears other hosts, and what these have to know.

        Raises:
          LaunchError: the fork server did not start it in time.
        """
        words = [
            f"--num-processes={self.spec.num_processes}",
            f"--referee={self.socket_path(REFEREE)}",
            f"--heartbeat-timeout={self.spec.heartbeat_timeout_seconds}",
        ]
        words += [f"--address={address}"] if address else []
        words += [f"--relays={relays}"] if relays else []
        return self._spawn_coordinator(words, {KEY: key} if key else {})

    @abstractmethod
    def _spawn_coordinator(self, argv: Sequence[str], env: Mapping[str, str]) -> int: ...

    def referee_paths(self, address: str, port: int, key: str) -> dict[int, str]:
        """The referee's socket for each rank, on its own host.

        Args:
          address, port, key: of the referee, for relays on other hosts.

        Raises:
          LaunchError: a host could not reach it.
        """
        return dict.fromkeys(range(self.spec.num_processes), self.socket_path(REFEREE))

    @abstractmethod
    def no_way(self, to: int, address: str, port: int, deaf: Sequence[int]) -> LaunchError:
        """What is said where ranks (``deaf``) can't reach rank ``to``, which listens there."""

    def kill(self, rank: int) -> None:
        """End a rank's process, and return when it is reaped.

        Raises:
          LaunchError: its host is lost, or its fork server does not answer.
        """
        self.supervisor.command(Kill([self._pids[rank]]), 5.0)

    def stop(self, why: str = STOPPED) -> None:
        """End every process of the cluster; returns when all are reaped. Others are told why.

        What another process has started has fork servers of its own, which end with it.
        """
        with contextlib.suppress(LaunchError):
            self.supervisor.command(Stop(why), 10.0)
            if self._may_quit:
                self.supervisor.quit()
        if not self.is_ours:
            self.supervisor.close()

    def leave(self) -> None:
        """Let go of them; they run on."""
        if not self.is_ours:
            self.supervisor.close()
        elif self.spec.detach:
            self.supervisor.leave()

    @property
    @abstractmethod
    def addresses(self) -> Sequence[str]:
        """Each rank's own socket, on its host."""

    @property
    @abstractmethod
    def logs(self) -> list[str]:
        """Each rank's log, on its host."""

    @abstractmethod
    def socket_path(self, name: str) -> str:
        """Where a Unix socket of the cluster's may lie, on rank 0's host."""

    def memory(self, ranks: Iterable[int]) -> AbstractContextManager[bulk.Memory]:
        """A folder in the memory of these ranks' hosts, by which bytes go there and come here.

        Raises:
          NoRoom: they have no such folder, as where ranks share this machine's memory.
          LaunchError: a host does not answer.
        """
        raise bulk.NoRoom

    @property
    def places(self) -> Sequence[Place]:
        """The hosts that have an agent; the first one has rank 0."""
        return []

    @abstractmethod
    def look_at(self, ranks: Iterable[int]) -> dict[int, ProcessLook | None]:
        """What their hosts' kernels say of the processes of ranks, of those that answer."""

    def why_unseen(self, rank: int) -> Silence:
        """Why the process of a silent rank can't be looked at."""
        return Silence("unknown", "is not responding, and its host can't be asked why")

    @abstractmethod
    def read_log(self, name: str, nbytes: int | None = None) -> str:
        """A log, or its end: ``rank-0``, ``controller`` or ``coordinator``. "" if it is gone."""

    @abstractmethod
    def read_history(self, log: str, wanted: Mapping[int, int]) -> dict[int, Part]:
        """What ranks have written of their cells, also when they are busy, or dead.

        Args:
          log: ``cells`` or ``output``.
          wanted: by rank, from which position on.
        """

    @abstractmethod
    def state_folder(self) -> StateFolder:
        """A place for what the ranks save."""


class Allocation(ABC):
    """What ranks run on, for one cluster: its name, and hosts, which outlive its ranks.

    A restart starts new ranks on it, and nobody else gets the name or the hosts meanwhile.

    Args:
      claim: on the cluster's name.

    Attributes:
      spent: why no new processes can be started on it; "" while nobody knows better.
    """

    def __init__(self, claim: claims.Claim) -> None:
        self.claim, self.spent = claim, ""
        self.folder = registry.folder(claim.name)

    @property
    def is_held(self) -> bool:
        """Whether the name is this process's still."""
        return self.claim.is_held

    def take(self, claim: claims.Claim) -> None:
        """Go on under another claim, since the folder of the first one is gone."""
        self.claim.let_go()
        self.claim, self.folder = claim, registry.folder(claim.name)

    @abstractmethod
    def prepare(
        self,
        spec: wire.ClusterSpec,
        on_event: OnEvent,
        say: Say,
        timeout_s: float,
        stopped: threading.Event,
    ) -> Processes:
        """Have the hosts' fork servers come up, and lay out a generation of ranks.

        Args:
          on_event: told of each process that ends, and of each host that is lost.
          stopped: ends it when it is set, also while a job or a slice waits in a queue.

        Raises:
          LaunchError: an agent did not come up, the hosts' versions differ, or there are too few
            file descriptors for so many ranks.
        """

    @abstractmethod
    def detach(self) -> None:
        """Have its ranks, and what has started them, outlive this process.

        Raises:
          LaunchError: a fork server or an agent does not answer.
        """

    @property
    def left(self) -> Left:
        """What is left where some of its hosts are lost."""
        return Left()

    def leave_out_lost(self) -> None:
        """Go on without the hosts that are lost."""

    def check_returns(self) -> None:
        """Whether there can be new processes on all hosts: before the old ones are ended for them.

        Raises:
          LaunchError: a host is lost, and there is no way to another.
        """

    def keep(self) -> None:
        """Have it live on, before its ranks end for others to come."""

    def clear(self) -> None:
        """After the end of its ranks: what they have left goes, for the next ones."""
        if self.is_held:
            self.claim.empty()

    def rest(self) -> None:
        """Have no more than is needed where no ranks are to come for now; the name is kept."""

    @abstractmethod
    def let_go(self) -> None:
        """Take no part in it any more. Its ranks may run on, detached."""

    @abstractmethod
    def give_back(self) -> None:
        """Have no part in it any more, nor fork servers and agents for it."""

    @abstractmethod
    def end(self) -> None:
        """Give everything back."""
