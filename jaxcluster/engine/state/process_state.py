"""What cells set up besides names: random states, JAX's settings, the environment, the folder.

And what they set in the context in which all of them run: numpy's and decimal's settings, variables
of ``contextvars``, and the mesh of ``jax.set_mesh``.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import decimal
import os
import random
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxcluster.engine.private import contexts
from jaxcluster.engine.state.settings import (
    SETTINGS,
    Settings,
    context_mesh,
    set_context_mesh,
)
from jaxcluster.engine.value_copies import DECIMAL


@dataclass(frozen=True)
class ProcessState:
    """How they are at one moment."""

    random: Any = None
    numpy: Any = None
    settings: tuple[Any, ...] = ()
    environment: dict[Any, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    folder: str = ""

    @classmethod
    def now(cls) -> ProcessState:
        """Some 10 us."""
        return cls(
            _python_state.now(),
            _numpy_state.now(),
            _settings(),
            dict(_raw_environment()),
            list(sys.path),
            _folder(),
        )

    def put_back(self) -> None:
        """Make them what they were, each for itself."""
        for one in (self._random, self._numpy, self._jax, self._environment, self._folder):
            with contextlib.suppress(Exception):  # each for itself
                one()

    def _random(self) -> None:
        random.setstate(self.random)

    def _numpy(self) -> None:
        np.random.set_state(self.numpy)

    def _jax(self) -> None:
        import jax

        for name, then, now in zip(SETTINGS, self.settings, _settings(), strict=True):
            if then != now:
                jax.config.update(name, then)

    def _environment(self) -> None:
        now = dict(_raw_environment())
        for name in now.keys() - self.environment.keys():
            os.environ.pop(os.fsdecode(name), None)
        for name, value in self.environment.items():
            if now.get(name) != value:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)

    def _folder(self) -> None:
        sys.path[:] = self.path
        if self.folder and self.folder != _folder():
            os.chdir(self.folder)  # it may be removed


@dataclass(frozen=True)
class ContextOfCells:
    """The context of all cells at one moment, what of it changes in place, and how they compile."""

    context: contextvars.Context | None = None
    decimal: tuple[Any, Any] | None = None
    mesh: Any = None
    entered: dict[str, Any] = field(default_factory=dict)
    future: int = 0

    @classmethod
    def of(cls, settings: Settings) -> ContextOfCells:
        """On the main thread, between cells. Some microseconds."""
        of_decimal = settings.context.run(decimal.getcontext)
        copy = settings.context.copy()
        decimals = of_decimal, DECIMAL.copy(of_decimal)
        return cls(copy, decimals, context_mesh(), contexts.entered(), settings.future)

    def put_back(self, settings: Settings) -> None:
        """For the cells that begin from now on. See also ``put_back_here``."""
        if self.context is not None:
            settings.context = self.context
            settings.mesh, settings.entered = self.mesh, self.entered
            if settings.future != self.future:
                settings.future = self.future
        if self.decimal is not None and not DECIMAL.is_same(*self.decimal):
            DECIMAL.put_back(*self.decimal)

    def put_back_here(self) -> None:
        """On the main thread: what JAX keeps for each thread."""
        if context_mesh() is not self.mesh:
            set_context_mesh(self.mesh)
        contexts.put_back(self.entered)


_Raw = ctypes.c_char * (4 * (624 + 1))  # of the Mersenne Twister: its words, and its place there


class PythonState:
    """The state of ``random``, taken again only when it has changed: that makes 625 integers.

    Whether it has is seen from the generator's memory, as in ``NumpyState``. Where in it the state
    lies is found out from a state that was taken; where it is not found, each one is taken.
    """

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: Any = None
        self._raw = b""
        self._gauss: Any = None
        self._state: Any = None

    def now(self) -> Any:
        generator: Any = getattr(random.getstate, "__self__", None)
        if type(generator) is not random.Random:  # the user has set another
            return random.getstate()
        if generator is not self._generator:
            self._generator, self._raw = generator, b""
            self._memory = _memory_of(generator)
        if self._memory is None:
            return random.getstate()
        raw = self._memory.raw
        gauss = generator.gauss_next
        if raw != self._raw or gauss is not self._gauss:
            self._raw, self._gauss, self._state = raw, gauss, generator.getstate()
        return self._state


def _memory_of(generator: random.Random) -> Any:
    """The part of a generator's memory that has its state; None where it is not as it is known."""
    try:
        state = generator.getstate()[1]
        known = struct.pack("=i624I", state[-1], *state[:-1])
        nbytes = type(generator).__base__.__basicsize__  # type: ignore[union-attr]
        offset = ctypes.string_at(id(generator), nbytes).find(known)
        return _Raw.from_address(id(generator) + offset) if offset > 0 else None
    except Exception:  # numpy has laid it out in another way
        return None


class NumpyState:
    """The state of ``np.random``, taken again only when it has changed: that takes 20 us.

    Whether it has is seen from the generator's memory, but for the second number of a pair of
    normal ones: while there is one, the state is taken each time.
    """

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: Any = None
        self._raw = b""
        self._state: dict[str, Any] = {}

    def now(self) -> Any:
        generator = _np_random.get_bit_generator()
        if type(generator) is not np.random.MT19937:  # the user has set another
            return np.random.get_state(legacy=False)
        if generator is not self._generator:
            self._generator, self._raw = generator, b""
            self._memory = _Raw.from_address(generator.ctypes.state_address)
        raw = self._memory.raw
        if raw != self._raw or self._state["has_gauss"]:
            state: Any = np.random.get_state(legacy=False)
            self._raw, self._state = raw, state
        return self._state


_np_random: Any = np.random  # the types of some versions of numpy lack get_bit_generator
_python_state = PythonState()
_numpy_state = NumpyState()


def _settings() -> tuple[Any, ...]:
    import jax

    try:
        return tuple(map(contexts.values_of_process(SETTINGS).get, SETTINGS))
    except AttributeError:
        return tuple(getattr(jax.config, name, None) for name in SETTINGS)


def _raw_environment() -> dict[Any, Any]:
    """The environment as it is kept: to decode it would take longer than all else here."""
    raw: dict[Any, Any] | None = getattr(os.environ, "_data", None)
    return dict(os.environ) if raw is None else raw


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
