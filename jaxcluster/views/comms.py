"""The notebook's side of comms that were opened on a rank (see ``jaxcluster.engine.comms``).

Each has one of the same id with the page, and what it has come to is known here: so a page that is
loaded again gets the models of ranks too, and a widget whose rank is gone can say so. What a user
does to a widget is a cell on the ranks that ran the widget's cell, and what that outputs is
below the widget.
"""

from __future__ import annotations

import atexit
import dataclasses
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import comm

from jaxcluster import wire
from jaxcluster.cluster import Cluster, events
from jaxcluster.host import kernel_private
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.views.outbox import Outbox
from jaxcluster.views.relayed import (
    Below,
    FrontendComm,
    Home,
    Message,
    Relayed,
    Said,
    buffers_of,
    raw,
)
from jaxcluster.views.snapshot import as_text, is_over, parts, snapshot
from jaxcluster.wire import VIEW_MIME, CommState
from jaxcluster.wire.link import Event, replies
from jaxcluster.wire.ops.cells import Reveal

REVEAL_S = 5.0  # for the comms of a rank that was not shown
CONTROL = "jupyter.widget.control"


class CommRelay:
    """Gives each comm of a cluster's ranks one of the same id with the page.

    Args:
      shell: IPython's, of a notebook's kernel.
    """

    def __init__(self, cluster: Cluster, shell: Any) -> None:
        self.cluster = cluster
        self._kernel = shell.kernel
        self._comms: dict[str, Relayed] = {}
        self._homes: dict[int, Home] = {}
        self._homes_of: Any = None  # the world whose cells these are
        self._settled: dict[str, tuple[Home, Message]] = {}  # by a model of a bar
        self._targets: dict[str, tuple[int, Home]] = {}
        self._parent: Message = {}
        self._below = Below(shell.kernel)
        self._outbox = Outbox(cluster, self._below, shell.kernel.log)
        self._seen: tuple[Any, ...] = self._look()
        self._lock = threading.RLock()
        self._has_control = False
        cluster.on_push = self.handle
        events.watchers.append(self._on_change)

    # ------------------------------------------------------------------ from the ranks

    def expect(self) -> None:
        """A cell is going to be sent by the cell that runs in the notebook now."""
        self._parent = self._kernel.get_parent("shell")

    def begin(self, record: CellRecord) -> None:
        """It was sent: what it opens stands under the notebook's cell."""
        with self._lock:
            home = self._home(record.seq)
            home.number, home.source = record.execution_count, record.source
            home.ranks = list(record.ranks)

    def _home(self, seq: int) -> Home:
        if self._homes_of is not self.cluster.world:  # whose cells are counted from one again
            self._homes_of = self.cluster.world
            self._homes.clear()
        if seq not in self._homes:
            self._homes[seq] = Home(seq, self._parent)
        return self._homes[seq]

    def handle(self, event: Event[wire.CommPush]) -> None:
        """Pass on what a rank sends. On the link's thread."""
        push, buffers = event.body, [bytes(b) for b in event.buffers]
        if push.kind == "target":
            self._register(event.rank, push.seq, push.target_name)
        elif push.kind == "comm_open":
            self._open(event.rank, push, buffers)
        elif (relayed := self._comms.get(push.comm_id)) is not None:
            assert relayed.comm is not None
            data, metadata = push.data, push.metadata
            with self._lock:
                relayed.comm.parent = self._home(push.under).parent
            if push.kind == "comm_close":
                del self._comms[push.comm_id]
                relayed.comm.close(data, metadata, buffers)
            else:
                relayed.state.take(wire.plain(data), metadata, buffers)
                relayed.comm.send(data, metadata, buffers)
                if push.comm_id in self._settled:
                    self._unsettle(push.comm_id)

    def _open(self, rank: int, push: wire.CommPush, buffers: list[bytes]) -> None:
        with self._lock:
            home = self._home(push.seq)
        state = CommState.opened(wire.plain(push), buffers)
        relayed = Relayed(rank, push.twin, home, state, self.cluster.world)
        if state.is_widget and not self._has_control:
            self._join_control()
        self._comms[push.comm_id] = relayed
        relayed.comm = self._frontend(
            relayed,
            target_name=push.target_name,
            target_module=push.target_module,
            data=push.data,
            metadata=push.metadata,
            buffers=buffers,
            comm_id=push.comm_id,
        )

    def _frontend(self, relayed: Relayed, **keys: Any) -> FrontendComm:
        hear = partial(self._hear, relayed)
        return FrontendComm(self._kernel, relayed.home.parent, hear, **keys)

    def _register(self, rank: int, seq: int, name: str) -> None:
        """A rank's code waits for pages that open comms of this name."""
        manager: Any = comm.get_comm_manager()
        with self._lock:
            home = self._home(seq)
        if name in self._targets or name not in manager.targets:
            self._targets[name] = rank, home
            manager.register_target(
                name, lambda opened, message: self._accept(name, opened, message)
            )

    def _accept(self, name: str, opened: Any, message: Message) -> None:
        rank, home = self._targets[name]
        id, content = opened.comm_id, message["content"]
        state = CommState(name, None, {}, {})
        relayed = Relayed(rank, f"opened-{id}", home, state, self.cluster.world)
        kernel_private.mark_closed(opened)  # ours takes its place
        relayed.comm = self._frontend(relayed, target_name=name, comm_id=id, primary=False)
        comm.get_comm_manager().register_comm(relayed.comm)
        self._comms[id] = relayed
        metadata = message.get("metadata") or {}
        said = Said("comm_open", content.get("data") or {}, metadata, buffers_of(message), name)
        self._outbox.say(relayed, said)

    # ------------------------------------------------------------------ ranks that were not shown

    def as_shown(self, output: wire.RankOutput) -> Message:
        """An output's content, when its widget is open with the page; else without the widget.

        It has what a saved notebook shows of the widget, too.
        """
        content = output.content
        if (id := model_of(content)) is None:
            return content
        data = dict(content["data"])
        if not self._is_open(output.rank, id):
            del data[VIEW_MIME]
        elif "text/html" not in data and (now := snapshot(id, self._states())) is not None:
            data |= as_text(now)
        return {**content, "data": data}

    def as_saved(self, seq: int, content: Message) -> Message:
        """What stays of a widget at the end of its cell, where it was shown by a display id.

        A bar that has ended stays as it looks, in place of its widget: that would be gone from a
        saved notebook. Should it go on, it is a widget again.
        """
        id, states = model_of(content), self._states()
        now = snapshot(id, states) if id is not None else None
        if id is None or now is None:
            return content
        data = {**content["data"], **as_text(now)}
        made = {**content, "data": data}
        if is_over(id, states):
            with self._lock:
                for part in parts(id, states):
                    self._settled[part] = self._home(seq), made
            data = {mime: value for mime, value in data.items() if mime != VIEW_MIME}
        return {**made, "data": data}

    def _unsettle(self, id: str) -> None:
        """A bar that had ended goes on."""
        home, content = self._settled[id]
        for part in [part for part, (_, of) in self._settled.items() if of is content]:
            del self._settled[part]
        self._below.send(home, "update_display_data", content)

    def _states(self) -> dict[str, CommState]:
        return {id: relayed.state for id, relayed in list(self._comms.items())}

    def _is_open(self, rank: int, id: str) -> bool:
        if id in self._comms:
            return True
        if self.cluster.closed:
            return False
        asked = self.cluster.link.gather([rank], Reveal([id]), timeout_s=REVEAL_S)
        return id in replies(asked).get(rank, ())  # what it opens has come before its answer

    # ------------------------------------------------------------------ from the page

    def _hear(self, relayed: Relayed, kind: str, message: Message) -> None:
        """What the page says on a comm. On the main thread, or on a subshell's."""
        assert relayed.comm is not None
        relayed.home.latest = message
        data = message["content"].get("data") or {}
        buffers = buffers_of(message)
        method = data.get("method") if isinstance(data, dict) and relayed.state.is_widget else ""
        if method == "request_state":
            opening, frames = relayed.state.opening()
            told = {key: opening[key] for key in ("state", "buffer_paths")}
            relayed.comm.send({"method": "update", **told}, buffers=raw(frames))
            return
        if kind == "comm_close":
            self._comms.pop(relayed.comm.comm_id, None)
        else:
            relayed.state.take(wire.plain(data), {}, buffers)
        if relayed.dead:
            if kind != "comm_close":
                self._tell_dead(relayed.home, relayed.dead, again=True)
            return
        said = Said(kind, data, message.get("metadata") or {}, buffers)
        self._outbox.say(relayed, said)

    # ------------------------------------------------------------------ their end

    def _look(self) -> tuple[Any, ...]:
        cluster = self.cluster
        return cluster.world, cluster.closed, tuple(cluster.dead)

    def _on_change(self, cell: Any = None) -> None:
        """In the way of every cell: microseconds."""
        if (seen := self._look()) != self._seen:
            self._seen = seen
            if self._comms and not _exiting:
                threading.Thread(
                    target=self._bury, name="jaxcluster-widgets-end", daemon=True
                ).start()

    def _why_dead(self, relayed: Relayed) -> str:
        cluster = self.cluster
        if cluster.world is not relayed.world or cluster.is_restarting:
            return "the ranks have new processes"
        if relayed.rank in cluster.dead:
            return f"{name_ranks([relayed.rank])} has died"
        return f"cluster {cluster.name!r} was stopped" if cluster.closed else ""

    def _bury(self) -> None:
        """Say which widgets nobody answers any more, and take their controls out of use."""
        two_way: dict[int, tuple[Home, str]] = {}
        for relayed in list(self._comms.values()):
            if relayed.dead or not (why := self._why_dead(relayed)):
                continue
            relayed.dead = why
            self._outbox.drop(relayed)
            if relayed.is_two_way:
                two_way[relayed.home.seq] = relayed.home, why
            if relayed.state.state.get("disabled") is False and relayed.comm is not None:
                told = {"disabled": True, "tooltip": f"no longer live: {why}"}
                data = {"method": "update", "state": told, "buffer_paths": []}
                relayed.state.take(wire.plain(data), {}, ())
                relayed.comm.send(data)
        for home, why in two_way.values():
            self._tell_dead(home, why)

    def _tell_dead(self, home: Home, why: str, again: bool = False) -> None:
        if home.told_dead and not again:
            return
        home.told_dead = True
        cell = f"cell [{home.number}]" if home.number else "the cell"
        self._below.print(
            home,
            "stdout",
            f"The widgets of {cell} are no longer live: {why}. Run the cell again to get them "
            "back.\n",
        )

    # ------------------------------------------------------------------ a page that is loaded again

    def _join_control(self) -> None:
        """Answer for the ranks' models too, when a page asks for all that the kernel has.

        ipywidgets answers for its own alone, and a page takes the first answer.
        """
        self._has_control = True
        import ipywidgets  # it registers the target that is taken over here

        manager: Any = comm.get_comm_manager()
        known = manager.targets.get(CONTROL) or ipywidgets.Widget.handle_control_comm_opened

        def opened(this: Any, message: Message) -> None:
            send = this.send

            def send_all(data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
                if isinstance(data, dict) and data.get("method") == "update_states":
                    data, buffers = self._with_ours(data, list(buffers or ()))
                    for relayed in list(self._comms.values()):
                        relayed.home.is_left = True
                send(data, metadata, buffers)

            this.send = send_all
            known(this, message)

        manager.register_target(CONTROL, opened)

    def _with_ours(self, data: Message, buffers: list[Any]) -> tuple[Message, Any]:
        states, paths = dict(data["states"]), list(data.get("buffer_paths") or ())
        for id, relayed in list(self._comms.items()):
            if not relayed.state.is_widget:
                continue
            opening, frames = relayed.state.opening()
            state = opening["state"]
            states[id] = {
                "model_name": state.get("_model_name"),
                "model_module": state.get("_model_module"),
                "model_module_version": state.get("_model_module_version"),
                "state": state,
            }
            paths += [[id, "state", *path] for path in opening["buffer_paths"]]
            buffers += frames
        return {**data, "states": states, "buffer_paths": paths}, buffers


def model_of(content: Message) -> str | None:
    """The id of the model that an output shows; None where it is no widget's view."""
    view = (content.get("data") or {}).get(VIEW_MIME)
    return str(view["model_id"]) if isinstance(view, dict) and "model_id" in view else None


_exiting: list[bool] = []
atexit.register(_exiting.append, True)  # after the cluster's own, so before it


def relay_of(cluster: Cluster, shell: Any = None) -> CommRelay | None:
    """The relay of a cluster's comms; with a notebook's ``shell`` it is made if there is none."""
    found = getattr(cluster.on_push, "__self__", None)
    if not isinstance(found, CommRelay):
        found = CommRelay(cluster, shell) if hasattr(shell, "kernel") else None
    return found


def shown_by(cluster: Cluster, outputs: Iterable[wire.RankOutput]) -> list[wire.RankOutput]:
    """Outputs of ranks as a page can show them: their widgets are open with it."""
    relay = relay_of(cluster)
    if relay is None:
        return list(outputs)
    return [dataclasses.replace(output, content=relay.as_shown(output)) for output in outputs]
