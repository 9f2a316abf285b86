"""What the ranks of one cluster have saved, brought back on another number of ranks.

Each rank reads the files of all: an array that spans processes is put together from the parts that
they have. A mesh of all devices becomes one of the devices that there are now, with the same axis
names. A rank that was there before gets its own values. A new one gets those that were equal on
all, and numbers that were each rank's own number.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxcluster.engine.arrays import bounds
from jaxcluster.engine.digests import LITERAL
from jaxcluster.engine.state.loading import Loaded, Loader, load
from jaxcluster.engine.state.saved import (
    CannotRestore,
    Generation,
    Glance,
    Saved,
    SavedArray,
)
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.state.unplaced import Unplaced
from jaxcluster.wire.ops.state import Chosen

Bounds = Sequence[Sequence[int]]


def generation_of(saved: Saved, choice: Chosen) -> Generation:
    """A rank's values: those of now, and those before the cell of ``choice.older``."""
    now, before = saved.now, saved.before
    older = {*choice.older}.intersection([*before.names, *before.lost, *saved.absent])
    out = older | {*choice.absent}
    if not out:
        return now

    def mixed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: one for name, one in new.items() if name not in out}
        return found | {name: one for name, one in old.items() if name in older}

    return Generation(
        mixed(now.names, before.names),
        mixed(now.lost, before.lost),
        mixed(now.digests, before.digests),
        texts=mixed(now.texts, before.texts),
    )


class Unfit(CannotRestore):
    """A mesh, or an array on one, does not fit the devices that there are now."""


class Unclear(CannotRestore):
    """A mesh fits in several ways, or not as it was asked for: somebody must choose."""

    def __init__(self, message: str, way: str) -> None:
        super().__init__(message)
        self.hint = f"Choose the axes' sizes, for example --mesh {way}"


def fit_mesh(
    shape: Sequence[int], axes: Sequence[str], devices: int, wanted: Mapping[str, int]
) -> list[int]:
    """The shape of a mesh of all devices where there are so many. Pure.

    The axis that changes is the one that ``wanted`` names, or the only one that can.

    Raises:
      Unclear: several can, or what is wanted does not come to so many devices.
      Unfit: none can.
    """
    named = {name: size for name, size in wanted.items() if name in axes}
    mesh = f"mesh {_tell(axes, shape)}"
    if named:
        chosen = [named.get(name, size) for name, size in zip(axes, shape, strict=True)]
        if math.prod(chosen) != devices:
            raise Unclear(
                f"The {mesh} would become {_tell(axes, chosen)}, which are not {devices} devices.",
                _tell(axes, [devices, *[1] * (len(axes) - 1)]),
            )
        return chosen
    if math.prod(shape) == devices:
        return list(shape)
    fits = []
    for at, size in enumerate(shape):
        others = math.prod(shape) // size
        if devices % others == 0:
            fits.append([*shape[:at], devices // others, *shape[at + 1 :]])
    # An axis of size 1 takes the change only where no other can.
    grown = [one for one in fits if shape[_changed(shape, one)] > 1] or fits
    if not grown:
        raise Unfit(f"the {mesh} does not fit {devices} devices")
    if len(grown) > 1:
        ways = " or ".join(_tell(axes, one) for one in grown)
        raise Unclear(f"The {mesh} can become {ways} on {devices} devices.", _tell(axes, grown[0]))
    return grown[0]


def _changed(before: Sequence[int], after: Sequence[int]) -> int:
    return next(at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)


def _tell(axes: Sequence[str], shape: Sequence[int]) -> str:
    return ",".join(f"{name}={size}" for name, size in zip(axes, shape, strict=True))


def check_meshes(saved: Saved, devices: int, wanted: Mapping[str, int]) -> None:
    """Whether it is clear what becomes of the meshes of a saved rank.

    Args:
      devices: how many there are then; 0: not known.

    Raises:
      Unclear: it is not.
    """
    for shape, axes in saved.meshes if devices else ():
        with contextlib.suppress(Unfit):
            fit_mesh(shape, axes, devices, wanted)


# ------------------------------------------------------------------------- who gets which value


def look(
    namespace: dict[str, Any],
    rank: int,
    others: Mapping[int, Glance],
    wanted: Mapping[str, int],
    settings: Settings | None,
    check: Callable[[], None],
    choice: Chosen,
) -> tuple[Loaded, dict[str, Any]]:
    """What this rank is to have of it. Nothing is bound.

    Args:
      others: the file of each rank that has saved.
      wanted: the sizes of the meshes' axes, where they were named.
      choice: which values are meant, where ranks have died.

    Returns:
      What was read, and what ``RestoreLooked`` says of another number of ranks.

    Raises:
      CannotRestore: a file can't be read, or it is not clear what becomes of a mesh.
    """
    import jax

    headers = {one: glance.saved for one, glance in others.items()}
    check_meshes(headers[min(headers)], jax.device_count(), wanted)
    is_new = rank not in headers
    source = min(headers) if is_new else rank
    saved = others[source].all_but_arrays(check)
    had = {r: generation_of(one, choice) for r, one in headers.items()}
    loader = Refitting(saved, namespace, check, others, wanted, choice)
    equal = {name for name in had[source].names if _is_equal(name, had.values())}
    equal -= {*choice.doubtful}
    names, numbers, skip, differing = set(had[source].names), set(), set(), set()
    if is_new:
        numbers = {name for name in names if _is_number(name, had, choice.told)}
        names = equal - numbers
        drawn = [one.random for one in headers.values()]
        compared = {n for one in drawn for n in one} - {"seeded"}
        skip = {n for n in compared if any(d.get(n) != drawn[0].get(n) for d in drawn)}
        skip |= compared if choice.told and len(drawn) == 1 else set()
        set_to = [one.set_to for one in headers.values()]
        told_of = {n for one in set_to for n in one} - compared
        differing = {n for n in told_of if any(one.get(n) != set_to[0].get(n) for one in set_to)}
        skip |= differing
    older = names.intersection(choice.older)
    loaded = load(saved, namespace, names, older, settings, skip, loader=loader)
    loaded.values |= {name: ast.literal_eval(str(rank)) for name in numbers}
    count = jax.process_count()
    left = {one: mine for one, mine in had.items() if one < count}
    gone = {name for one, mine in had.items() if one >= count for name in mine.names}
    for name in gone:
        known: list[Collection[str]] = [
            *(one.names for one in left.values()),
            *choice.told.values(),
            equal,
        ]
        if not any(name in one for one in known):
            loaded.lost[name] = "only ranks that are gone had it"
    gone |= {name for one in choice.told.values() for name in one if name in had[source].names}
    told = {
        "before": len(headers),
        "own": sorted({*had[source].names, *differing} - equal - numbers) if is_new else [],
        "gone": sorted(
            name
            for name in gone
            if name not in {*equal, *loaded.lost} and not _is_number(name, had, choice.told)
        ),
        "only": sorted(_of_one(headers, had, loaded.values)) if is_new and not choice.told else [],
        "unequal": loader.names_of(loader.unequal, loaded.values),
        "unplaced": loader.names_of(loader.unplaced, loaded.values),
    }
    for glance in others.values():
        glance.let_go()
    return loaded, told


def _is_equal(name: str, had: Iterable[Generation]) -> bool:
    digests = {one.digests.get(name) for one in had}
    return len(digests) == 1 and None not in digests


def _of_one(
    headers: Mapping[int, Saved], had: Mapping[int, Generation], names: Iterable[str]
) -> set[str]:
    """The names whose values may be each rank's own, where there was one rank to compare."""
    if len(headers) > 1:
        return set()
    ((rank, saved),) = headers.items()
    common = {*saved.now.common, *saved.before.common}
    return {name for name in {*names} - common if not had[rank].names[name].arrays}


def _is_number(
    name: str, had: Mapping[int, Generation], told: Mapping[int, Mapping[str, str]]
) -> bool:
    """Whether it was each rank's own number."""
    texts = {rank: one[name] for rank, one in told.items() if one.get(name)}
    texts |= {rank: one.texts.get(name, "") for rank, one in had.items()}
    return len(texts) > 1 and all(text == f"{LITERAL}{one}" for one, text in texts.items())


# ------------------------------------------------------------------------------------- arrays


class Refitting(Loader):
    """Makes one rank's values of what all have saved.

    Attributes:
      unplaced: the numbers of the arrays that fit no mesh.
      unequal: those whose copies are not equal on all ranks: the lowest rank's is taken.
    """

    def __init__(
        self,
        saved: Saved,
        namespace: dict[str, Any],
        check: Callable[[], None],
        others: Mapping[int, Glance],
        wanted: Mapping[str, int],
        choice: Chosen,
    ) -> None:
        super().__init__(saved, namespace, check)
        self.unplaced: set[int] = set()
        self.unequal: set[int] = set()
        self._others = {
            r: (one, generation_of(one.saved, choice)) for r, one in sorted(others.items())
        }
        self._wanted = wanted
        self._dead = choice.told.keys()
        self._mine = generation_of(saved, choice)
        self._uses: dict[int, tuple[str, int]] = {}  # where an array is first met
        for name, one in self._mine.names.items():
            for at, number in enumerate(one.arrays):
                self._uses.setdefault(number, (name, at))

    def names_of(self, numbers: set[int], names: Iterable[str]) -> list[str]:
        """Those of the names that have one of these arrays."""
        return sorted(n for n in names if not numbers.isdisjoint(self._mine.names[n].arrays))

    def mesh_devices(
        self, local: bool, places: Sequence[int], shape: Sequence[int], axes: Sequence[str]
    ) -> np.ndarray[Any, Any]:
        saved = self.saved
        is_of_all = len(places) == saved.device_count and (not local or saved.process_count == 1)
        if not is_of_all:
            return super().mesh_devices(local, places, shape, axes)
        fitted = fit_mesh(shape, [str(name) for name in axes], len(self.devices), self._wanted)
        devices = np.empty(len(self.devices), object)
        devices[:] = list(self.devices.values())
        return devices.reshape(fitted)

    def make_array(self, number: int) -> Any:
        saved = self.saved.arrays[number]
        if saved.local and self.saved.process_count > 1:
            return super().make_array(number)
        if number not in self._uses:  # it is in what all names were before the last cell, or after
            raise CannotRestore("no name that comes back has it")
        try:
            return super().make_array(number)
        except Unfit as error:
            why = str(error)
        parts = self._parts_of(number)
        self._check_whole(number, [[0, size] for size in saved.shape], parts)
        for _, glance, section in parts:
            glance.hold(section)  # it is read when the array is placed
        read = partial(self._cut, number, parts=parts)
        self.unplaced.add(number)
        dtype = np.dtype(_dtype(saved))
        return Unplaced(saved.shape, dtype, read, why, saved.key_impl)

    def sharding(self, saved: SavedArray) -> Any:
        import jax

        if saved.local and self.saved.process_count > 1:
            return super().sharding(saved)
        try:
            found = super().sharding(saved)
            found.shard_shape(tuple(saved.shape))
        except Unfit:
            raise
        except CannotRestore as error:  # its devices were those of ranks that are gone
            raise Unfit(str(error)) from None
        except ValueError:
            text = str(getattr(found, "spec", found))
            sizes = _tell(*_axes(found)) if isinstance(found, jax.sharding.NamedSharding) else ""
            raise Unfit(f"its shape can't be sharded as {text} over {sizes}") from None
        return found

    def part(self, number: int, index: Sequence[slice]) -> np.ndarray[Any, Any]:
        saved = self.saved.arrays[number]
        if saved.local and self.saved.process_count > 1:
            return super().part(number, index)
        return self._cut(number, index, self._parts_of(number))

    def _parts_of(self, number: int) -> list[tuple[Bounds, Glance, int]]:
        """What ranks have saved of an array: where it lies in it, and whose section it is."""
        saved = self.saved.arrays[number]
        name, at = self._uses[number]
        found: dict[str, tuple[Bounds, Glance, int]] = {}
        for glance, had in self._others.values():
            if (twin := self._twin(name, at, glance.saved, had)) is None:
                continue
            theirs = glance.saved.arrays[twin]
            if (theirs.shape, theirs.dtype) == (saved.shape, saved.dtype):
                for where, section in theirs.shards:
                    _, first, its = found.setdefault(str(where), (where, glance, section))
                    if not saved.local and glance.is_unlike(section, first, its):
                        self.unequal.add(number)
        return list(found.values())

    def _twin(self, name: str, at: int, saved: Saved, had: Generation) -> int | None:
        """The number that another rank has given to an array of a name; None: that is not known.

        Where the name is equal there, it has the same place. Else the arrays that span processes
        are the same ones, in the same order, if no two of them can be taken for one another.
        """
        if (one := had.names.get(name)) is None:
            return None
        mine = self._mine.names[name].arrays
        digest = self._mine.digests.get(name)
        if digest is not None and digest == had.digests.get(name):
            return one.arrays[at]
        own, theirs = _spanning(self.saved, mine), _spanning(saved, one.arrays)
        kinds = [_kind(self.saved.arrays[n]) for n in own]
        if kinds != [_kind(saved.arrays[n]) for n in theirs] or len({*kinds}) < len(kinds):
            return None
        return theirs[own.index(mine[at])]

    def _cut(
        self, number: int, index: Sequence[slice], parts: Sequence[tuple[Bounds, Glance, int]]
    ) -> np.ndarray[Any, Any]:
        """The numbers of an array at ``index``, of the parts that were saved.

        Raises:
          CannotRestore: some of them were saved by no rank.
        """
        saved = self.saved.arrays[number]
        wanted = bounds(index, saved.shape)
        made = np.empty([stop - start for start, stop in wanted], _dtype(saved))
        self._check_whole(number, wanted, parts)
        for where, glance, section in parts:
            if (meet := _meet(wanted, where)) is not None:  # of a scalar it is []
                numbers = np.frombuffer(glance.section(section), np.uint8).view(made.dtype)
                numbers = numbers.reshape([stop - start for start, stop in where])
                made[_within(meet, wanted)] = numbers[_within(meet, where)]
        return made

    def _check_whole(
        self, number: int, wanted: Bounds, parts: Sequence[tuple[Bounds, Glance, int]]
    ) -> None:
        """Parts of one array don't overlap, so their numbers need only be counted."""
        there = (_meet(wanted, where) for where, _, _ in parts)
        if sum(_size(meet) for meet in there if meet is not None) != _size(wanted):
            places = ", ".join(f"{start}:{stop}" for start, stop in wanted)
            shape = tuple(self.saved.arrays[number].shape)
            dead = ", ".join(map(str, sorted(self._dead)))
            whose = f"was on ranks that are gone: {dead}" if dead else "was saved by no rank"
            raise CannotRestore(f"a part of [{places}] of an array of shape {shape} {whose}")


def _meet(one: Bounds, other: Bounds) -> list[tuple[int, int]] | None:
    """What two parts of an array have in common; None: nothing."""
    meet = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)]
    return meet if all(start < stop for start, stop in meet) else None


def _within(meet: Bounds, part: Bounds) -> tuple[slice, ...]:
    pairs = zip(meet, part, strict=True)
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in pairs)


def _size(part: Bounds) -> int:
    return math.prod(stop - start for start, stop in part)


def _dtype(saved: SavedArray) -> Any:
    import jax

    return jax.numpy.dtype(saved.dtype)


def _spanning(saved: Saved, numbers: Iterable[int]) -> list[int]:
    return [n for n in numbers if not saved.arrays[n].local or saved.process_count == 1]


def _kind(saved: SavedArray) -> tuple[Any, ...]:
    return tuple(saved.shape), saved.dtype, saved.key_impl, saved.text


def _axes(sharding: Any) -> tuple[list[str], list[int]]:
    shape = sharding.mesh.shape
    return [str(name) for name in shape], list(shape.values())
