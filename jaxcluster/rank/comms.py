"""Comms that a rank opens: their messages go by the control channel, both ways.

A comm belongs to the cell that opened it. The notebook opens a comm of the same id with its page
for each rank whose output is shown.

A user's action on a widget comes back as a cell (``CellRequest.message``). So it has its turn
among the cells, can be interrupted, and its launches are agreed on. It goes to all ranks that ran
the widget's cell. Each rank does it to its twin of the comm. The rank opened this twin at the same
place of the same cell, after as many others there. So a widget has one value on all ranks. A rank
without a twin does nothing.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comm
from ipykernel.comm.comm import BaseComm

from jaxcluster import wire
from jaxcluster.model.outputs import CLEARS, Said, fold
from jaxcluster.rank import interrupts
from jaxcluster.rank.control import Request

if TYPE_CHECKING:
    from jaxcluster.rank.cells import CellRunner

OUTPUT = "OutputModel"
LATEST_S = 0.1  # that an Output's output waits to be shown, while more comes
KEPT_CHARS = 1_000_000  # of printed text: all of it is sent each time
OVERWRITTEN = re.compile(r"(?m)^.*\r(?=[^\r\n])")  # what carriage returns have hidden


class Opened:
    """The facts of a comm, which has them as an attribute.

    In a plain notebook the page fills an ``ipywidgets.Output`` with what the kernel sends while
    code is inside of ``with output:``. The page gets a rank's output under another cell's name, or
    not at all. So the rank gathers it here, and sets the widget's ``outputs``, on every rank.

    Attributes:
      home: the cell that it belongs to.
      twin: what it and the same comm on the other ranks are called.
      is_output: it is the comm of an ``Output``.
    """

    def __init__(
        self, comm: Any, home: Request[wire.CellRequest], twin: str, *, is_output: bool
    ) -> None:
        self.home, self.twin, self.is_output = home, twin, is_output
        self._comm = comm
        self._new: deque[Said] = deque()
        self._is_due = False
        self._showing = threading.RLock()  # held while the user's code may run

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """There is more output: it is shown in a moment."""
        self._new.append((kind, content))
        if not self._is_due:
            self._is_due = True
            timer = threading.Timer(LATEST_S, self.show)
            timer.name, timer.daemon = "jaxcluster-output", True
            timer.start()

    def show(self) -> None:
        """Show the output so far: at the end, or on a thread while more may come."""
        with self._showing:
            self._is_due = False
            new = [self._new.popleft() for _ in range(len(self._new))]
            widget = getattr(getattr(self._comm, "_msg_callback", None), "__self__", None)
            if new and widget is not None:
                before = [(one["output_type"], one) for one in widget.outputs]
                after = fold(before, new)
                if after[-1:] == [CLEARS]:
                    self._new.appendleft(CLEARS)  # it waits for the next output
                widget.outputs = tuple(_nbformat(*said) for said in after if said != CLEARS)


def _nbformat(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """An output as a notebook keeps it: a widget's view has no Out[n]."""
    if kind == "stream":
        text = OVERWRITTEN.sub("", content["text"])[-KEPT_CHARS:]
        return {"output_type": kind, "name": content["name"], "text": text}
    kind = "display_data" if kind == "execute_result" else kind
    return content | {"output_type": kind}


class Comms:
    """Those of one rank.

    Attributes:
      taking: each ``Output`` that takes output now, with its thread; the innermost is last.
    """

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self._twins: dict[str, Any] = {}
        self._num_opened: Counter[str] = Counter()  # by cell, place and model
        self.taking: list[tuple[int, Opened]] = []

    def attach(self, is_client: Callable[[], bool]) -> None:
        """Have every comm of this process ask here, whichever class its library makes it by.

        Args:
          is_client: whether a plain ipyparallel client's code runs now: its comms are not ours.
        """
        publish: Any = BaseComm.publish_msg
        kernel = self._runner.shell.kernel

        def publish_msg(
            this: Any,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            if getattr(this, "kernel", kernel) is None:  # as ipykernel's does; ipywidgets looks
                this.kernel = kernel
            state = data.get("state") if isinstance(data, dict) else None
            state = state if isinstance(state, dict) else {}
            if msg_type == "comm_open" and self._runner.home is not None and not is_client():
                self._open(this, state.get("_model_name"), self._runner.home)
            opened: Opened | None = getattr(this, "opened", None)
            if opened is None:
                publish(this, msg_type, data, metadata, buffers, **keys)
                return
            # That an Output takes messages is not for the page.
            if not (opened.is_output and set(state) == {"msg_id"}):
                told = {"data": data or {}, "metadata": metadata or {}, **keys}
                self._push(opened, msg_type, this.comm_id, told, buffers or ())
            if msg_type == "comm_close":
                self._twins.pop(opened.twin, None)
                state = {"msg_id": ""}
            if opened.is_output and msg_type != "comm_open" and "msg_id" in state:
                self._take(opened, begins=bool(state["msg_id"]))

        BaseComm.publish_msg = publish_msg  # type: ignore[method-assign,assignment]
        # An Output asks whose messages it is to take. Here it takes the output of its thread. But
        # it needs a name, or it takes nothing.
        get_parent, name = kernel.get_parent, {"header": {"msg_id": "jaxcluster"}}
        kernel.get_parent = lambda channel=None: get_parent(channel) or name

    # ------------------------------------------------------------------ to the notebook

    def _open(self, this: Any, model: Any, home: Request[wire.CellRequest]) -> None:
        """Take in a new comm."""
        what = f"{home.body.seq} {this.target_name} {model} {self._runner.agreement.place()}"
        self._num_opened[what] += 1
        twin = f"{what} {self._num_opened[what]}"
        self._twins[twin] = this
        this.opened = Opened(this, home, twin, is_output=model == OUTPUT)

    def _push(self, opened: Opened, kind: str, id: str, told: Any, buffers: Any) -> None:
        """Send it to the notebook of its cell, if that is shown, under the last cell."""
        home, rank = opened.home, self._runner.rank
        if rank in home.body.shown_ranks:
            parent = (self._runner.home or home).body.parent
            number, ranks = home.body.execution_count, home.body.ranks
            push = wire.CommPush(rank, kind, id, opened.twin, parent, number, ranks, **told)
            frames = [memoryview(buffer).tobytes() for buffer in buffers]
            self._runner.control.post(home.ident, wire.encode("push", "", push), frames)

    def is_shown(self, id: str) -> bool:
        """Whether the page has this comm: that of a cell that is shown."""
        found = comm.get_comm_manager().comms.get(id)
        opened: Opened | None = getattr(found, "opened", None)
        return opened is not None and self._runner.rank in opened.home.body.shown_ranks

    # ------------------------------------------------------------------ from the notebook

    def deliver(self, request: Request[wire.CellRequest], message: wire.CommMessage) -> None:
        """Do what a user did to a widget to this rank's own. On the main thread, in its turn."""
        found = self._twins.get(message.twin)
        if found is None:
            return
        told = {
            "header": {"msg_id": ""},
            "metadata": message.metadata,
            "content": {"comm_id": found.comm_id, "data": message.data},
            "buffers": list(request.buffers),
        }
        self._runner.home = found.opened.home
        if message.kind == "comm_close":
            comm.get_comm_manager().comm_close(None, "", told)  # type: ignore[arg-type]
        else:
            found.handle_msg(told)

    # ------------------------------------------------------------------ ipywidgets' Output

    def _take(self, opened: Opened, begins: bool) -> None:
        """An ``Output`` begins to take output, or ends it."""
        if begins:
            self.taking.append((threading.get_ident(), opened))
        else:
            self.taking = [one for one in self.taking if one[1] is not opened]
            opened.show()

    def divert(self, kind: str, content: dict[str, Any]) -> bool:
        """Whether an ``Output`` takes this: the thread's innermost, or else the main thread's."""
        for thread in (threading.get_ident(), self._runner.main_thread_id):
            for at, opened in reversed(self.taking):
                if at == thread:
                    opened.add(kind, content)
                    return True
        return False


interrupts.RUNS.add(Comms.deliver.__code__)  # the user's code may be interrupted from there on
