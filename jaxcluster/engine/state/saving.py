"""A rank's variables, saved while its main thread may be permanently stuck.

``save`` works from a side thread: it needs no collective and no main thread, so a deadlocked rank
can be saved, killed, started again and given its variables again. Each name is pickled by itself
first, so that one that can't be (a generator, an open file, an array whose computation will never
end) costs only itself; then all that can be are pickled together, with the settings, which keeps
the aliasing between them.

What a plain pickle can't do is done here:

- a ``jax.Array`` becomes its addressable shards (equal ones once) and its sharding. It is rebuilt
  from them on the same places: no rank needs another one's shards;
- a ``Device`` or ``Mesh`` becomes device ids, and comes back as the devices of the backend that is
  there then. One that lies on this process alone becomes local positions, so that another rank
  can take the value over.

How other objects are pickled, ``pickling`` says.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pickle import PickleBuffer
from typing import Any

import cloudpickle
import numpy as np

from jaxcluster.engine.arrays import (
    base_array,
    bounds,
    is_array,
    is_ready,
    is_tracer,
    read_numbers,
)
from jaxcluster.engine.digests import Room, Unknown, digest, is_imported, is_literal
from jaxcluster.engine.state import memory, ownmodules, randomness, sources
from jaxcluster.engine.state.objects import PROTOCOL
from jaxcluster.engine.state.pickling import Known, Pickler, reason
from jaxcluster.engine.state.saved import (
    CannotSave,
    Generation,
    Saved,
    SavedArray,
    SavedPickle,
    users_code,
)
from jaxcluster.engine.state.saved_digests import digests_of, is_common
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.user_names import is_users
from jaxcluster.engine.value_copies import cached_results, module_of

# Of these nothing is to be done here. A dict may be the namespace.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, list, tuple, set})
_CHANGING = (dict, list, set)
IN_BAND_NBYTES = 512  # a buffer below this stays inside its pickle


def save(
    namespace: dict[str, Any],
    rank: int,
    *,
    digests: bool = False,
    before: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
) -> Saved:
    """The variables of ``namespace``, as far as they can be saved.

    Runs on any thread; waits for no computation. Costs one pickling of the Python objects for each
    name and one for all; the numbers of arrays are not copied on CPU (devices with memory of their
    own: one copy to the host).

    Args:
      digests: hash each name's value, so that ranks can be compared (about 1 s per GB).
      before: what the names were bound to when the cell that runs now, or went wrong, began.
      settings: those of the process, which are saved too.
    """
    saver = _Saver(namespace, rank)
    saved = saver.saved
    now = _users(namespace)
    then = _users(before) if before is not None else now
    older = {name: value for name, value in then.items() if now.get(name, then) is not value}
    saved.absent = sorted(now.keys() - then.keys())
    values = saver.generation(saved.now, now)
    older_values = saver.generation(saved.before, older)
    saved.random = randomness.digests()
    set_by_cells: dict[str, Any] = {}
    if settings is not None:
        changed, found = Generation(), settings.changed()
        set_by_cells = saver.generation(changed, found)
        saved.random |= ownmodules.digests(found)
        saved.settings = changed.names
        saved.set_to = {
            name: text
            for name, one in found.items()
            if name != sources.NAME and not isinstance(one, ownmodules.Variables | ownmodules.Held)
            if (text := _text(one))
        }
        saved.left = changed.lost | {
            f"what {name} has cached": "it is called again"
            for name, value in values.items()  # not of what raises whatever it is asked
            if _has_cached(value)
        }
    try:
        saved.together = saver.pickle((values, older_values, set_by_cells))
    except Exception:
        # The main thread changes something at this moment: what is alone must do.
        saved.together = None
    saved.memories = [saver.section(memory.take()) for memory in saver.views.memories]
    saved.alive = list(saver.views.arrays)
    saved.views = saver.section(pickle.dumps(saver.views.table(), PROTOCOL))
    section = _without_marks(saved.sections)
    held = [n for n, one in set_by_cells.items() if isinstance(one, ownmodules.Held)]
    saved.random |= digests_of({name: saved.settings[name] for name in held}, saved, section)
    if digests:
        for generation, found in ((saved.now, values), (saved.before, older_values)):
            generation.digests = digests_of(generation.names, saved, section)
            generation.common = sorted(k for k in generation.names if is_common(found[k]))
            generation.texts = {k: _text(found[k]) for k in generation.names}
    return saved


def _users(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in list(namespace.items()) if is_users(k, v)}


def _has_cached(value: Any) -> bool:
    """Whether a function's ``lru_cache`` has results that may have changed since.

    It comes back with an empty one; other results are computed again.
    """
    if not isinstance(value, functools._lru_cache_wrapper) or is_imported(value):
        return False
    found = cached_results(value)
    return any(type(one) in _CHANGING or module_of(type(one)) == "__main__" for one in found)


def _text(value: Any) -> str:
    try:
        return digest(value, Room()).text
    except Unknown:
        return ""


def _without_marks(sections: Sequence[Any]) -> Callable[[int], Any]:
    """What reads a section, where it is a pickle without the random numbers of this process by
    which cloudpickle marks each class that goes by value."""
    known = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    marks = [mark.encode() for mark in list(known.values())]

    def read(number: int) -> Any:
        section = sections[number]
        if isinstance(section, bytes):
            for mark in marks:
                section = section.replace(mark, b"")
        return section

    return read


class _Saver:
    def __init__(self, namespace: dict[str, Any], rank: int) -> None:
        import jax

        self.namespace = namespace
        self.device_type: Any = jax.Device
        self.mesh_type = jax.sharding.Mesh
        self.widget_types = _widget_types()
        self.single_type = jax.sharding.SingleDeviceSharding
        self.saved = Saved(rank, jax.process_count(), jax.device_count(), versions())
        self.process = jax.process_index()
        self.local_positions = {d.id: i for i, d in enumerate(jax.local_devices())}
        self.array_numbers: dict[int, int] = {}
        self.buffer_sections: dict[tuple[int, int], int] = {}
        self.shardings: dict[Any, int] = {}
        self.views = memory.Views()
        self.known = Known()
        self.is_trial = False
        self.keep: list[Any] = []  # keeps ids and addresses from being reused meanwhile

    def section(self, data: Any) -> int:
        self.saved.sections.append(data)
        return len(self.saved.sections) - 1

    def pickle(self, value: Any) -> SavedPickle:
        file = io.BytesIO()
        pickler = _Pickler(file, self)
        try:
            with users_code():
                pickler.dump(value)
        finally:
            pickler.clear_memo()  # it is garbage in a circle: till then objects have more holders
        section = self.section(file.getvalue())
        return SavedPickle(section, [*pickler.arrays], pickler.buffers, [*pickler.views])

    def generation(self, into: Generation, values: dict[str, Any]) -> dict[str, Any]:
        """Pickle each of ``values`` by itself; returns those that could be."""
        done = {}
        for name, value in values.items():
            try:
                into.names[name] = self.pickle(value)
            except Exception as error:
                into.lost[name] = reason(error, value)
            else:
                done[name] = value
        return done

    def why_not(self, error: BaseException) -> str:
        """Why an exception that another one came from can't be saved; "" where it can.

        Else the other one could not be, either.
        """
        if self.is_trial:
            return ""
        trial = _Saver(self.namespace, self.saved.rank)
        trial.is_trial = True
        try:
            trial.pickle(error)
        except Exception as failure:
            return reason(failure, error)
        return ""

    def buffer(self, buffer: PickleBuffer) -> int:
        """The section of an out-of-band buffer; one that two pickles share is kept once."""
        raw = buffer.raw()
        address = np.frombuffer(raw, np.uint8).__array_interface__["data"][0] if raw.nbytes else 0
        key = (address, raw.nbytes)
        if key not in self.buffer_sections:
            self.keep.append(buffer)
            self.buffer_sections[key] = self.section(raw)
        return self.buffer_sections[key]

    def array(self, array: Any) -> int:
        """The number of an array, which is saved when it is first met.

        Raises:
          CannotSave: it has no values that could be read now.
        """
        if id(array) not in self.array_numbers:
            saved = self._save_array(array)
            self.keep.append(array)
            self.saved.arrays.append(saved)
            self.array_numbers[id(array)] = len(self.saved.arrays) - 1
        return self.array_numbers[id(array)]

    def _save_array(self, array: Any) -> SavedArray:
        import jax

        if is_tracer(array):
            raise CannotSave("a tracer: it stood for an array while jit or grad ran")
        key_impl = None
        base = base_array(array)
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            key_impl = str(jax.random.key_impl(array))
        if base.is_deleted():
            raise CannotSave("deleted or donated")
        if not is_ready(base):
            raise CannotSave("still being computed")
        shards: dict[str, tuple[list[list[int]], int]] = {}
        try:
            for shard in base.addressable_shards:
                where = bounds(shard.index, base.shape)
                if str(where) not in shards:
                    values = np.ascontiguousarray(read_numbers(shard.data))  # on CPU no copy
                    numbers = values.reshape(-1).view(np.uint8)
                    shards[str(where)] = (where, self.section(numbers))
        except CannotSave:
            raise
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise CannotSave(f"its computation failed: {first[:200]}") from None
        sharding = base.sharding
        if sharding not in self.shardings:
            self.shardings[sharding] = self.pickle(sharding).section
        return SavedArray(
            shape=list(base.shape),
            dtype=str(base.dtype),
            sharding=self.shardings[sharding],
            local=base.is_fully_addressable,
            committed=bool(getattr(base, "committed", True)),
            shards=list(shards.values()),
            weak_type=bool(getattr(base, "weak_type", False)),
            key_impl=key_impl,
            text=_told(sharding, self.saved.device_count),
        )


def _told(sharding: Any, count: int) -> str:
    """A sharding's text, which says nothing of its devices, and these, unless they are all.

    Ranks may have arrays under one name that are alike, but not one array.
    """
    text, devices = str(sharding)[:400], sharding.device_set
    if len(devices) == count:
        return text
    ids = " ".join(map(str, sorted(device.id for device in devices)))
    return f"{text} on {ids if len(ids) < 80 else hashlib.sha256(ids.encode()).hexdigest()}"


def _widget_types() -> tuple[type, ...]:
    """ipywidgets' widgets, and any library's comm with the page; () where nobody has any."""
    found = (
        getattr(sys.modules.get(module), name, None)
        for module, name in (("ipywidgets", "Widget"), ("comm.base_comm", "BaseComm"))
    )
    return tuple(one for one in found if isinstance(one, type))


class _Pickler(Pickler):
    """Puts numbers in the place of arrays, and of all that is not the same in each process."""

    def __init__(self, file: io.BytesIO, saver: _Saver) -> None:
        super().__init__(file, saver.namespace, saver.known, saver.why_not, self._out_of_band)
        self.saver = saver
        self.buffers: list[int] = []
        # By their numbers, the places of arrays, jax's and numpy's, in this pickle's lists.
        self.arrays: dict[int, int] = {}
        self.views: dict[int, int] = {}
        self._met: set[int] | None = None
        self.how = {
            **self.how,
            ownmodules.Variables: self._variables,
            ownmodules.Held: self._held,
        }

    def _out_of_band(self, buffer: PickleBuffer) -> bool:
        if memoryview(buffer).nbytes < IN_BAND_NBYTES:
            return True
        self.buffers.append(self.saver.buffer(buffer))
        return False

    def _variables(self, one: ownmodules.Variables) -> tuple[Any, ...]:
        shared = frozenset(filter(lambda name: self._is_met(one.values[name]), one.values))
        return type(one), (one.source, one.values, one.texts, one.set_later, shared)

    def _held(self, one: ownmodules.Held) -> tuple[Any, ...]:
        return type(one), (one.module, one.name, one.value, self._is_met(one.value))

    def _is_met(self, value: Any) -> bool:
        """Whether an object that can change was pickled before the first of the user's modules."""
        if self._met is None:
            self._met = {*self.memo.copy()}
            self._met |= {id(self.saver.views.arrays[number]) for number in self.views}
        return id(value) in self._met and not is_literal(value)

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) in _PLAIN:  # it is asked of each list and number
            return None
        saver = self.saver
        if isinstance(obj, io.IOBase) and not isinstance(obj, io.StringIO | io.BytesIO):
            if obj is sys.stdout or obj is sys.stderr:
                return ("stream", "stdout" if obj is sys.stdout else "stderr")
            raise CannotSave("an open file can't be saved")  # cloudpickle would save its text
        if isinstance(obj, saver.widget_types):
            raise CannotSave("a widget can't be saved")  # it lives with the page, by its comm
        if obj is saver.namespace:
            return ("namespace",)
        if type(obj) is dict and id(obj) in self._modules:
            return ("module", self._modules[id(obj)])
        if is_array(obj):
            return ("array", self.arrays.setdefault(saver.array(obj), len(self.arrays)))
        if memory.is_view(obj) and memory.reduce(obj) is None:
            return ("view", self.views.setdefault(saver.views.number(obj), len(self.views)))
        if isinstance(obj, saver.device_type):
            return ("device", obj.id)
        if isinstance(obj, saver.single_type):
            device: Any = next(iter(obj.device_set))
            if device.id in saver.local_positions:
                return ("single", saver.local_positions[device.id], obj.memory_kind)
        if isinstance(obj, saver.mesh_type):
            devices = np.asarray(obj.devices)
            ids = [int(d.id) for d in devices.flat]
            local = bool(ids) and all(i in saver.local_positions for i in ids)
            places = [saver.local_positions[i] for i in ids] if local else ids
            types = getattr(obj, "axis_types", None)
            is_only = saver.saved.process_count == 1
            if len(ids) == saver.saved.device_count and (is_only or not local):
                one = (list(devices.shape), [str(name) for name in obj.axis_names])
                if one not in saver.saved.meshes:
                    saver.saved.meshes.append(one)
            return ("mesh", local, places, devices.shape, obj.axis_names, types)
        return None


def versions() -> dict[str, str]:
    """What must be equal where a state is saved and where it is restored."""
    import jax

    return {"python": "{}.{}".format(*sys.version_info), "jax": jax.__version__}
