"""Where the ranks' copies of themselves are, and what of them can take their place.

Each rank keeps a copy of its variables in its host's memory (``engine.state.copier``). When a rank
has died, and all ranks have a copy of the same moment, that is what comes back: nothing has to be
saved then, and nothing is lost.

With several hosts each copy is also brought on to the next host's memory (``engine.state.mirror``),
and is taken from there where its own host is lost. It is late there. So ranks tell of what changes
their variables besides cells (``World.outside``), and a mirror that may be older is not taken.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.errors import JaxClusterError, LaunchError, UsageError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.records.saved_states import Copies
from jaxcluster.text import format_nbytes, format_seconds, join_reasons
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.state import (
    CopyState,
    Keep,
    Kept,
    KeptStep,
    KeptSteps,
    MirrorState,
    SaveReport,
)

SHARE = 4  # by default a quarter of the machine's free memory may be taken
ASK_S = 10.0
COMING_S = 10.0  # that a copy of a rank that lives gets to be whole
LOOK_S = 0.02


def switch_on(world: World, nbytes: int | None = None) -> int:
    """Have the ranks keep copies; returns the memory that they may take.

    Args:
      nbytes: what they may take together; None: a quarter of what is free, on each host.

    Raises:
      UsageError: their copies would not outlive them, or a host has no memory for them.
    """
    if not world.is_ours:
        raise UsageError(
            "Copies are kept for the process that has started the cluster: it alone can bring them "
            "back.",
            "%jaxcluster copies on   in that notebook",
        )
    switch_off(world)
    ranks, folder = range(world.num_processes), world.processes.copies_folder()
    places = {rank: folder.places_for(rank)[0] for rank in ranks}
    rooms = {rank: room for rank, (_, room) in places.items() if room is not None}
    if missing := sorted(set(ranks) - set(rooms)):
        folder.remove()
        raise UsageError(
            f"Copies are kept in memory, and {name_ranks(missing)} can write to none on their "
            "hosts.",
            "%jaxcluster checkpoint NAME saves the variables to disk.",
        )
    try:
        (mirrors, told), why_not = folder.open_mirrors(), ""
    except LaunchError as error:
        mirrors, told, why_not = {}, {}, error.message.rstrip(".")
    room, number = folder.room_for_each(mirrors), len(ranks) + len(mirrors)
    most = room // SHARE if nbytes is None else min(nbytes // number, room)
    paths = {rank: path for rank, (path, _) in places.items()}
    world.copies = Copies(folder, paths, most * number, mirrors, why_not)
    each = {
        rank: Keep(path, most, folder.held_by(path), told.get(rank)) for rank, path in paths.items()
    }
    try:
        world.ask(ranks, each, timeout_s=ASK_S)
    except BaseException:
        switch_off(world)
        raise
    return world.copies.nbytes


def switch_off(world: World) -> None:
    """Have the ranks keep no copies; what they have is removed."""
    if (copies := world.copies) is not None:
        world.copies = None
        with contextlib.suppress(JaxClusterError):
            world.ask(sorted(set(world.link.ranks) - set(world.dead)), Keep(""))
        copies.folder.remove()


def tell(world: World, now: float) -> str:
    """How much of the ranks' variables is copied, and what is not; "" where they keep no copies."""
    if world.copies is None:
        return ""
    told = replies(world.link.gather(range(world.num_processes), Kept(), timeout_s=ASK_S))
    text = f"Copies: {_tell_size(told, ' of variables', now)}"
    text += _tell_mirrors(world.copies, told, now)
    left_out = {name: why for one in told.values() for name, why in one.left_out.items()}
    return f"{text}. Not in them: {join_reasons(left_out)}." if left_out else f"{text}."


def _tell_size(told: Mapping[int, CopyState | MirrorState], of_what: str, now: float) -> str:
    """How much these are, how old, and who has none of now."""
    behind = [rank for rank, one in told.items() if not one.is_current]
    ages = [now - one.at for one in told.values() if one.is_current]
    text = f"{format_nbytes(sum(one.nbytes for one in told.values()))}{of_what}"
    text += f", {format_seconds(max(0.0, *ages))} old" if ages else ""
    if not behind:
        return text
    why = "; ".join(sorted({told[rank].behind for rank in behind} - {""}))
    have = "has" if len(behind) == 1 else "have"
    return f"{text}; {name_ranks(behind)} {have} none of now" + (f" ({why})" if why else "")


def _tell_mirrors(copies: Copies, told: Mapping[int, CopyState], now: float) -> str:
    """How much is on another host, too; "" where ranks are on one."""
    if copies.why_not:
        return (
            f". None is on another host ({copies.why_not}): a host's loss takes its ranks' copies"
        )
    mirrors = {rank: one.mirror for rank, one in told.items() if one.mirror is not None}
    if not mirrors:
        return ""
    return f". On another host, too: {_tell_size(mirrors, '', now)}"


def tell_steps(world: World, forget: bool = False) -> str:
    """What all ranks have kept of the last loop that did not come to its end.

    Args:
      forget: have them keep nothing of it from now on.

    Raises:
      RankError: a rank gave no answer.
    """
    answers = world.ask(range(world.num_processes), KeptSteps(forget), timeout_s=ASK_S)
    found: dict[tuple[str, int], dict[int, KeptStep]] = {}
    for rank, steps in replies(answers).items():
        for one in steps:
            found.setdefault((one.loop, one.number), {})[rank] = one
    whole = []
    for mine in found.values():
        last = next(iter(mine.values()))
        over = {rank: one.over for rank, one in mine.items() if one.over is not None}
        is_over = len(over) == len(mine) and wire.cell_ends.may_go_on(over)
        if len(mine) == len(last.ranks) and not is_over:
            whole.append(last)
    if not whole:
        return "No loop is kept."
    last = max(whole, key=lambda one: one.at)
    at = time.strftime("%H:%M", time.localtime(last.at))
    return f"Step {last.step:,} of cell [{last.cell}] is kept, from {at}."


# --------------------------------------------------------------------------- what comes back


@dataclass(frozen=True)
class Found:
    """The copies that are of the moment that is to come back.

    Attributes:
      copies: where they are.
      reports: what their ranks say of them.
      is_whole: all ranks have one, and nothing is left out of any.
      is_uneven: one is of before a cell that the living ranks have taken back themselves, by which
        these may have lost what it has.
    """

    copies: Copies | None = None
    reports: dict[int, SaveReport] = field(default_factory=dict)
    is_whole: bool = False
    is_uneven: bool = False


def find(
    world: World,
    cells: Sequence[CellRecord],
    last: Mapping[int, int] | None,
    undone: Mapping[int, int],
    check: Callable[[], None],
) -> Found:
    """The copies of ranks that can be restored.

    Args:
      cells: the last ones that were sent.
      last: the seq of the last cell that any notebook has sent to each rank; None: nobody knows.
      undone: by rank the seq of the first cell that is taken back on it.
      check: called while a copy is waited for that is being written; may raise.
    """
    copies = world.copies
    if copies is None or not world.dead:
        return Found()
    if last is None:
        last = _heard_last(world, copies, cells)
    missed = _missed(world, cells, last)
    versions, mirrored = _versions(world, copies, cells, last, undone, missed, check)
    reports = {}
    for rank, version in versions.items():
        if version:
            with contextlib.suppress(OSError, ValueError):
                reports[rank] = copies.report(rank, version, rank in mirrored)
    if not reports:
        return Found()
    is_whole = reports.keys() == versions.keys()
    is_whole = is_whole and not any(report.left_out for report in reports.values())
    return Found(copies, reports, is_whole, bool(missed))


def _versions(
    world: World,
    copies: Copies,
    cells: Sequence[CellRecord],
    last: Mapping[int, int],
    undone: Mapping[int, int],
    missed: Mapping[int, int],
    check: Callable[[], None],
) -> tuple[dict[int, int], set[int]]:
    """The version of each rank's copy that is to come back, 0: it has none; and whose are mirrors'.

    Those are of ranks whose hosts are lost.
    """
    first = world.record.last_seq
    taken = {**undone}
    for rank, seq in missed.items():
        taken[rank] = min(seq, taken.get(rank, seq))
    deadline = time.monotonic() + COMING_S
    while True:
        mirrored = {r for r in range(world.num_processes) if copies.folder.is_gone(r)}
        own = sorted(set(range(world.num_processes)) - mirrored)
        marks = {rank: copies.mark(rank) for rank in own}
        found = {
            rank: mark.version_for(taken.get(rank, 0), last.get(rank, 0), first)
            for rank, mark in marks.items()
        }
        late = [r for r in own if not found[r] and r not in world.dead and marks[r].coming]
        lacking = [r for r in own if not found[r] and r not in late]
        if lacking or not late or time.monotonic() > deadline:
            break
        check()
        time.sleep(LOOK_S)
    before = {r: n for c in cells for r, n in c.after.items() if c.seq == taken.get(r)}
    for rank in sorted(mirrored):
        since = wire.Since(world.outside.get(rank, (0, 0))[1], tuple(marks.values()))
        is_undone = rank in taken
        after = before.get(rank, -1) if is_undone else last.get(rank, 0)
        mark = copies.mark(rank, is_mirror=True)
        found[rank] = mark.mirror_for(taken.get(rank, 0), after, first, since)
    return found, mirrored


def _missed(world: World, cells: Sequence[CellRecord], last: Mapping[int, int]) -> dict[int, int]:
    """By dead rank the first cell that was taken back on the others: its copy still has it."""
    missed = [(rank, cell.seq) for cell in cells if cell.undone for rank in cell.missed]
    others = max(world.taken_back.values(), default=0)  # by another notebook
    for rank, seq in last.items():
        ended = world.told[rank].seq if rank in world.told else 0
        if others and ended <= others <= seq and world.taken_back.get(rank) != others:
            missed.append((rank, others))
    found: dict[int, int] = {}
    for rank, seq in missed:
        if rank in world.dead:
            found[rank] = min(seq, found.get(rank, seq))
    return found


def _heard_last(world: World, copies: Copies, cells: Sequence[CellRecord]) -> Mapping[int, int]:
    """For each rank the last cell that any notebook has sent to it: the first host is lost."""
    if not copies.mirrors:
        return {}
    # Ranks with mirrors tell of other notebooks' cells.
    found = {rank: begun for rank, (begun, _) in world.outside.items()}
    for cell in cells:
        for rank in cell.ranks:
            found[rank] = max(found.get(rank, 0), cell.seq)
    return found
