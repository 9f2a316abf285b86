"""One rank: an ipyparallel engine whose id is its rank, with a control channel beside it.

The process starts in steps, each on the notebook's request. First comes the control channel, which
answers at once. ``facts`` comes next. Then ``initialize`` makes it a JAX process. ``serve`` makes
it an ipyparallel engine, which runs cells.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from ipykernel.iostream import OutStream
from ipyparallel.controller.heartmonitor import Heart
from ipyparallel.engine import app as ipyparallel_app
from ipyparallel.engine.app import IPEngine
from traitlets import default

from jaxcluster import wire
from jaxcluster.host.facts import engine_facts
from jaxcluster.host.processes import share_files_in
from jaxcluster.rank import inspection, log, magics
from jaxcluster.rank.bootstrap import become_jax_process
from jaxcluster.rank.cells import CellRunner
from jaxcluster.rank.clientcode import RankKernel
from jaxcluster.rank.control import ControlChannel, Request
from jaxcluster.rank.history import History
from jaxcluster.rank.inspection import Meter, own_gpus
from jaxcluster.rank.state.states import States
from jaxcluster.rank.values import Values
from jaxcluster.supervision.processes import pid_space_mark
from jaxcluster.supervision.starting import begin_users_code
from jaxcluster.wire import forks
from jaxcluster.wire.ops import arrays, cells, saving, start, status, values
from jaxcluster.wire.sockets import Context

REGISTRATION_TIMEOUT_S = 60.0  # ipyparallel's 5 s are short on a busy machine


class DualHeart(Heart):
    """ipyparallel's, which answers a controller at an IPv6 address too."""

    def start(self) -> Any:
        self.device.context_factory = Context
        return super().start()


class JaxEngine(IPEngine):
    """ipyparallel's engine with a :class:`CellRunner` on its shell."""

    name = "jaxcluster-engine"
    enable_nanny = False
    # Else ipykernel puts a pipe in the place of file descriptors 1 and 2, which a Python thread
    # empties. The last words of C code that aborts would be lost in there. C code that keeps the
    # GIL and fills the pipe would never go on.
    out_stream_factory = staticmethod(functools.partial(OutStream, watchfd=False))
    rank: Rank

    async def complete_registration(self, *args: Any, **kwargs: Any) -> None:
        await super().complete_registration(*args, **kwargs)
        self.rank.attach(self.kernel)

    @default("ident")
    def _name_the_process(self) -> str:
        """By it our controller knows when the process has ended."""
        return f"{self.session.session}-jaxcluster-{pid_space_mark()}-{os.getpid()}"

    def start(self) -> None:
        """Run the event loop, and go on after any error that is raised in it between cells.

        An alarm's handler raises in any code. So does a thread that throws an error into this one
        (``stopit``). ipyparallel's own loop would end the rank then.
        """
        run = functools.partial(self.loop.run_sync, self._start)
        while True:
            try:
                run()
                return
            except BaseException as error:
                if not self.rank.attached:
                    raise
                with contextlib.suppress(BaseException):  # the next alarm
                    log.error(error)
            run = self.loop.start

    def init_signal(self) -> None:
        """Leave SIGINT to the runner, and SIGTERM to the system: a rank has nothing to tidy up."""


class Rank:
    """The parts of one rank, and what it answers."""

    def __init__(self, rank: int, folder: str, host: str) -> None:
        self.rank, self.folder = rank, folder
        self.control = ControlChannel(forks.rank_socket(folder, rank))
        history = History(Path(folder, forks.HISTORY, f"rank-{rank}"))
        log_path = f"{folder}/{forks.RANKS}/rank-{rank}.log"
        self.runner = CellRunner(rank, self.control, log_path, history)
        self.values = Values(rank)
        self.values.last_result = lambda: self.runner.last_result
        self.runner.lost = self.values.lost
        self.facts = engine_facts(rank, host)
        self.meter = Meter()
        self.attached = False
        self.devices: list[wire.DeviceInfo] = []
        self._initialize = self.control.inbox(wire.InitializeRequest)
        self._serve = self.control.inbox(start.Serve)
        handle, in_turn = self.control.handle, self.runner.turns.in_turn
        handle(start.Facts, "now", lambda request: self.facts)
        handle(wire.CellRequest, "later", self.runner.on_cell)
        handle(cells.Interrupt, "now", self._interrupt)
        handle(cells.Answer, "now", self.runner.asking.on_answer)
        handle(status.Look, "later", self.runner.turns.look)
        handle(status.State, "now", lambda request: self._state())
        handle(status.Stacks, "side", lambda _: inspection.report(self.runner, self._state().state))
        handle(status.Resources, "side", self.meter.read)
        handle(cells.Help, "side", lambda request: inspection.help_with(self.runner, request.body))
        handle(values.Pull, "later", in_turn(self.values.pull))
        handle(values.Assign, "later", in_turn(self.values.assign))
        self.states = States(rank, self.values.lost)
        self.values.hold = self.states.hold
        handle(saving.Save, "side", self.states.save)
        handle(saving.Checkpoint, "later", in_turn(self.states.save))
        handle(saving.Load, "later", in_turn(self.states.load))
        handle(saving.Bind, "later", in_turn(self.states.bind))
        handle(saving.Drop, "now", self.states.drop)
        handle(arrays.Arrays, "side", self.values.report)
        handle(arrays.CheckShards, "side", self.values.check)
        handle(arrays.Read, "side", self.values.read)
        handle(arrays.Meshes, "side", self.values.meshes)
        handle(arrays.Memory, "side", self.values.memory)
        handle(arrays.Variables, "side", self.values.variables)

    def _state(self) -> wire.RankState:
        return inspection.rank_state(self.runner, not self.attached)

    def _interrupt(self, request: Request[cells.Interrupt]) -> bool:
        """Stop a cell on all its ranks, or (None) what runs; again, if it was stopped before."""
        seq, runner = request.body.seq, self.runner
        is_running = runner.current is not None and seq in (None, runner.current.cell.seq)
        if runner.turns.stop(seq):
            runner.interrupts.interrupt(seq)
        return is_running

    def attach(self, kernel: Any) -> None:
        """The engine has registered and has a shell: from here on cells run."""
        begin_users_code("", os.getcwd())
        self.values.namespace = kernel.shell.user_ns
        self.runner.asking.guard(kernel.shell)
        magics.run_once(kernel.shell, self._cell_name)
        self.states.attach(kernel.shell)
        self.runner.attach(kernel.shell)
        self.runner.comms.attach(kernel.is_running)
        self.attached = True
        self._serving.reply(self._state())

    def _cell_name(self) -> str:
        """The cell that runs, of all clusters."""
        running = self.runner.current
        return f"{self.folder} {running.cell.seq if running else 0}"

    def run(self) -> None:
        self.control.start()
        compiled = f"{self.folder}/{forks.COMPILED}"
        self.devices += become_jax_process(self._initialize, self.runner, print, compiled)
        self._serving = self._serve.get()
        self.meter.gpus = own_gpus(self.devices)
        file = Path(self.folder, forks.RANKS, f"rank-{self.rank}.json")
        file.touch(0o600)
        file.write_text(json.dumps(self._serving.body.engine))
        ipyparallel_app.Kernel, ipyparallel_app.Heart = RankKernel, DualHeart
        app = JaxEngine.instance(context=Context())
        app.rank = self
        app.work_dir = os.getcwd()  # else it goes to where the fork server was started
        argv = [f"--IPEngine.id={self.rank}", f"--IPEngine.url_file={file}"]
        # WARNING and INFO of ipyparallel would fill the log that people read for their errors.
        sys.argv, sys.orig_argv = [""], [sys.executable]  # a script's own, not an engine's
        app.initialize([*argv, "--log-level=40", f"--IPEngine.timeout={REGISTRATION_TIMEOUT_S}"])
        app.start()


def main(rank: int, folder: str, host: str = "") -> None:
    """Run a rank.

    Args:
      folder: its agent's.
      host: the name of its host, where that is not the notebook's.
    """
    log.keep()
    share_files_in(f"{folder}/{forks.RANKS}/rank-{rank}")
    Rank(rank, folder, host).run()
