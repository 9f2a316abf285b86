"""Keeps one loop while it runs.

All ranks keep the same step. With ``keep=100`` that is known; with ``keep="60s"`` the first rank
proposes a step that is some way ahead. Each rank's thread says whether its loop has not passed it
yet, whatever that does; only if none has, all keep it. At that step a loop takes a picture of its
variables, and its thread writes the numbers of arrays meanwhile.
"""

from __future__ import annotations

import json
import math
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine.private import coordination
from jaxcluster.engine.state import randomness
from jaxcluster.engine.state.ownmodules import Variables
from jaxcluster.engine.state.saved import CannotRestore, CannotSave
from jaxcluster.engine.steps import functions, names
from jaxcluster.engine.steps.active_loops import REPORT_S, ActiveLoops
from jaxcluster.engine.steps.agreement import Agreement
from jaxcluster.engine.steps.checkpoints import (
    ITERABLE,
    RANDOM,
    Entry,
    common,
    of_others,
    texts_in,
    texts_of,
    unfinished,
)

if TYPE_CHECKING:
    from jaxcluster.engine.steps.loop import Steps

AHEAD_S = 0.25  # how far ahead a step is proposed
MOST_AHEAD, MOST_AHEAD_S = 1 << 16, 10.0
LOOK_S = 0.005  # between looks, on the main thread
WAIT_S = 0.02  # ... and on another one
LATE_S = 1.0  # that the others' word is waited for when the loop has ended
STATE, GIVEN_UP = "state", "given-up"
UNBOUND = "what has no value"  # the names that the loop binds, or has deleted
SETTING = "setting "  # what one that the loop has changed is kept under begins so
FEW = 8  # names in a line
IN_FUNCTION = (
    "Python before 3.13 can't put back a function's variables, so this loop can't be kept. Keep "
    "what it changes in a dict or a list, and name that: steps(..., keep=..., state=state). Or "
    "write the loop at the top level of the cell."
)
Job = Callable[[], tuple[Entry, dict[str, str]]]  # with hashes of the values


class LoopCheckpointer:
    """One loop's, on one rank.

    Args:
      frame: what the loop is in.
      state: what alone is kept, where the loop names it.
      seconds: between two steps that are kept; 0: the loop itself knows them.

    Raises:
      RuntimeError, ValueError: it can't be kept; why is said.
    """

    def __init__(
        self, loop: Steps, active: ActiveLoops, frame: types.FrameType, state: Any, seconds: float
    ) -> None:
        running = active.runner.current
        assert running is not None
        cell = self._cell = running.cell
        if any(other.checkpointer is not None for other in active.loops):
            raise ValueError("This loop is inside of one that is kept: leave out keep here.")
        if frame.f_locals is not frame.f_globals and state is None and sys.version_info < (3, 13):
            raise RuntimeError(IN_FUNCTION)
        if active.checkpoints is None:
            raise RuntimeError("This rank has no folder in which steps could be kept.")
        store = coordination.store("jaxcluster-steps") if len(cell.ranks) > 1 else None
        if store is None and len(cell.ranks) > 1:
            raise RuntimeError("This jax has no store by which ranks could agree: leave out keep.")
        number = active.count(cell.seq)
        active.wait_for_last()
        self._name = f"{cell.seq}-{number}"
        self._seconds, self._ahead_s = seconds, AHEAD_S
        self._loop, self._active, self._state = loop, active, state
        self._checkpoints = active.checkpoints
        self._restarts = active.runner.journal.restarts
        script = cell.script.argv if cell.script is not None else []
        self._source = names.find(frame, cell.source, [number, *script])
        self._agreement = Agreement(store, active.runner.rank, cell.ranks, self._name)
        self._values: dict[str, Any] | None = None  # to be put back
        self._entry: Entry | None = None  # where they are from
        self._ours: type = object
        self._before: dict[str, bytes] = {}  # of what it may change in place, when it began
        self._functions: functions.Look = {}  # what functions kept then
        self._settings: dict[str, Any] = {}  # what was set then
        self._decided: dict[int, bool] = {}  # by step
        self._is_busy = False  # a version is being made
        self._taken: wire.Inbox[tuple[int, Job | str]] = wire.Inbox()
        self._said: set[str] = set()
        self._own: dict[int, list[str]] = {}  # names that ranks get nothing of, which are new
        self._given_up = False
        self._told: list[str] = []  # subjects that nobody comes to any more

    # ------------------------------------------------------------------ main thread

    def find(self, frame: types.FrameType) -> tuple[int, Any]:
        """Agree with the other ranks on where it begins: the step, and the iterable's own state."""
        checkpoints, agreement = self._checkpoints, self._agreement
        told = agreement.ask_all("have", json.dumps([asdict(one) for one in checkpoints.entries]))
        heard = {r: [wire.parse(Entry, e) for e in json.loads(t)] for r, t in told.items()}
        for entry in common(heard, self._source.key):
            if self._load(entry, frame):
                return self._place()
        others = self._of_others()
        for entry in others:
            if entry.key == self._source.key and self._load(entry, frame, is_others=True):
                return self._place()
        left = unfinished(heard) or others
        if not left:
            checkpoints.forget(self._active.share)
        elif not any(one.key == self._source.key for one in left):
            last = max(left, key=lambda one: one.at)
            self._say(
                f"Cell [{last.cell}] had kept step {last.step:,}. This loop is another one, or was "
                "edited since: it begins at 0."
            )
        return 0, None

    def _of_others(self) -> list[Entry]:
        """Versions of other ranks that there were; all ranks hear the same, the first one's."""
        found = self._checkpoints.of_all()
        is_there = str(int(any(found.values())))
        if "1" not in self._agreement.ask_all("others", is_there).values():
            return []
        text = json.dumps([asdict(one) for one in of_others(found)])
        heard = self._agreement.ask_all("theirs", text if self._agreement.leads else "")
        return [wire.parse(Entry, one) for one in json.loads(heard[self._agreement.leader])]

    def _load(self, entry: Entry, frame: types.FrameType, is_others: bool = False) -> bool:
        """Whether all ranks have read a version, each what it is to have of it.

        Args:
          is_others: other ranks have kept it.
        """
        checkpoints, namespace = self._checkpoints, frame.f_globals
        values: dict[str, Any] = {}
        own: list[str] = []
        why = ""

        def is_there(name: str) -> bool:
            return names.is_there(frame, name)

        try:
            if is_others:
                meshes = names.meshes(frame)
                values, own = checkpoints.load_of_others(entry, namespace, is_there, meshes)
            else:
                values = checkpoints.load(entry, namespace, is_there)
        except (CannotRestore, OSError) as error:
            why = str(error) or type(error).__name__
        subject = f"{'theirs' if is_others else 'loads'}-{entry.loop}-{entry.number}"
        told = self._agreement.ask_all(subject, json.dumps([why, own]))
        answers = {rank: json.loads(text) for rank, text in told.items()}
        if bad := {rank: why for rank, (why, _) in answers.items() if why}:
            rank, why = min(bad.items())
            self._say(f"Step {entry.step:,} can't be put back (rank {rank}: {why}).")
            return False
        self._values, self._entry = values, entry
        self._own = {rank: own for rank, (_, own) in answers.items() if own}
        return True

    def _place(self) -> tuple[int, Any]:
        """Where what was read is from: the step, and the iterable's own state."""
        assert self._entry is not None and self._values is not None
        return self._entry.step, self._values.pop(ITERABLE, None)

    def begin(self, frame: types.FrameType, ours: type) -> None:
        """Put back what was found, when the iterable is where it was.

        Args:
          ours: the class of the loops' own objects, which are not kept.
        """
        self._ours = ours
        try:
            self._checkpoints.begin(self._name, self._active.share)
        except OSError as error:
            raise RuntimeError(
                f"Nothing can be kept in {self._checkpoints.folder}: {error.strerror}."
            ) from None
        if self._state is None:  # else nothing is in doubt
            found = names.values_of(frame, self._source, self._ours)
            doubtful = {name: found.values[name] for name in found.doubtful}
            self._before = texts_of(doubtful, frame.f_globals, self._active.runner.rank)
            self._functions = self._look(found, frame)
            self._settings = self._active.runner.settings.read()
        entry, values = self._entry, self._values
        if entry is None or values is None:
            return
        for name in values.pop(UNBOUND, ()):
            frame.f_globals.pop(name, None)
        back = sorted(_told(name) for name in values)
        self._checkpoints.put_back()
        if self._state is not None:
            _refill(self._state, values.pop(STATE))
        self._set([(name, values.pop(name)) for name in list(values) if name.startswith(SETTING)])
        names.bind(frame, values)
        self._loop.run, self._values = entry.run, None
        self._active.curve.go_on(entry.run, entry.step)
        self._active.kept(self._cell.seq, entry.step)
        at = time.strftime("%H:%M", time.localtime(entry.at))
        more = f" and {len(back) - FEW} more" if len(back) > FEW else ""
        script = self._cell.script is not None
        self._say(
            f"Going on at step {entry.step:,}, kept at {at}"
            + (". " if script else f" in cell [{entry.cell}]. ")
            + f"Put back: {', '.join(back[:FEW])}{more}."
            + ("" if script else " To begin at 0: %jaxcluster steps forget")
        )
        if self._own:
            own = sorted(
                {name for one in self._own.values() for name in one} - {RANDOM, ITERABLE, UNBOUND}
            )
            told = [_told(name) for name in own]
            told += ["random states"] if any(RANDOM in one for one in self._own.values()) else []
            ranks = ", ".join(map(str, sorted(self._own)))
            them = "ranks" if len(self._own) > 1 else "rank"
            self._say(f"Each rank had its own {', '.join(told)}: not put back on {them} {ranks}.")

    def _look(self, found: names.Values, frame: types.FrameType) -> functions.Look:
        rank = self._active.runner.rank
        return functions.look(
            found.functions, lambda values: texts_of(values, frame.f_globals, rank)
        )

    def _set(self, settings: list[tuple[str, Any]]) -> None:
        for name, value in settings:
            try:
                self._active.runner.settings.set_here(name.removeprefix(SETTING), value)
            except Exception as error:
                self._say(f"{_told(name)} can't be put back ({type(error).__name__}: {error}).")

    def _changed(self, found: names.Values, frame: types.FrameType) -> dict[str, Any]:
        """What the loop has changed of functions, and of what is set in the process."""
        known: dict[str, str] = {}
        changed: dict[str, Any] = {}
        for name in functions.changed(self._functions, self._look(found, frame)):
            if module := functions.file_of(found.functions[name]):
                known[name] = f"what it keeps has changed, and new processes import {module} again"
            else:
                changed[name] = found.functions[name]
        self._say_left_out(known, ())
        for name, now in self._active.runner.settings.since(self._settings).items():
            before = self._settings.get(name)
            are_both = isinstance(now, Variables) and isinstance(before, Variables)
            if name not in (randomness.NUMPY, randomness.PYTHON):
                changed[SETTING + name] = now.since(before) if are_both else now
        return changed

    def is_wanted(self, step: int) -> bool:
        """Whether all ranks keep this step, at which the loop is. Waits for their word."""
        self._wait_until(lambda: not self._is_busy)
        if self._seconds:
            self._wait_until(lambda: step in self._decided)
            return self._decided.pop(step, False)
        return not self._given_up

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Until the threads have done something, here or elsewhere, or one has given up."""
        look_at = time.monotonic() + LATE_S
        while not is_so() and not self._given_up:
            time.sleep(LOOK_S)
            if time.monotonic() > look_at:
                look_at += LATE_S
                for rank, why in self._agreement.heard(GIVEN_UP).items():
                    self._given_up = True
                    self._say(f"This loop is no longer kept (rank {rank}: {why}).")
                    break

    def take(self, frame: types.FrameType, step: int, iterable_state: Any) -> None:
        """Take a picture of the loop's variables, between two of its iterations."""
        runner, cell = self._active.runner, self._cell
        if self._state is not None:
            found = names.Values({STATE: self._state}, frozenset(), frozenset(), ())
        else:
            found = names.values_of(frame, self._source, self._ours)
        values = dict(found.values)
        if self._state is None:
            values |= self._changed(found, frame)
            values[UNBOUND] = found.unbound
        if iterable_state is not None:
            values[ITERABLE] = iterable_state
        self._is_busy = True
        if runner.journal.restarts != self._restarts:
            # They were brought back in this cell: equal counts tell nothing of what it computed.
            self._taken.put((step, "the ranks have diverged in this cell"))
            return
        end = runner.end_of(cell, "ok")
        try:
            saved = self._checkpoints.take(step, values, frame.f_globals)
        except (CannotSave, OSError) as error:
            self._taken.put((step, str(error) or type(error).__name__))
            return
        self._say_left_out(saved.now.lost, found.data)
        texts, before = texts_in(saved), self._before
        same = {name for name in found.doubtful if texts.get(name, b"") == before.get(name)}
        entry = Entry(
            self._name, step, step, self._source.key, cell.execution_count, time.time(),
            cell.ranks, end, sorted(found.fixed | same), self._loop.run,
        )  # fmt: skip

        def fill() -> tuple[Entry, dict[str, str]]:
            self._active.curve.write_until_now()
            self._checkpoints.fill(saved, entry)
            return entry, saved.now.digests

        self._taken.put((step, fill))

    def _say_left_out(self, lost: dict[str, str], data: tuple[str, ...]) -> None:
        whys = {_told(name): why for name, why in lost.items()}
        whys |= dict.fromkeys(data, "a large array that the loop only reads, it seems")
        whys = {name: why for name, why in whys.items() if name not in self._said}
        if whys:
            self._said |= whys.keys()
            told = ", ".join(f"{name} ({why})" for name, why in sorted(whys.items()))
            self._say(f"Not in what is kept of this loop: {told}.")

    def _say(self, text: str) -> None:
        if self._agreement.leads:
            self._active.say(text)

    # ------------------------------------------------------------------ its thread

    def serve(self) -> None:
        """Until the loop has ended."""
        seconds = self._seconds
        number, due = 0, time.monotonic() + seconds
        while self._is_going:
            if seconds:
                number += 1
                if not self._agree(number, due):
                    continue
            while self._taken.empty() and self._is_going:
                self._loop.wait_for_end(WAIT_S)
                self._active.report()
            self._finish_taken()
            due = time.monotonic() + seconds
        self._finish_taken()

    @property
    def _is_going(self) -> bool:
        return not (self._loop.has_ended or self._given_up)

    def give_up(self, why: str) -> None:
        """Nothing more is kept, on any rank: they hear of it when they wait for this one."""
        self._agreement.tell(GIVEN_UP, why)
        self._given_up = True

    def _agree(self, number: int, due: float) -> bool:
        """Whether all ranks keep a step that is ahead of them."""
        loop, agreement = self._loop, self._agreement
        at, may, go = f"at-{number}", f"may-{number}", f"go-{number}"
        if agreement.leads:
            step = self._propose(due)
            if step is None:
                return False
            agreement.tell(at, str(step))
            agreement.tell(may, str(loop.propose(step)))
            heard = agreement.hear_all(may, lambda: self._is_going)
            is_agreed = heard is not None and {*heard.values()} == {"True"}
            agreement.tell(go, str(is_agreed))
        else:
            if (text := self._hear(at)) is None:
                return False
            step = int(text)
            agreement.tell(may, str(loop.propose(step)))
            is_agreed = self._hear(go) == "True"
        if not is_agreed:  # a rank is further than that
            loop.withdraw(step)
        self._ahead_s = AHEAD_S if is_agreed else min(MOST_AHEAD_S, 2 * self._ahead_s)
        self._decided[step] = is_agreed
        self._told += [at, may, go]
        return is_agreed

    def _propose(self, due: float) -> int | None:
        """A step that no rank has come to yet, when it is time; None: the loop has ended."""
        loop = self._loop
        began, done = time.monotonic(), loop.done
        while (left := due - time.monotonic()) > 0 or loop.done == done:
            if loop.wait_for_end(min(max(left, WAIT_S), REPORT_S)) or self._given_up:
                return None
            self._active.report()
            if loop.done == done:
                began = time.monotonic()  # the first iterations compile
        rate = (loop.done - done) / max(time.monotonic() - began, 1e-6)
        least = 1 if rate < 1 else 2
        return loop.done + min(MOST_AHEAD, max(least, math.ceil(rate * self._ahead_s)))

    def _hear(self, subject: str) -> str | None:
        while self._is_going:
            if (text := self._agreement.hear_leader(subject)) is not None:
                return text
            self._active.report()
        return None

    def _finish_taken(self) -> None:
        """Make the version that was taken whole, and hear whether it is on all ranks."""
        if self._taken.empty():
            return
        step, job = self._taken.get()
        agreement, entry, why = self._agreement, None, ""
        digests: dict[str, str] = {}
        try:
            if isinstance(job, str):
                why = job
            else:
                entry, digests = job()
        except (OSError, CannotSave) as error:
            why = getattr(error, "strerror", None) or str(error)
        del job  # and the arrays with it
        end = vars(entry.end) if entry is not None else {}
        subject = f"whole-{step}"
        agreement.tell(subject, json.dumps([why, end, digests]))
        late = [0.0]

        def go_on() -> bool:
            if not self._is_going:
                late[0] = late[0] or time.monotonic() + LATE_S
            return not late[0] or time.monotonic() < late[0]

        heard = agreement.hear_all(subject, go_on)
        if heard is not None:
            told = {rank: json.loads(text) for rank, text in heard.items()}
            self._settle(step, entry, told)
            for old in self._told:
                agreement.forget(old)
            self._told = [subject]
        self._is_busy = False

    def _settle(self, step: int, entry: Entry | None, told: dict[int, Any]) -> None:
        whys = {rank: why for rank, (why, _, _) in told.items() if why}
        if not whys and entry is not None:
            ends = {rank: wire.cell_ends.CellEnd(**end) for rank, (_, end, _) in told.items()}
            if wire.cell_ends.may_go_on(ends):
                found = [{*digests.items()} for _, _, digests in told.values()]
                self._checkpoints.settle(entry.name, dict(set.intersection(*found)))
                self._active.kept(self._cell.seq, step)
                return
            whys = {self._agreement.rank: "the ranks have not launched the same"}
        if entry is not None:
            self._checkpoints.drop(entry.name)
        rank, why = next(iter(sorted(whys.items())))
        if why not in self._said:
            self._said.add(why)
            self._say(f"Step {step:,} is not kept (rank {rank}: {why}).")


def _told(name: str) -> str:
    """What is kept under a name, as a user calls it."""
    return name.removeprefix(names.LOCAL).removeprefix(SETTING)


def _refill(state: Any, kept: Any) -> None:
    """Have a dict or a list hold what was kept of it."""
    if isinstance(state, dict):
        state.clear()
        state.update(kept)
    else:
        state[:] = kept
