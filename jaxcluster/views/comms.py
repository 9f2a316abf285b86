"""The notebook's side of widgets that were made on a rank (see ``jaxcluster.engine.comms``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import comm

from jaxcluster.wire.link import Event, Sink

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster


class CommRelay:
    """Gives each rank-side comm one of the same id with the notebook's frontend."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._comms: dict[str, Any] = {}

    def handle(self, event: Event) -> None:
        """Pass on what a rank sends. On the link's thread."""
        body, buffers = event.body, [bytes(b) for b in event.buffers]
        id, kind = body["comm_id"], body["kind"]
        if kind == "comm_open":
            opened = comm.create_comm(
                target_name=body["target_name"],
                target_module=body.get("target_module"),
                data=body["data"],
                metadata=body["metadata"],
                buffers=buffers,
                comm_id=id,
            )
            opened.on_msg(lambda message: self._send_back("comm_msg", event.rank, id, message))
            opened.on_close(lambda message: self._send_back("comm_close", event.rank, id, message))
            self._comms[id] = opened
        elif id in self._comms and kind == "comm_msg":
            self._comms[id].send(body["data"], body["metadata"], buffers)
        elif id in self._comms:
            self._comms.pop(id).close(body["data"], body["metadata"], buffers)

    def _send_back(self, kind: str, rank: int, id: str, message: dict[str, Any]) -> None:
        if self.cluster.closed:
            return
        body = {
            "kind": kind,
            "comm_id": id,
            "data": message["content"].get("data", {}),
            "metadata": message.get("metadata", {}),
        }
        buffers = [bytes(b) for b in message.get("buffers") or ()]
        self.cluster.link.request(rank, "comm", body, buffers, sink=Sink())
