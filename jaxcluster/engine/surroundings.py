"""What cells set up besides names: random states, JAX's settings, the environment, the folder."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxcluster.engine.settings import SETTINGS


@dataclass(frozen=True)
class Surroundings:
    """How they are at one moment."""

    random: Any = None
    numpy: Any = None
    settings: tuple[Any, ...] = ()
    environment: dict[Any, Any] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    folder: str = ""

    @classmethod
    def now(cls) -> Surroundings:
        """Some 40 us, most of it numpy's random state."""
        return cls(
            random.getstate(),
            np.random.get_state(legacy=False),
            _settings(),
            dict(_raw_environment()),
            list(sys.path),
            _folder(),
        )

    def put_back(self) -> None:
        """Make them what they were, each for itself."""
        for one in (self._random, self._numpy, self._jax, self._environment, self._folder):
            with contextlib.suppress(Exception):
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


def _settings() -> tuple[Any, ...]:
    import jax

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
