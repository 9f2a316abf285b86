"""The ranks' variables: saved by all, and had again by all or by none.

They are saved for new processes, on disk under a name, and at the end of each cell, if wanted. Each
rank reads what was saved and makes the values first. Only when all have them, all bind them. A
rank's side of it is ``rank.state``.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxcluster import wire
from jaxcluster.cluster import stopbutton
from jaxcluster.cluster.world import World
from jaxcluster.errors import (
    CellInterrupted,
    JaxClusterError,
    RankDied,
    RankError,
    RecoveryError,
    UsageError,
)
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.states import Folder, Kept
from jaxcluster.ranks import name_ranks, tell_each
from jaxcluster.text import format_nbytes, plural
from jaxcluster.wire.link import Sink, replies
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.saving import Bind, Checkpoint, Drop, Load, Made, Save, Saved, SavePlace

if TYPE_CHECKING:
    from jaxcluster.cluster.handle import Cluster

Check = Callable[[], None]  # raises where what goes on is to end
R = TypeVar("R")

TIMEOUT_S = 600.0  # a large copy takes its time; the stop button ends it sooner
FEW = 8  # lost names that are listed with reasons
NAME = "a checkpoint's name"
INDEX = "checkpoint.json"  # what each rank says of its files
MOST_NBYTES = 4 << 30  # that the ranks may take together, two copies of what they have
SHARE = 10  # after a long save, the next one waits so many times its duration
LONG_S = 1.0
UNTOUCHED = "Nothing was restored: all ranks keep the variables they have."


def tell_lost(lost: Mapping[str, str]) -> str:
    """Each lost name with its reason; of many, the first."""
    return _few([f"{name} ({why})" for name, why in sorted(lost.items())])


def _few(told: Sequence[str]) -> str:
    more = len(told) - FEW
    return ", ".join(told[:FEW]) + (f" and {more} more" if more > 0 else "")


def save(world: World, check: Check, *, compare: bool) -> Kept:
    """Have each living rank write its variables, even while its main thread is busy; ends nothing.

    Args:
      compare: there will be another number of ranks.

    Raises:
      RecoveryError: a rank that lives could not be saved, and why.
    """
    folder = world.processes.state_folder()
    try:
        alive = [rank for rank in range(world.num_processes) if rank not in world.dead]
        each = {rank: Save(folder.places_for(rank), compare) for rank in alive}
        answers = world.link.gather(each, each, timeout_s=TIMEOUT_S, check=check)
        check()
        saved = replies(answers)
        missing = [r for r in alive if r not in saved and r not in world.dead]
        failed = {r: answers[r].why if r in answers else "no answer" for r in missing}
        if failed:
            raise RecoveryError(
                f"The variables of {name_ranks(failed)} could not be saved, so nothing was ended "
                f"or lost ({tell_each(failed)}).",
                f"{folder.hint}\n%jaxcluster restart --clean gives you empty ranks instead.",
            )
        had = {r: frozenset(names) for r, names in world.names.items() if r not in saved}
        return Kept(folder, saved, world.num_processes, had)
    except BaseException:
        folder.remove()
        raise


def forget(of: Cluster | Autosave) -> None:
    """Remove what it has kept: new ranks never had its values. No save is in progress."""
    kept, of.kept = of.kept, None
    if kept is not None:
        kept.folder.remove()


def read(
    world: World, each: Mapping[int, Callable[..., Operation[R]]], check: Check, **options: Any
) -> tuple[dict[int, R], Callable[..., dict[int, Made]]]:
    """Have ranks read values; returns what each says of it, and what has all bind them.

    The latter takes the names that each rank has lost, and why.

    Args:
      each: makes each rank's request, with a token and its place among the cells.
      **options: see ``World.ask_in_turn``.

    Raises:
      JaxClusterError: a rank could not; all drop what they have read.
    """
    token = uuid.uuid4().hex
    asked: dict[str, Any] = {"timeout_s": TIMEOUT_S, "check": check}
    requests = {rank: partial(make, token=token) for rank, make in each.items()}
    try:
        made = replies(world.ask_in_turn(requests, **asked, **options))
    except BaseException:
        world.link.request_each(dict.fromkeys(each, Drop(token)), sink=Sink())
        raise

    def bind(lost: Mapping[int, dict[str, str]], is_final: bool = False) -> dict[int, Made]:
        wanted = {rank: partial(Bind, token=token, lost=lost[rank]) for rank in lost}
        bound = replies(world.ask_in_turn(wanted, is_final=is_final, **asked))
        for rank, one in bound.items():
            names = world.names.get(rank, set()) | {*one.names}
            world.names[rank] = names - lost[rank].keys()
        return bound

    return made, bind


def load(
    world: World,
    kept: Kept,
    check: Check,
    when: str,
    made_by: Mapping[str, int] | None = None,
    autosaved: tuple[Kept, int] | None = None,
) -> tuple[int, list[str]]:
    """Have the ranks bind what was saved, all or none.

    Returns: how many names came back, and in sentences what was lost, and how to make it again.

    Args:
      check: called now and then meanwhile.
      when: names that are lost were lost then, as in "in cell [3]".
      made_by: the cells that have made them.
      autosaved: an autosave and its cell's number. Ranks that could not be saved get their values
        from it.

    Raises:
      JaxClusterError: a rank could not; none has bound anything, or the message says so.
    """
    reports, before = kept.reports, kept.num_processes
    is_resized, made_by = before != world.num_processes, made_by or {}
    each = {}
    for rank in range(world.num_processes):
        own = rank if rank in reports else None
        files = kept.folder.bring(rank, reports if is_resized or own is None else [rank], reports)
        each[rank] = partial(Load, files=files, own=own, num_processes=before)
    made, bind = read(world, each, check)
    lost = lost_on(reports, made, kept.had)
    again = {name: f"; run cell [{number}] again" for name, number in made_by.items()}
    earlier = {name: why for saved in reports.values() for name, why in saved.unbound.items()}
    reasons = {
        rank: (reports[rank].unbound if rank in reports else earlier)
        | {name: f"was lost {when} ({why}){again.get(name, '')}" for name, why in by_name.items()}
        for rank, by_name in lost.items()
    }
    bound = bind(reasons).values()
    back = {name for one in bound for name in one.names}
    gone = {name: why for by_name in lost.values() for name, why in by_name.items()}
    settings = [*(saved.left for saved in reports.values()), *(one.lost for one in bound)]
    left = {name: why for one in settings for name, why in one.items()}
    replaced = [] if is_resized else [rank for rank in each if rank not in reports]
    filled = _fill_in(world, autosaved[0], replaced, check) if autosaved and replaced else None
    found, had = list[str](), filled or set()
    if kept.gone:
        found.append(f"The saved variables are gone: {kept.why_gone}.")
    whose = name_ranks(replaced) if replaced else "some ranks"
    if autosaved and filled is not None:
        found.append(
            f"Values of {whose}, and arrays that span processes, are those of the end of cell "
            f"[{autosaved[1]}]."
        )
    if missing := sorted((back & gone.keys()) - had):
        found.append(f"Missing on {whose}: {_few(missing)}.")
    if nowhere := {n: why for n, why in (gone | left).items() if n in left or n not in back | had}:
        found.append(f"Lost: {tell_lost(nowhere)}.")
    wanted = {*missing, *nowhere}
    if cells := sorted({number for name, number in made_by.items() if name in wanted}):
        which = ", ".join(f"[{cell}]" for cell in cells)
        found.append(f"Run cell{'s' * (len(cells) > 1)} {which} to make them again.")
    if wanted and replaced and filled is None:
        found.append("%jaxcluster autosave on saves each rank's variables from now on.")
    return len(back | had), found


def _fill_in(world: World, saved: Kept, replaced: Sequence[int], check: Check) -> set[str] | None:
    """Give ranks that were replaced what they had at the end of a cell; returns these names.

    Arrays that span processes are those of that end on all ranks: their parts must be of one
    moment. All other values of the other ranks stay. None: it can't be read.
    """
    saved = saved.looked_at()
    reports, ranks = saved.reports, range(world.num_processes)
    if len(reports) != len(ranks):
        return None
    spanning = {name for report in reports.values() for name in report.spanning}
    each = {
        rank: partial(
            Load,
            files=saved.folder.bring(rank, [rank], reports),
            own=rank,
            num_processes=saved.num_processes,
            only=None if rank in replaced else sorted(spanning),
        )
        for rank in ranks
    }
    try:
        made, bind = read(world, each, check)
    except RankDied:
        raise
    except RankError:
        return None
    lost = {name: why for one in made.values() for name, why in one.lost.items()}
    torn = {name: f"was lost ({why})" for name, why in lost.items() if name in spanning}
    bound = bind(dict.fromkeys(each, torn))
    return {name for rank in replaced for name in bound[rank].names}


def lost_on(
    reports: Mapping[int, Saved],
    loaded: Mapping[int, Made],
    unsaved: Mapping[int, frozenset[str]],
) -> dict[int, dict[str, str]]:
    """By rank the names that it does not have again, and why. Pure.

    An array that spans processes is lost on all of them if any can't have its part. All other
    values are each rank's own.

    Args:
      unsaved: the names that other ranks had, which could not be saved.
    """
    had = {name for report in reports.values() for name in report.kept}
    spanning = {name for report in reports.values() for name in report.spanning}
    gone = "parts of it were on a rank that is gone"
    torn = {
        name: one.lost.get(name, gone)
        for one in loaded.values()
        for name in spanning
        if name not in one.names
    }
    alone = {
        name: f"only {name_ranks([r for r in unsaved if name in unsaved[r]])} had it"
        if reports
        else "no rank survived"
        for name in set().union(*unsaved.values()) - had
    }
    found = {}
    for rank, one in loaded.items():
        not_saved = reports[rank].lost if rank in reports else {}
        own = {n: one.lost.get(n, "each rank had its own") for n in had if n not in one.names}
        found[rank] = alone | own | not_saved | torn
    return found


# --------------------------------------------------------------------------- checkpoints


def checkpoint(world: World, name: str, folder: str | Path) -> str:
    """See ``Cluster.checkpoint``. An older one of that name is replaced once this one is whole."""
    registry.check_name(name, NAME, "%jaxcluster checkpoint before-tuning")
    final = Path(folder).resolve() / name
    draft, old = (final.with_name(f".{name}.{which}") for which in ("part", "old"))
    for left in (draft, old):  # by a process that has ended
        shutil.rmtree(left, ignore_errors=True)
    try:
        draft.mkdir(0o700, parents=True)
        make = partial(Checkpoint, places=[SavePlace(str(draft))], compare=True)
        each = dict.fromkeys(range(world.num_processes), make)
        reports = replies(world.ask_in_turn(each, timeout_s=TIMEOUT_S))
        index = {str(rank): wire.plain(report) for rank, report in sorted(reports.items())}
        (draft / INDEX).write_text(json.dumps(index))
        (draft / INDEX).chmod(0o600)
        if final.is_dir():
            final.rename(old)
        draft.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise RecoveryError(f"{final} can't be written ({error.strerror}).") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    kept = plural(len({name for report in reports.values() for name in report.kept}), "variable")
    lost = {n: why for one in reports.values() for n, why in (one.lost | one.left).items()}
    size = format_nbytes(sum(report.nbytes for report in reports.values()))
    line = f"Saved {kept} of {plural(len(reports), 'rank')} ({size}) in {final}."
    return f"{line} Not saved: {tell_lost(lost)}." if lost else line


def restore(world: World, name: str, folder: str | Path) -> str:
    """See ``Cluster.restore``."""
    registry.check_name(name, NAME, "%jaxcluster restore before-tuning")
    path = Path(folder).resolve() / name
    if not path.is_dir():
        others = ", ".join(sorted(one.name for one in path.parent.glob("[!.]*")))
        there = f"There are: {others}." if others else "%jaxcluster checkpoint NAME saves one."
        raise UsageError(f"There is no checkpoint {name!r} in {path.parent}.", there)
    reports = _read_index(path)
    kept = Kept(Folder(path), reports, len(reports))
    return restore_from(world, kept, f"when {name!r} was restored")


def restore_from(world: World, kept: Kept, when: str) -> str:
    """Bind what was saved on all ranks, or on none; returns in a line what came back.

    Args:
      when: names that are lost were lost then.

    Raises:
      CellInterrupted: stop was pressed before any rank has bound a name.
    """
    with stopbutton.held() as presses:

        def check() -> None:
            world.check()
            if presses:
                raise CellInterrupted(f"Stopped. {UNTOUCHED}")

        count, details = load(world, kept, check, when)
    ranks = plural(world.num_processes, "rank")
    return " ".join([f"Restored {plural(count, 'variable')} on {ranks}.", *details])


def _read_index(path: Path) -> dict[int, Saved]:
    """The ranks' reports of their files.

    Raises:
      RecoveryError: it can't be read, or others could have written it: pickles run code.
    """
    try:
        for one in (path, *path.iterdir()):
            found = one.stat()
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
                raise RecoveryError(
                    f"Other users can write {one}, and a checkpoint can run any code. {UNTOUCHED}",
                    f"If you trust it: chmod -R go-w {path}",
                )
        index = json.loads((path / INDEX).read_text())
        return {int(rank): wire.parse(Saved, one, INDEX) for rank, one in index.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RecoveryError(f"{path} can't be read ({error}). {UNTOUCHED}") from None


# --------------------------------------------------------------------------- after each cell


class Autosave:
    """The saves of one cluster.

    Attributes:
      is_on: whether there are any.
      kept: the last one that is whole; ``cell``: the number of the cell at whose end it was.
      why_not: why the last cell's end was not saved; "" where it was.
    """

    def __init__(self) -> None:
        self.is_on, self.cell, self.why_not = False, 0, ""
        self.kept: Kept | None = None
        self._thread = threading.Thread()
        self._not_before = 0.0
        self._is_cancelled = False

    def after(self, world: World, cell: int) -> None:
        """Save the end of a cell, on a thread; returns when its place among the cells is taken."""
        if not self.is_on or world.is_broken:
            return
        if time.monotonic() < self._not_before:
            self.why_not = "the last save took long, so this one was skipped"
            return
        self.wait()
        sent = threading.Event()
        save = partial(self._save, world, cell, sent.set)
        self._thread = threading.Thread(target=save, name="jaxcluster-autosave", daemon=True)
        self._thread.start()
        sent.wait(TIMEOUT_S)

    def cancel(self) -> None:
        """Give up a save that goes on: the ranks are about to end."""
        self._is_cancelled = True
        self.wait()
        self._is_cancelled = False

    def wait(self) -> None:
        """Wait until a save in progress has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _save(self, world: World, cell: int, sent: Callable[[], None]) -> None:
        """Make a new copy; the one before stays until this one is whole."""
        began, before, each = time.monotonic(), self.kept, {}
        most = MOST_NBYTES // 2 // world.num_processes

        def check() -> None:
            sent()
            if world.is_broken or self._is_cancelled:
                raise RecoveryError("the save was cancelled, because the ranks ended")

        spare: Folder | None = None
        try:
            spare = folder = world.processes.state_folder()
            for rank in range(world.num_processes):
                rooms = [
                    SavePlace(one.folder, most if one.room is None else min(most, one.room // 2))
                    for one in folder.places_for(rank)
                ]
                each[rank] = partial(Checkpoint, places=rooms)
            answers = world.ask_in_turn(each, timeout_s=TIMEOUT_S, check=check)
            self.kept = Kept(folder, replies(answers), world.num_processes)
            self.cell, self.why_not, spare = cell, "", before.folder if before else None
        except JaxClusterError as error:  # a rank has died, or there is no room
            self.why_not = error.message
        finally:
            if spare is not None:
                spare.remove()
            sent()
            took = time.monotonic() - began
            self._not_before = time.monotonic() + SHARE * took if took > LONG_S else 0.0
