"""One rank: an ipyparallel engine whose id is its rank, with a control channel beside it.

The process comes up in this order, each step on the notebook's word: control channel (answers at
once), ``facts``, ``reserve`` and ``probe``, ``initialize`` (it is a JAX process now), ``serve`` (it
is an ipyparallel engine now and runs cells).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipykernel.iostream import OutStream
from ipyparallel.engine import app as ipyparallel_app
from ipyparallel.engine.app import IPEngine
from traitlets import default

from jaxcluster import wire
from jaxcluster.engine import (
    blackbox,
    bootstrap,
    guards,
    inspection,
    log,
    replay,
    scripts,
    state,
    strict,
    undo,
)
from jaxcluster.engine.background import is_own
from jaxcluster.engine.cells import CellRunner
from jaxcluster.engine.clientcode import ClientCode, RankKernel
from jaxcluster.engine.comms import Comms
from jaxcluster.engine.control import DEFERRED, ControlChannel, Request, StopJobs
from jaxcluster.engine.history import History
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.private import coordination
from jaxcluster.engine.repair import repair_modules
from jaxcluster.engine.resources import own_gpus, resources
from jaxcluster.engine.selfcheck import SelfCheck
from jaxcluster.engine.shards import ArrayViews
from jaxcluster.engine.state.restoring import Restoring
from jaxcluster.engine.values import Values
from jaxcluster.engine.variables import variables
from jaxcluster.host import limits
from jaxcluster.host.facts import engine_facts
from jaxcluster.host.processes import busy_s, share_files_in
from jaxcluster.host.reachability import connection_errors
from jaxcluster.supervision.processes import pid_space_mark, process_token
from jaxcluster.supervision.starting import WARNINGS
from jaxcluster.wire.ops import arrays, cells, lockstep, start, values
from jaxcluster.wire.ops import state as saving

CONNECTION_FILE_TIMEOUT_S = 60.0
WAYS_S = 5.0  # for other ranks' listeners to answer
ACTIONS = {"": "default", "a": "always", "d": "default", "e": "error", "i": "ignore"}
REGISTRATION_TIMEOUT_S = 60.0  # ipyparallel's 5 s are short on a busy machine


class PythonsText(OutStream):
    """What Python prints, on its way to ipyparallel's clients.

    ipykernel's own class puts a pipe in the place of file descriptors 1 and 2 (but not under
    pytest), and a Python thread empties it. What C code says before it aborts would be lost in
    there, and C code that keeps the GIL and prints more than a pipe holds would never go on.
    """

    def __init__(self, session: Any, pub_thread: Any, name: str) -> None:
        super().__init__(session, pub_thread, name, watchfd=False)  # type: ignore[no-untyped-call]


class JaxEngine(IPEngine):
    """ipyparallel's engine with a :class:`CellRunner` on its shell."""

    name = "jaxcluster-engine"
    enable_nanny = False
    out_stream_factory = PythonsText
    rank: Rank

    async def complete_registration(self, *args: Any, **kwargs: Any) -> None:
        await super().complete_registration(*args, **kwargs)
        self.rank.attach(self.kernel)

    @default("ident")
    def _name_the_process(self) -> str:
        """By it our controller finds the process that a client's signal is for.

        ipyparallel makes a part of Python names of it.
        """
        token = process_token(os.getpid()).replace(":", "-")
        return f"{self.session.session}-jaxcluster-{pid_space_mark()}-{token.rstrip('-?')}"

    def start(self) -> None:
        """Run the event loop, whatever is raised in it between cells: an alarm's handler raises in
        any code, and so does a thread that throws an error into this one (``stopit``).

        What ipyparallel's own does would end the rank, and take a TimeoutError for its own end.
        """
        is_over = False

        async def start() -> None:
            nonlocal is_over
            try:
                await self._start()
            finally:
                is_over = True

        run = functools.partial(self.loop.run_sync, start)
        while True:
            try:
                run()
                return
            except BaseException as error:
                if is_over or not self.rank.attached:
                    raise
                self.rank.runner.leftovers.on_error(error)
            run = self.loop.start

    def init_signal(self) -> None:
        """Leave SIGINT to the runner, and SIGTERM to the system: a rank has nothing to tidy up."""


class Rank:
    """The parts of one rank, and what it answers."""

    def __init__(
        self,
        rank: int,
        address: str,
        connection_file: str,
        log_path: str,
        host_address: str = "127.0.0.1",
        host: str = "",
        history: str = "",
        compiled: str = "",
    ) -> None:
        limits.hold_reserve()
        self.rank = rank
        self.compiled = compiled  # a folder
        self.connection_file = connection_file
        self.control = ControlChannel(address)
        self.journal = Journal()
        self.journal.keep_in(blackbox.path_of(log_path))
        self.history = History(Path(history) if history else None, rank)
        self.runner = CellRunner(rank, self.control, self.journal, log_path, self.history)
        self.values = Values(rank)
        self.values.last_result = lambda: self.runner.last_result
        self.values.kept = self.runner.undo.old_values
        self.facts = engine_facts(rank, host_address, host)
        self.restoring = Restoring()
        self.reservation: bootstrap.Reservation | None = None
        self.devices: list[str] = []
        self.gpus: list[str] = []  # as CUDA_VISIBLE_DEVICES has them
        self.attached = False
        self._serve_request: Request[start.Serve] | None = None
        handle = self.control.handle
        handle(start.Facts, "now", lambda request: self.facts)
        handle(start.Reserve, "side", self._reserve)
        handle(start.Probe, "side", spread(bootstrap.probe))
        handle(start.Reachability, "side", self._reachability)
        handle(wire.InitializeRequest, "main", self._initialize)
        handle(start.Serve, "main", self._serve)
        handle(wire.CellRequest, "now", self.runner.queue.on_cell)
        handle(cells.Interrupt, "now", spread(self.runner.interrupts.interrupt))
        handle(cells.Withdraw, "now", spread(self.runner.interrupts.withdraw))
        handle(cells.OpenGates, "now", spread(self.runner.gate.clear))
        handle(cells.Answer, "now", self.runner.asking.on_answer)
        handle(lockstep.State, "now", lambda request: self._state())
        handle(lockstep.AtRest, "now", lambda request: inspection.rest(self.runner))
        handle(lockstep.Poll, "now", self._poll)
        handle(lockstep.Times, "side", self._times)
        handle(lockstep.Resume, "now", spread(self.journal.restart))
        handle(
            lockstep.Strict, "main", spread(functools.partial(strict.switch, self.journal, rank))
        )
        check = SelfCheck(self.journal)
        handle(lockstep.PrepareCheck, "side", check.on_prepare)
        handle(lockstep.SelfCheck, "main", spread(check.check))
        handle(lockstep.Busy, "side", lambda request: busy_s())
        handle(
            cells.Complete, "side", lambda request: inspection.complete(self.runner, request.body)
        )
        handle(cells.Inspect, "side", lambda request: inspection.inspect(self.runner, request.body))
        handle(values.Describe, "now", self._describe)
        handle(values.Fill, "side", self.values.fill)
        handle(values.Fetch, "side", self.values.fetch)
        handle(values.Pack, "side", self.values.pack)
        handle(values.Forget, "now", self.values.forget)
        handle(values.Sample, "side", self.values.sample)
        handle(values.Assign, "main", self.runner.in_turn(self.values.assign))
        handle(values.AssignBind, "main", self.runner.in_turn(self._assign_bind))
        handle(values.Spanning, "side", self.values.spanning_names)
        self.comms: Comms | None = None
        handle(cells.Reveal, "side", self._reveal)
        handle(values.Unbind, "main", self._unbind)
        views = ArrayViews(self.values)
        handle(arrays.Arrays, "side", views.report)
        handle(arrays.CheckShards, "side", views.check)
        handle(arrays.Peek, "side", views.peek)
        handle(arrays.Meshes, "side", views.meshes)
        handle(arrays.Memory, "side", views.memory)
        handle(lockstep.Resources, "side", lambda request: resources(self.rank, self.gpus))
        handle(arrays.Variables, "side", lambda request: variables(dict(self.values.namespace)))
        handle(lockstep.Courses, "side", lambda request: replay.on_courses(self.journal, request))
        handle(lockstep.Export, "side", lambda request: replay.on_export(self.journal, request))
        handle(lockstep.Replay, "main", lambda request: replay.on_replay(self.journal, request))
        handle(saving.Snapshot, "side", self._snapshot)
        handle(saving.HoldReplies, "now", self._hold_replies)
        handle(saving.RestoreLook, "main", self.runner.in_turn(self._restore_look))
        handle(saving.RestoreBind, "main", self.runner.in_turn(self._restore_bind))
        handle(saving.RestoreDrop, "now", spread(self.restoring.drop))
        handle(saving.UndoLook, "side", spread(self.runner.undo.look))
        handle(saving.UndoDrop, "side", spread(self.runner.undo.drop))
        handle(saving.Undo, "side", self._undo)
        handle(saving.UndoLimit, "side", spread(self.runner.undo.set_limit))

    @property
    def _process(self) -> inspection.Process:
        return inspection.Process(self.facts.hostname, self.devices, not self.attached)

    def _state(self) -> wire.RankState:
        return inspection.rank_state(self.runner, self._process)

    def _poll(self, request: Request[lockstep.Poll]) -> wire.PollReply:
        body = request.body
        return inspection.report(self.runner, self._process, body.names, body.launches)

    def _times(self, request: Request[lockstep.Times]) -> wire.LaunchTimes:
        count = request.body.launches
        kinds, made = self.journal.timed_tail(count) if count else ([], [])
        return wire.LaunchTimes(self.rank, int(1e6 * time.monotonic()), kinds, made)

    def _reveal(self, request: Request[cells.Reveal]) -> list[str]:
        return self.comms.reveal(request) if self.comms is not None else []

    def _describe(self, request: Request[values.Describe]) -> Any:
        after, rest = request.body.after, None
        if after is not None:
            rest = inspection.rest(self.runner)
            if not (self.attached and rest.is_free and rest.taken >= after):
                return values.Described([], [], rest=replace(rest, is_free=False))
        describe = self.runner.in_turn(functools.partial(self.values.describe_value, rest=rest))
        self.control.call_main(functools.partial(ControlChannel.answer, describe, request))
        return DEFERRED

    def _assign_bind(self, request: Request[values.AssignBind]) -> dict[str, str]:
        names = self.values.assign_bind(request)
        self.runner.undo.bound(names)
        self.runner.others.spoil(request.ident)
        return self.runner.names.values.note_all(names, self.values.namespace)

    def _snapshot(self, request: Request[saving.Snapshot]) -> saving.SaveReport:
        repair_modules()
        values, body = self.values, request.body
        before = self.runner.undo.before(body.cell)
        lost = values.lost.reasons
        settings = self.runner.settings
        saved = state.on_snapshot(values.namespace, self.rank, body, before, lost, settings)
        return replace(saved, sources=dict(self.runner.queue.sources))

    def _hold_replies(self, request: Request[saving.HoldReplies]) -> None:
        self.runner.others.hold(request.ident, request.body.is_on)

    def _unbind(self, request: Request[values.Unbind]) -> None:
        self.values.unbind(request)
        self.runner.others.spoil(request.ident)

    def _restore_look(self, request: Request[saving.RestoreLook]) -> saving.RestoreLooked:
        namespace, settings = self.values.namespace, self.runner.settings
        return self.restoring.look(namespace, self.rank, request.body, settings)

    def _restore_bind(self, request: Request[saving.RestoreBind]) -> saving.RestoreBound:
        namespace, values = self.values.namespace, self.runner.names.values
        self.runner.undo.forget("variables were restored since")
        values.is_spoiled = True  # of which the lost ones are gone
        done = self.restoring.bind(namespace, request.body, self.values.lost, self.runner.settings)
        self.runner.others.spoil(request.ident)
        return replace(done, values=values.note_all(done.restored, namespace))

    def _undo(self, request: Request[saving.Undo]) -> list[str]:
        body = request.body
        failed = self.runner.undo.undo(body.seq, undo.Leave(tuple(body.leave), tuple(body.lost)))
        self.values.lost.add(body.lost, self.values.namespace)
        self.runner.last_result = None
        self.runner.names.values.is_spoiled = True
        self.runner.others.spoil(request.ident, body.seq)
        return failed

    def _reserve(self, request: Request[start.Reserve]) -> start.Reserved:
        if self.reservation is not None:
            self.reservation.release()
        self.reservation = bootstrap.Reservation(request.body.address)
        return start.Reserved(
            self.reservation.port,
            self.reservation.probe_port,
            coordination.can_coordinate_elsewhere(),
        )

    def _reachability(self, request: Request[start.Reachability]) -> list[start.Unreachable]:
        found = connection_errors([(to.address, to.port) for to in request.body.to], WAYS_S)
        return [start.Unreachable(place, why) for place, why in enumerate(found) if why]

    def _initialize(self, request: Request[wire.InitializeRequest]) -> wire.InitializeReply:
        reply = bootstrap.initialize(request.body, self.journal, self.compiled)
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None
        self.devices = [f"{d.platform}:{d.id}" for d in reply.devices]
        self.gpus = own_gpus(reply.devices)
        return reply

    def _serve(self, request: Request[start.Serve]) -> Any:
        self._serve_request = request
        raise StopJobs

    def attach(self, kernel: Any) -> None:
        """The engine has registered and has a shell: from here on cells run."""
        find_modules_here()
        apply_warnings()
        self.values.namespace = kernel.shell.user_ns
        guards.guard(kernel.shell, self.runner.asking)
        scripts.run_again(kernel.shell)
        self.values.lost.install(kernel.shell)
        kernel.shell.events.register("pre_run_cell", lambda info: self.restoring.tidy())
        self.runner.attach(kernel.shell)
        client = ClientCode(self.runner)
        client.attach(kernel)
        self.comms = Comms(self.runner, client.is_running)
        self.comms.attach()
        self.attached = True
        if self._serve_request is not None:
            self._serve_request.reply(self._state())

    def run(self) -> None:
        is_own.set(True)  # and so of all that the engine begins on this thread
        self.control.start()
        self.history.start()
        self.control.run_jobs()
        deadline = time.monotonic() + CONNECTION_FILE_TIMEOUT_S
        while not os.path.exists(self.connection_file) and time.monotonic() < deadline:
            time.sleep(0.005)
        ipyparallel_app.Kernel = RankKernel
        app = JaxEngine.instance()
        app.rank = self
        app.work_dir = os.getcwd()  # else it goes to where the fork server was started
        argv = [f"--IPEngine.id={self.rank}", f"--IPEngine.url_file={self.connection_file}"]
        # WARNING and INFO of ipyparallel would fill the log that people read for their errors.
        sys.argv, sys.orig_argv = [""], [sys.executable]  # a script's own, not an engine's
        app.initialize([*argv, "--log-level=40", f"--IPEngine.timeout={REGISTRATION_TIMEOUT_S}"])
        app.start()


def spread(answer: Callable[..., Any]) -> Callable[[Request[Any]], Any]:
    """A handler that gives the request's fields to ``answer``, by its parameters' names."""
    return lambda request: answer(**vars(request.body))


def find_modules_here() -> None:
    """Let cells import what lies beside the notebook.

    Not before: what the rank itself imports must not come from there (a folder of several people,
    a file ``token.py``), so it is started with ``python -P``.
    """
    if not os.environ.get("PYTHONSAFEPATH"):
        here = ("", os.getcwd())
        sys.path[:] = [*here, *(path for path in sys.path if path not in here)]


def apply_warnings() -> None:
    """Treat warnings of cells as PYTHONWARNINGS says; those of all else stay warnings.

    An option that names a module (``error:::numpy``) holds for that module, as ever.
    """
    options = os.environ.pop(WARNINGS, None) or os.environ.get("PYTHONWARNINGS", "")
    if options:
        os.environ["PYTHONWARNINGS"] = options  # for what cells start
    for option in filter(None, options.split(",")):
        parts = [*map(str.strip, option.split(":")), "", "", "", ""]
        action, message, category, module, line = parts[:5]
        kind = getattr(builtins, category or "Warning", None)
        if not isinstance(kind, type) or not issubclass(kind, Warning):
            continue
        with contextlib.suppress(AssertionError, ValueError):
            warnings.filterwarnings(
                ACTIONS.get(action, action),  # type: ignore[arg-type]
                re.escape(message),
                kind,
                re.escape(module or "__main__") + r"\Z",
                int(line or 0),
            )


def main() -> None:
    """Run the rank that the environment variable JAXCLUSTER_ENGINE describes (JSON)."""
    log.keep()
    spec = json.loads(os.environ.pop("JAXCLUSTER_ENGINE"))
    share_files_in(os.path.splitext(spec["log_path"])[0])
    Rank(**spec).run()
