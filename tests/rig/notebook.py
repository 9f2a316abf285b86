"""A notebook whose kernel runs on a host of a rig, driven from the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers import DEADLINE_S, Cell, Notebook, until
from jupyter_client import KernelManager

from rig.hosts import Host

SHOWN_S = 120.0  # a host may have to be lost first


class HostNotebook(Notebook):
    """A real kernel on ``host``, from ``directory`` there (the home); see helpers.Notebook.

    It is reached through Unix sockets in the rig's shared folder, since no network leads there.
    ``inside`` is a command that starts it: salloc, mpiexec.
    """

    def __init__(
        self,
        host: Host,
        directory: str = "",
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.host, self.inside = host, inside
        super().__init__(Path(directory or host.home), env)

    def start_kernel(self, directory: Path, variables: dict[str, str]) -> KernelManager:
        place = self.host.rig.shared / f"k{self.mark[:8]}"
        manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=str(place),
            connection_file=f"{place}.json",
        )
        assert manager.kernel_spec is not None
        kernel = (self.host.python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
        command = (*self.inside, *kernel)
        manager.kernel_spec.argv = self.host.argv(*command, env=variables, cwd=directory)
        manager.kernel_spec.interrupt_mode = "message"  # a signal would end what carries it
        manager.start_kernel()
        return manager

    def shown(self, source: str) -> Cell:
        """Run a cell to its end. If the test fails, pytest shows what came of it."""
        cell = self.run(source, SHOWN_S)
        print(f"{source}\n-->{cell.text}")
        return cell

    def close(self) -> None:
        """As everywhere; what has started the kernel has time to end by itself, and clean up."""
        if self.inside and not self.closed:
            process = self.manager.provisioner.process  # type: ignore[union-attr]
            self.client.shutdown()
            until(lambda: process.poll() is not None, f"end of {self.inside[0]}", DEADLINE_S)
        super().close()

    def kill(self) -> None:
        """kill -9 of the notebook's process."""
        process = self.manager.provisioner.process  # type: ignore[union-attr]
        process.kill()
        process.wait()
