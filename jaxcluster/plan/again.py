"""A start cell that is run again: its cluster is there already, or one with other options is. Pure.

A notebook's cells are run again and again, one by one and all of them. A second cluster beside the
first would double the memory, and the next cell would miss its variables.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.text import shown_value, without_secrets

# What a start may take, how its cluster is called, and where its options stand, are no part of
# what runs.
NOT_COMPARED = {
    "name",
    "any_name",
    "any_launcher",
    "timeout_s",
    "initialization_timeout",
    "profile",
}
ALWAYS = ("platform", "launcher")  # their defaults have a word
FLAGS = {"num_processes": "-n"}  # where the flag is not the field's own name


def differences(running: wire.ClusterSpec, wanted: wire.ClusterSpec) -> list[str]:
    """What sets two clusters' options apart, as typed: ``-n 4, not -n 2``.

    Args:
      wanted: what is left open in it (0 processes, no platform) is no difference.
    """
    there, asked = _typed(running), _typed(wanted)
    if not wanted.num_processes:
        there.pop("-n", None)
    if not wanted.platform:
        there.pop("--platform", None)
    return [
        f"{_flag(flag, there.get(flag))}, not {_flag(flag, asked.get(flag))}"
        if flag in there and flag in asked
        else _flag(flag, there[flag])
        if flag in there
        else f"no {_flag(flag, asked[flag])}"
        for flag in {**there, **asked}
        if there.get(flag) != asked.get(flag)
    ]


def _typed(spec: wire.ClusterSpec) -> dict[str, Any]:
    """By its flag each option that is not the default."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        default = (
            field.default_factory()
            if field.default_factory is not dataclasses.MISSING
            else field.default
        )
        if field.name in NOT_COMPARED | {"options"}:
            continue
        if value == default and field.name not in ALWAYS:
            continue
        if field.name == "devices_per_process":
            value = value or "all"
        found[FLAGS.get(field.name, _dashed(field.name))] = value
    for dest, value in spec.options.items():
        found[_dashed(dest)] = value
    if not spec.num_processes:
        found.pop("-n")
    if not spec.platform:
        found.pop("--platform")
    return found


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flag(flag: str, value: Any) -> str:
    match value:
        case bool() | "yes":
            return flag
        case Mapping():
            typed = (f"{name}={shown_value(name, text)}" for name, text in value.items())
            return " ".join(f"{flag} {shlex.quote(one)}" for one in typed)
        case [[*_], *_]:
            return f"{flag} {'/'.join(','.join(map(str, ids)) for ids in value)}"
        case list() | tuple():
            return " ".join(_flag(flag, str(one)) for one in value)
    return f"{flag} {shlex.quote(without_secrets(str(value)))}"
