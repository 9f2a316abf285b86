"""A cell's end: are the ranks in lockstep, what was done about it, and may what it did stay?"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxcluster import wire
from jaxcluster.cluster import recovery, silence, undoing
from jaxcluster.model import findings, health, lockstep, notices, verdict
from jaxcluster.ranks import begin_ranks, name_ranks

if TYPE_CHECKING:
    from jaxcluster.cluster.running import RunningCell


class Settling:
    """Settles one cell.

    Attributes:
      recovered: what was done about what was wrong; "" while nothing was.
    """

    def __init__(self, cell: RunningCell) -> None:
        self._cell = cell
        self.recovered = ""
        self._undone: undoing.Undone | None = None  # what became of what it did
        self._unsettled = False  # the ranks are being brought back, and not yet found in lockstep
        self._killed: dict[int, str] = {}  # ranks whose processes were ended, and why

    def settle(self) -> None:
        """After the cell: are the ranks in lockstep, and may what it assigned stay?"""
        cell = self._cell
        world, record = cell.world, cell.record
        world.counts.update({r: reply.launches for r, reply in record.replies.items()})
        if cell.is_last:
            cell.silent = ()  # the run's end is theirs
            if record.ok and not (world.dead or lockstep.in_lockstep(world.counts)):
                self._look_at_uneven_end()
            return
        waited = cell.watch.answer_s >= health.ANSWER_S
        can_end = bool(cell.silent) and waited and not (cell.cluster.closed or world.dead)
        if can_end and self._end_hung() and not world.dead:
            return
        if cell.cluster.closed:
            return
        ended = not (cell.replay or cell.looks.report or cell.silent or cell.watch.interrupted)
        whole = ended and lockstep.in_lockstep(world.counts) and not world.excused
        if ended and not whole and not world.dead:
            whole = not self._look_at_uneven_end()
        if not (world.dead or whole or self._is_left_to_others()):
            self._bring_back()
        if self._was_aborted():
            self._take_back()

    def _is_left_to_others(self) -> bool:
        """Whether nothing but an interrupt speaks for a check, and other cells run on the ranks."""
        cell = self._cell
        ran = cell.replay is not None and cell.replay.ran
        if cell.looks.report or cell.silent or ran or not lockstep.in_lockstep(cell.world.counts):
            return False
        return any(s.state == "running" or s.queued for s in cell.world.status())

    def _bring_back(self) -> None:
        """Say why the ranks have diverged, and bring them back."""
        cell = self._cell
        cluster, world = cell.cluster, cell.world
        aborted_at = time.monotonic() if cell.aborted_at is None else cell.aborted_at
        names = recovery.assigned_names(cell.record.source)
        reports = recovery.ask_reports(world.link, names)
        cell.looks.find(reports)
        replay = cell.replay or cell.new_replay()
        replay.is_patient = cell.looks.report is not None
        self._unsettled = True
        if cell.looks.report is not None and cell.looks.report.is_hopeless:
            how, replay.stuck = "", "they wait for each other"
        else:
            how = recovery.bring_back(world.turns, world.link, replay)
        self._unsettled = False
        if how:
            world.excused.clear()
        if how == "replayed":
            world.counts.update(replay.counts)
            if cell.looks.report is not None or replay.ran:
                seconds = time.monotonic() - aborted_at
                self.recovered = replay.told(seconds, self._say_undone())
            cell.silent = ()
        elif replay.is_under_way and cell.looks.report is None:
            cell.looks.excuse(
                reports
            )  # a thread of the user's launches on: nobody can tell more now
        elif how == "completed":
            world.counts.clear()
            self.recovered = (
                "All of them have completed, and the ranks are in lockstep again. Don't trust what "
                f"this cell printed. {self._say_undone()}"
            )
        elif not any(self._is_in_another_cell(s) for s in world.status()):
            # Else that cell's end will settle it.
            world.divergence = cell.looks.report or findings.unexplained(replay.stuck)
            cluster.recovered = ""
            self._take_back()
            if cluster.recovery == "auto":
                why = f"They could not be brought back in place: {replay.stuck}."
                self.recovered = self._recover(str(cell.looks.report or ""), why)
                cell.silent = ()

    def _was_aborted(self) -> bool:
        """Whether it ended in a way that nobody can have meant, on some of its ranks."""
        cell = self._cell
        errors = cell.record.errors.values()
        return (
            cell.looks.report is not None
            or cell.watch.why == "timeout"
            or any(one.died for one in cell.record.records.values())
            or any(error.heard is not None for error in errors)  # strict mode
        )

    def _take_back(self) -> undoing.Undone:
        """Undo the cell on all its ranks, once."""
        if self._undone is None:
            record, world = self._cell.record, self._cell.world
            alive = [rank for rank in record.ranks if rank not in world.dead]
            self._undone = undoing.undo(
                world.link, world.turns, record.seq, record.execution_count, alive
            )
        return self._undone

    def _say_undone(self, told: Iterable[str] = ()) -> str:
        """What became of what the cell did. Of names that are ``told`` it was said."""
        names = recovery.assigned_names(self._cell.record.source)
        return (
            self._take_back()
            .without(told)
            .told("This cell", [name for name in names if name not in set(told)])
        )

    def _is_in_another_cell(self, state: wire.RankState) -> bool:
        """A later one; or one before it, where this one was stopped before its turn."""
        seq = self._cell.record.seq
        return state.seq > seq or state.queued > 0 or (state.state == "running" and state.seq < seq)

    def leave_unsettled(self) -> None:
        """Stop was pressed before the ranks were known to be in lockstep: no cell may run now."""
        cell = self._cell
        world = cell.world
        settled = lockstep.in_lockstep(world.counts) and not self._unsettled
        if not (cell.cluster.closed or world.dead or settled):
            why = "the stop button ended their replay"
            world.divergence = world.divergence or cell.looks.report or findings.unexplained(why)

    def _recover(self, told: str, said: str = "") -> str:
        """What was done about a death or a hang for good, and about what the cell did."""
        cell = self._cell
        if cell.is_last:
            return said
        undone = self._take_back()  # before its values are saved
        when = f"in cell [{cell.record.execution_count}]"
        line = cell.cluster.recover(said, told=told, when=when, undo=not undone.refused)
        restored = cell.cluster.restored
        if restored is not None and str(restored) in line:
            return f"{line} {self._say_undone({*restored.older, *restored.lost})}"
        return f"{line} {self._say_undone()}"

    def _look_at_uneven_end(self) -> bool:
        """The ranks have ended the cell with uneven counts: whether something is wrong with it.

        Uneven alone says nothing: a thread may launch on all of them, or another cell may run. So
        the ranks are looked at again until it is certain, or even, or a thread's business.
        """
        cell = self._cell
        world, record = cell.world, cell.record
        names = recovery.assigned_names(record.source)
        deadline = time.monotonic() + recovery.SETTLE_S
        while (now := time.monotonic()) < deadline:
            reports = recovery.ask_reports(world.link, names)
            cell.looks.find(reports)
            if cell.looks.report is not None:
                return True
            counts = {rank: report.state.launches for rank, report in reports.items()}
            if len(reports) == len(world.link.ranks) and lockstep.in_lockstep(counts):
                world.counts.update(counts)
                return False
            if (suspicion := cell.looks.suspicion) is not None:
                if not suspicion.has("moment") and not suspicion.has("cell"):
                    if suspicion.has("background") and cell.looks.excuse(reports):
                        cell.looks.find(reports)  # a cell that was queued may have made it already
                        return cell.looks.report is not None
                elif suspicion.has("cell"):
                    deadline = now + recovery.SETTLE_S
                    cell.say_waiting(reports)
            elif cell.looks.foreign_since is not None:
                return False  # the other cell's notebook sees to it
            cell.rest()
        return True

    def end(self) -> verdict.Ending:
        """How the cell has ended, once what can be recovered is."""
        cell = self._cell
        record, watch = cell.record, cell.watch
        death = self._recover_from_death()
        ending = verdict.Ending(
            record, watch.why, watch.interrupted, watch.timeout_s, watch.grace_s,
            cell.world.hosts, death,
        )  # fmt: skip
        if death is not None:
            return ending
        world = cell.world
        return dataclasses.replace(
            ending,
            silent=cell.silent,
            unanswered=cell.say_silent() if cell.silent else (),
            report=cell.looks.report,
            is_diverged=world.divergence is not None,
            recovered=self.recovered,
            undone=self._say_undone() if self._undone is not None and not self.recovered else "",
            places=cell.places,
            explain_missing=world.explain_missing,
        )

    def _recover_from_death(self) -> verdict.Death | None:
        """Where ranks died, or were ended since they hung: what was done about it."""
        cell = self._cell
        record, hosts = cell.record, cell.world.hosts
        died = {r: rec.died for r, rec in record.records.items() if rec.died}
        if self._killed:
            told = (
                f"Cell [{record.execution_count}] was interrupted, and "
                f"{name_ranks(self._killed, hosts)} did not answer for "
                f"{cell.watch.answer_s:g} s, so it was ended."
            )
            whys = [f"Rank {rank} {why}." for rank, why in sorted(self._killed.items())]
            told = "\n".join([told, *whys])
            return verdict.Death(told, self._recover(told), sorted(self._killed))
        if died:
            rank, why = next(iter(sorted(died.items())))
            log_end = cell.world.say_log_end(rank)
            # Behind a cut they may live, and go on with the cell.
            what = "died" if not cell.world.unreachable else "could not be reached any more"
            told = f"{begin_ranks(died, hosts)} {what} in cell [{record.execution_count}]: {why}."
            lost = {r: y for r, y in died.items() if cell.world.dead.get(r, {}).get("host_lost")}
            if lost and cell.on_notice is not None:  # what follows can take a minute
                cell.on_notice(notices.lost_hosts(lost))
            return verdict.Death(told, self._recover(told, log_end), sorted(died))
        return None

    def _end_hung(self) -> bool:
        """Rank processes that will never answer are ended, as dead ones are, where that is wanted.

        On a busy machine it is waited until it is clear which these are. Returns whether there are
        such ranks: nothing can be settled with them.
        """
        cell = self._cell
        cluster, world = cell.cluster, cell.world
        while True:
            silent = silence.silent_ranks(world.link, cell.silent)
            whys = cell.silences.why(sorted(silent))
            if not any(why.may_pass for why in whys.values()):
                break
            cell.rest()
        hung = {rank: why.message for rank, why in whys.items() if why.is_hung}
        if cluster.recovery == "auto" and cluster.can_restart and not cell.left_early:
            for rank, why in hung.items():
                cell.record.records[rank].died = self._killed[rank] = why
                world.end_rank(rank, f"ended by jaxcluster: it {why}")
        return bool(hung)
