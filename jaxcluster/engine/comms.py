"""Widgets made on a rank, shown in the notebook: their comm messages go by the control channel.

ipywidgets opens a comm for each widget. Here such a comm sends to the notebook whose cell made it,
which has one of the same id with its frontend; what a user does to the widget comes back as a
``comm`` request. Only ranks whose output is shown relay; on others a widget is silent.
"""

from __future__ import annotations

from typing import Any

import comm
from comm.base_comm import BaseComm

from jaxcluster import wire
from jaxcluster.engine.cells import CellRunner
from jaxcluster.engine.control import Request


def relay_comms(runner: CellRunner) -> None:
    """Have every comm that is opened from now on send through the control channel."""

    class RelayedComm(BaseComm):
        """A comm whose other end is with the notebook that ran the cell in which it was opened."""

        home: Request | None = None

        def publish_msg(
            self,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            if msg_type == "comm_open" and (running := runner.current) is not None:
                self.home = running.request if running.shown else None
            if self.home is None:
                return
            body = {
                "kind": msg_type,
                "rank": runner.rank,
                "comm_id": self.comm_id,
                "data": data or {},
                "metadata": metadata or {},
                **keys,
            }
            frames = [memoryview(b).cast("B") for b in buffers or ()]
            runner.control.post(self.home.ident, wire.encode("push", "", body), frames)

    comm.create_comm = RelayedComm


def on_comm(request: Request) -> None:
    """``comm``: what the frontend sends to a widget. On the main thread."""
    body = request.body
    manager = comm.get_comm_manager()
    known = manager.get_comm(body["comm_id"])
    if known is None:
        return
    message = {
        "content": {"comm_id": body["comm_id"], "data": body["data"]},
        "metadata": body["metadata"],
        "buffers": list(request.buffers),
    }
    if body["kind"] == "comm_close":
        manager.unregister_comm(known)
        known.handle_close(message)
    else:
        known.handle_msg(message)
