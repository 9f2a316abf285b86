"""What taking a cell back comes to, by what its ranks say, and in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxcluster.wire.ops.state import UndoLooked


@dataclass(frozen=True)
class Undone:
    """What became of it; all names are those of any rank.

    Attributes:
      refused: why it was not done; "" where it was.
      kept: names whose old values are donated, so that what the cell did, which is right, stays.
      back: names that are what they were: bound to their old values, or put back in place.
      made: names that the cell had made; they are unbound.
      lost: names whose old values were donated or deleted; they are unbound.
      failed: names whose values have changed in place and could not be put back.
      unknown: names whose values may have changed in place: what they are.
      by_another: another notebook has done it, and was told what it came to.
    """

    refused: str = ""
    kept: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    by_another: bool = False

    def without(self, names: Iterable[str]) -> Undone:
        """The same, with nothing said of these names."""
        gone = set(names)

        def rest(found: Iterable[str]) -> tuple[str, ...]:
            return tuple(name for name in found if name not in gone)

        return Undone(
            self.refused,
            self.kept,
            rest(self.back),
            rest(self.made),
            rest(self.lost),
            rest(self.failed),
            {name: self.unknown[name] for name in rest(self.unknown)},
            by_another=self.by_another,
        )

    @staticmethod
    def of_dead(assigned: Iterable[str], kept: Iterable[str]) -> Undone:
        """What it came to where all ranks of the cell have died, with all that it had done.

        Args:
          assigned: the names that its source binds.
          kept: all names that there are.
        """
        back = set(assigned) & set(kept)
        return Undone(back=tuple(sorted(back)), made=tuple(sorted(set(assigned) - back)))

    @property
    def in_doubt(self) -> set[str]:
        """Names whose values may be others than before the cell."""
        return {*self.lost, *self.failed, *self.unknown}

    def with_failed(self, names: Iterable[str]) -> Undone:
        """The same, with these names among those that could not be put back."""
        failed = {*self.failed, *names} - set(self.lost)
        return replace(self.without(failed), failed=tuple(sorted(failed)))

    def told(self, cell: str, assigned: Sequence[str] = ()) -> str:
        """In words. Where it was refused: that what the cell ``assigned`` is not to be trusted."""
        if self.kept:
            return (
                f"What {cell[0].lower() + cell[1:]} did is kept: {self.refused}, and an undo "
                f"can't give back what was donated: {', '.join(self.kept)}."
            )
        if self.refused:
            cell = cell[0].lower() + cell[1:]
            if not assigned:
                return f"What {cell} changed is not undone: {self.refused}."
            names = ", ".join(assigned)
            return f"Don't trust what {cell} assigned: {names} (not undone: {self.refused})."
        if self.by_another:
            return f"{cell} is undone, by another notebook."
        parts = []
        if self.back:
            parts.append(f"restored {', '.join(self.back)}")
        if self.made:
            parts.append(f"removed {', '.join(self.made)}")
        did = "; ".join(parts)
        if did:
            text = f"{cell} is undone. {did[0].upper()}{did[1:]}."
        elif self.lost or self.failed or self.unknown:
            text = f"{cell} is undone."
        else:
            text = f"{cell} is undone: it had changed no variable."
        if self.lost:
            text += f" {tell_lost(self.lost)}"
        if self.failed:
            text += f" Changed in place and not put back: {', '.join(self.failed)}."
        if self.unknown:
            told = ", ".join(f"{name} ({what})" for name, what in self.unknown.items())
            text += f" Perhaps changed in place, and not put back: {told}."
        return text


def tell_lost(names: Sequence[str]) -> str:
    """That these names have lost their values, in words."""
    return f"Lost, since donated or deleted: {', '.join(names)}."


def tell_apart(names: Sequence[str], line: int = 1, failed: bool = False) -> str:
    """That names may be left with other values on each rank, in words.

    Args:
      line: where these names begin; 1 where they are all of the cell.
      failed: an error has ended the cell somewhere, and not just a stop.
    """
    how = "have ended this cell" if failed else "were stopped"
    since = f" from line {line} on" if line > 1 else ""
    which = f": {', '.join(names)}" if names else ""
    return (
        f"The ranks {how} in different places, so what {'it' if failed else 'this cell'} assigns"
        f"{since} may be of different steps on them{which}."
    )


def plan_of(looks: Sequence[UndoLooked]) -> Undone:
    """What taking a cell back comes to, by what each rank has said.

    No name is called what it was if it is not known to be: of one that was bound to something else
    the old value may have changed as well.
    """

    def union(key: str) -> set[str]:
        return {name for look in looks for name in getattr(look, key)}

    lost, too_large = union("donated"), union("too_large")
    unknown = {name: what for look in looks for name, what in look.opaque.items()}
    unknown |= dict.fromkeys(too_large, "too large to be watched")
    failed = union("failed") | (union("in_place") & too_large)
    plan = Undone(
        back=tuple(sorted((union("back") | union("in_place")) - lost - unknown.keys())),
        made=tuple(sorted(union("made") - union("back") - lost)),
        lost=tuple(sorted(lost)),
        unknown={name: unknown[name] for name in sorted(unknown) if name not in lost},
    )
    return plan.with_failed(failed)
