"""Takes back what the last cell did to a rank's variables.

jax's arrays are immutable, so to hold on to what the names were bound to before a cell costs
references, not copies. What a cell may change in place is kept beside them (``changes``), and so is
what it may set up besides names: random states, settings of JAX, the environment, the folder.

All of it is kept until the next cell begins, within a limit: what the names were bound to, and are
not any more, is memory that a script would have free again. Past the limit it is let go, all of it.

The notebook takes a cell back on all ranks or on none: it asks first (``on_look``), which changes
nothing, and then says so (``on_undo``). Both run on a side thread, since a main thread may be
permanently stuck in the cell; should it come back, the cell is taken back once more at its end.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import Any

from jaxcluster.engine import changes, ipython_hooks, object_graph
from jaxcluster.engine.ipython_hooks import Registered
from jaxcluster.engine.private import contexts
from jaxcluster.engine.private.traces import Traces
from jaxcluster.engine.repair import repair_modules
from jaxcluster.engine.retained import Memory, format_nbytes
from jaxcluster.engine.state import ownmodules
from jaxcluster.engine.state.process_state import ContextOfCells, ProcessState
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.user_names import is_users
from jaxcluster.wire.ops.state import ALREADY_UNDONE, UndoLooked

SWITCHED_OFF = "undo is switched off: %jaxcluster undo on"
SAID_S = 1.0  # what waits as long is told why
LOOK_S = 0.05  # between two looks at how much is held, while that may be too much
LOOK_SHARE = 20  # a look takes at most this part of the time

_MISSING = object()
_RESULT = re.compile(r"_{1,3}|_\d+")  # IPython's names for what cells ended in; with Out, or _oh


class CannotUndo(Exception):
    """Why a cell can't be taken back on this rank."""

    hint = ""


@dataclass
class Kept:
    """What was before one cell.

    Attributes:
      seq: the cell.
      names: the namespace as it was; emptied when it is let go.
      bound_since: names that were bound after the cell, by a push.
      gone: why it can't be taken back any more; "" while it can.
      running: the cell has not ended.
      undone: what was left untouched when it was taken back; None before.
    """

    seq: int
    names: dict[str, Any]
    watch: changes.Watch
    process_state: ProcessState
    context: ContextOfCells
    registered: Registered
    results: dict[Any, Any]
    shown: tuple[Any, ...]
    bound_since: set[str] = field(default_factory=set)
    gone: str = ""
    running: bool = True
    undone: Leave | None = None

    def let_go(self, why: str) -> None:
        self.gone = why
        self.names, self.results, self.shown = {}, {}, ()
        self.watch, self.process_state = changes.Watch(), ProcessState()
        self.context, self.registered = ContextOfCells(), Registered()


@dataclass(frozen=True)
class Leave:
    """What is not put back, on all ranks alike: ``names`` in place, ``lost`` at all (unbound)."""

    names: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Course:
    """What a cell has done to the names, as far as it could reach them.

    Attributes:
      rebound: names that it has bound or unbound, not only the user's.
      in_place: the ids of what it has changed in place; None where it may have changed any.
    """

    rebound: tuple[str, ...]
    in_place: frozenset[int] | None


class Undo:
    """One rank's undo.

    Attributes:
      namespace: the user's variables.
      handlers: those of signals that cells have set.
      limit_nbytes: how much may be held on a device; 0: nothing is kept; None: a quarter of it.
    """

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self.limit_nbytes: int | None = None
        self.display_hook: Any = None
        self.settings: Settings | None = None
        self.handlers: Callable[[], Collection[Any]] = lambda: ()
        self._at_first = Registered()
        self._traces = Traces()
        self._then: ContextOfCells | None = None  # for the main thread, whose own that is
        self._callbacks: list[Any] = []  # that IPython calls before a cell's code
        self._last_callback = self._called
        self._uncalled = ""  # the cell's source, until it has been called
        self._loads = 0  # of the user's modules, before the cell
        self._kept: Kept | None = None
        self._why_not = "the ranks' processes are newer than it"
        self._lock = threading.RLock()
        self._decided = threading.Condition(self._lock)
        self._held_until = 0.0  # a cell was looked at, and may be taken back
        self._memory: Memory | None = None
        self._needs_watching = threading.Event()

    def attach(self, shell: Any, settings: Settings) -> None:
        """Begin with a shell that has run no cell yet, and the settings of its cells."""
        self.settings = settings
        self.namespace = shell.user_ns
        self._callbacks = shell.events.callbacks["pre_run_cell"]
        self._at_first = Registered(shell)
        self.display_hook = shell.displayhook
        threading.Thread(target=self._watch_memory, name="jaxcluster-undo", daemon=True).start()

    # ------------------------------------------------------------------ a cell's course

    def begin(self, seq: int, source: str) -> None:
        """On the main thread, before a cell: keep what is now. Some 0.1 ms; raises nothing."""
        called = self._last_callback
        if not self._callbacks or self._callbacks[-1] is not called:  # it is to come last
            self._callbacks[:] = [*(one for one in self._callbacks if one is not called), called]
        self._uncalled, self._loads = source, ownmodules.loads()
        kept, why_not = None, SWITCHED_OFF
        try:
            self._put_back_context()
            if self.limit_nbytes != 0:
                kept, why_not = self._keep(seq, source), ""
        except Exception as error:  # a cell must run, whatever its values do when looked at
            repair_modules()
            traceback.print_exc()  # to the rank's log
            why_not = f"the values before it could not be kept: {type(error).__name__}: {error}"
        with self._lock:
            self._kept, self._why_not = kept, why_not

    def _keep(self, seq: int, source: str) -> Kept:
        memory = self._memory = self._memory or Memory()
        if memory.may_exceed(self.limit_nbytes):
            self._needs_watching.set()
        self._traces.note()
        own = self._at_first.now(self.namespace, self.handlers())
        return Kept(
            seq,
            dict(self.namespace),
            changes.watch(self.namespace, source, own),
            ProcessState.now(),
            ContextOfCells() if self.settings is None else ContextOfCells.of(self.settings),
            own,
            dict(self.namespace.get("_oh") or {}),
            _shown(self.display_hook),
        )

    def _called(self, *_: Any) -> None:
        """On the main thread, before the cell's code: what ``%autoreload`` has loaded stays."""
        source, self._uncalled = self._uncalled, ""
        with self._lock:
            kept = self._kept
            if not source or ownmodules.loads() == self._loads or kept is None or kept.gone:
                return
            with contextlib.suppress(Exception):  # then what was loaded is named, and stays
                watch = changes.watch(self.namespace, source, kept.registered)
                kept.names, kept.watch = dict(self.namespace), watch

    def end(self) -> None:
        """On the main thread, after the cell."""
        self._uncalled = ""
        with self._lock:
            if (kept := self._kept) is None:
                return
            kept.running = False
            if kept.undone is not None:  # the notebook did not wait for its end
                self._put_back(kept, kept.undone)
                kept.let_go(ALREADY_UNDONE)
                self._put_back_context()

    def _put_back_context(self) -> None:
        """On the main thread: of a cell that was taken back."""
        then, self._then = self._then, None
        if then is not None:
            then.put_back_here()

    def course(self) -> Course | None:
        """What the last cell has done, when it has ended; None where that is not known.

        Some 30 ns for each name, and again for what ``changes.watch`` has kept.
        """
        with self._lock:
            if (kept := self._kept) is None or kept.gone:
                return None
            rebound, watch = _differing(kept.names, self.namespace), kept.watch
            has_loaded = ownmodules.loads() != self._loads
            if has_loaded or watch.opaque or watch.too_large or watch.is_partial or watch.is_open:
                return Course(rebound, None)
            return Course(rebound, frozenset(id(one.value) for one in watch.changed()))

    def bound(self, names: Iterable[str]) -> None:
        """Names were bound by somebody else than a cell: they stay."""
        with self._lock:
            if (kept := self._kept) is not None:
                for name in names:
                    kept.bound_since.add(name)
                    kept.names.pop(name, None)

    def forget(self, why: str) -> None:
        """The last cell can't be taken back any more."""
        with self._lock:
            if self._kept is not None:
                self._kept.let_go(why)

    def forget_once_decided(self, why: str) -> str:
        """The same, once a cell that was looked at is taken back, on all ranks, or on none.

        Takes milliseconds; if another rank does not answer, or the notebook has ended, as long as
        that has asked for. Then it says so.
        """
        started = time.monotonic()
        with self._decided:
            while (left_s := self._held_until - time.monotonic()) > 0:
                self._decided.wait(left_s)
            is_decided, self._held_until = not self._held_until, 0.0
            self.forget(why)
        waited_s = time.monotonic() - started
        if is_decided or waited_s < SAID_S:
            return ""
        return (
            f"This code has waited {waited_s:.0f} s for a notebook that was about to take the last "
            "cell back, and did not say whether it has: it may have ended."
        )

    def drop(self) -> None:
        """The cell that was looked at is taken back, or will not be."""
        with self._decided:
            self._held_until = 0.0
            self._decided.notify_all()

    @property
    def _is_held(self) -> bool:
        return time.monotonic() < self._held_until

    def before(self, seq: int | None = None) -> Mapping[str, Any] | None:
        """What the names were bound to before cell ``seq`` (None: the last one). Any thread.

        Before a cell that did not run here, or was taken back, they were bound to what they are
        now. None: it is not known.
        """
        with self._lock:
            kept = self._kept
            if kept is None or (seq is not None and kept.seq > seq):
                return None
            if kept.gone == ALREADY_UNDONE or (seq is not None and kept.seq < seq):
                return dict(self.namespace)
            if kept.gone:
                return None
            now = {n: self.namespace[n] for n in kept.bound_since if n in self.namespace}
            return kept.names | now

    # ------------------------------------------------------------------ taking back

    def _find(self, seq: int) -> Kept | None:
        """What is kept for a cell; None if it never ran here, so that there is nothing to do.

        Raises:
          CannotUndo: it can't be taken back.
        """
        kept = self._kept
        if kept is None:
            raise CannotUndo(self._why_not)
        if kept.seq < seq:  # interrupted before its turn
            return None
        if kept.seq > seq:
            raise CannotUndo("another cell has begun since")
        if kept.undone is not None:
            raise CannotUndo(ALREADY_UNDONE)
        if kept.gone:
            raise CannotUndo(kept.gone)
        return kept

    def _rebound(self, kept: Kept) -> list[str]:
        """The user's names whose values are others than before the cell."""
        now, before = dict(self.namespace), kept.names
        return [
            name
            for name in _differing(before, now)
            if name not in kept.bound_since and is_users(name, now.get(name, before.get(name)))
        ]

    def look(self, seq: int, hold_s: float = 0.0) -> UndoLooked:
        """What taking back the cell would come to; changes nothing.

        It stays possible for ``hold_s``, unless it is dropped.

        Raises:
          CannotUndo: it can't be taken back.
        """
        with self._lock:
            looked = self._look(seq)
            self._held_until = time.monotonic() + hold_s
            return looked

    def _look(self, seq: int) -> UndoLooked:
        if (kept := self._find(seq)) is None:
            return UndoLooked()
        rebound = self._rebound(kept)
        changed = kept.watch.changed()
        failed = [one for one in changed if not changes.can_put_back(one)]
        mine = [n for n in kept.watch.mentioned if n not in kept.bound_since]
        in_place = {one.root for one in changed if not one.beneath}
        if kept.registered.has_changed():
            in_place.add(ipython_hooks.NAME)
        return UndoLooked(
            back=sorted(n for n in rebound if n in kept.names),
            made=sorted(n for n in rebound if n not in kept.names),
            in_place=sorted(in_place),
            donated=object_graph.leading_to_deleted(
                kept.names, {*rebound, *mine}, kept.watch.copies()
            ),
            failed=sorted({one.root for one in failed if not one.beneath}),
            opaque=kept.watch.opaque | self._shared(kept, failed),
            too_large=sorted(kept.watch.too_large),
        )

    def _shared(self, kept: Kept, failed: Sequence[changes.Watched]) -> dict[str, str]:
        """Names that share what may have changed, and is not put back, with others: with which."""
        watch = kept.watch
        if not (watch.unwatched or failed):
            return {}
        left = [*watch.unwatched, *(one.value for one in failed)]
        targets, are_all = object_graph.reachable_from(left)
        for one in watch.watched:
            if changes.can_put_back(one):
                targets.pop(id(one.value), None)
        known = {*watch.opaque, *watch.too_large, *(o.root for o in failed if not o.beneath)}
        others = {name: value for name, value in kept.names.items() if name not in known}
        names, late = object_graph.sharing(others, targets.keys(), watch.copies())
        names |= {one.root for one in failed if one.beneath} & others.keys()
        if not are_all:
            late |= {
                n for n, v in object_graph.users_among(others) if object_graph.may_change(v)
            } - names
        with_whom = ", ".join(sorted(known)) or "values that a library keeps"
        shared = dict.fromkeys(names, f"shares values with {with_whom}")
        late = {name for name in late if not changes.is_librarys(kept.names[name])}
        shared |= dict.fromkeys(late, "too large to search")
        same = {id(value): changes.describe(value) for value in watch.unwatched}
        return {name: same.get(id(kept.names[name]), shared[name]) for name in sorted(shared)}

    def undo(self, seq: int, leave: Leave) -> list[str]:
        """Take the cell back; returns names with values that could not be put back after all.

        Raises:
          CannotUndo: it can't be taken back; nothing was changed.
        """
        with self._lock:
            if (kept := self._find(seq)) is None:
                with contexts.launching_nothing():
                    self._unbind(leave.lost)  # what is lost on some ranks is lost on all
                return []
            failed = self._put_back(kept, leave)
            kept.undone = leave
            if not kept.running:
                kept.let_go(ALREADY_UNDONE)
            return failed

    def _put_back(self, kept: Kept, leave: Leave) -> list[str]:
        with contexts.launching_nothing():  # other ranks may have no such finalizer to run
            for name in self._rebound(kept):
                self._bind(name, kept.names)
            failed = kept.watch.put_back(leave.names)
            self._unbind(leave.lost)
            self._put_back_results(kept)
        kept.registered.put_back()
        kept.process_state.put_back()
        if self.settings is not None:
            kept.context.put_back(self.settings)
            self._then = kept.context
        self._traces.forget_later_ones()
        values = {id(one.value) for one in failed if not one.beneath}
        return sorted(object_graph.sharing(kept.names, values, {})[0]) if values else []

    def _unbind(self, names: Iterable[str]) -> None:
        for name in names:
            self.namespace.pop(name, None)

    def _bind(self, name: str, values: Mapping[str, Any]) -> None:
        if name in values:
            self.namespace[name] = values[name]
        else:
            self.namespace.pop(name, None)

    def _put_back_results(self, kept: Kept) -> None:
        """What the cell's last expression has left in ``Out``, ``_`` and ``_7``."""
        results = self.namespace.get("_oh")
        if isinstance(results, dict):
            for number in results.keys() - kept.results.keys():
                del results[number]
        for name in list({**kept.names, **self.namespace}):
            if type(name) is str and _RESULT.fullmatch(name):
                self._bind(name, kept.names)
        for name, value in zip(_SHOWN, kept.shown, strict=True):
            setattr(self.display_hook, name, value)

    # ------------------------------------------------------------------ memory

    def set_limit(self, nbytes: int | None) -> int:
        """How many bytes may be held on a device: 0 for none, None for a quarter of its memory."""
        with self._lock:
            self.limit_nbytes = nbytes
            if nbytes == 0 and self._kept is not None and not self._is_held:
                self._kept.let_go(SWITCHED_OFF)
            memory = self._memory = self._memory or Memory()
        self.check_memory()
        return memory.limit(0, nbytes)

    def _watch_memory(self) -> None:
        """A thread's loop: looks while a cell runs that may make too much be kept."""
        while True:
            self._needs_watching.wait()
            started = time.monotonic()
            if self.check_memory():
                self._needs_watching.clear()
            time.sleep(max(LOOK_S, LOOK_SHARE * (time.monotonic() - started)))

    def check_memory(self) -> bool:
        """Let go of what is kept if it is too much. True if no other look is needed soon."""
        with self._lock:
            kept, memory, most = self._kept, self._memory, self.limit_nbytes
        if kept is None or memory is None or kept.gone:
            return True
        running = kept.running
        try:
            held = self._held(kept, memory)
        except Exception:  # the main thread changes something at this moment
            return False
        for column, nbytes in enumerate(held):
            if nbytes > memory.limit(column, most):
                self._let_go(kept, nbytes, memory.limit(column, most))
                return bool(kept.gone)
        return not running

    def old_values(self) -> list[Any]:
        """What is kept of the last cell's beginning and is not what the names have now."""
        with self._lock:
            return [] if self._kept is None else self._old_values(self._kept)

    def _old_values(self, kept: Kept) -> list[Any]:
        old = [kept.names[name] for name in self._rebound(kept) if name in kept.names]
        return old + [one.copy for one in kept.watch.changed()]

    def _held(self, kept: Kept, memory: Memory) -> list[int]:
        """Bytes that nothing else keeps alive, of each device, and of the host for numpy."""
        if not (old := self._old_values(kept)):
            return []
        alive = [v for n, v in dict(self.namespace).items() if n not in ("_oh", "Out")]
        return memory.held(old, alive, kept.watch.copies(), self.limit_nbytes)

    def _let_go(self, kept: Kept, nbytes: int, most: int) -> None:
        with self._lock:
            if kept.undone is None and not self._is_held:
                kept.let_go(
                    f"the values before it hold {format_nbytes(nbytes)}, more than the "
                    f"{format_nbytes(most)} that undo may keep: %jaxcluster undo SIZE"
                )


def _differing(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """The names that have another value now, or are in one of both alone."""
    names = list(now)
    if names[: len(before)] == list(before):  # as mostly: nothing was unbound
        others = map(is_not, now.values(), before.values())
        return (*compress(names, others), *names[len(before) :])
    both = before | now
    return tuple(n for n in both if before.get(n, _MISSING) is not now.get(n, _MISSING))


_SHOWN = ("_", "__", "___")


def _shown(hook: Any) -> tuple[Any, ...]:
    """What the display hook takes for the last results: it stops binding them where they differ."""
    return tuple(getattr(hook, name, "") for name in _SHOWN)
