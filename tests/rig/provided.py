"""A rig, or the reason why a test has none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from rig.hosts import Missing

T = TypeVar("T")


def provided(make: Callable[[], T]) -> T:
    """What ``make`` makes; else the test is skipped, or fails where nothing may be missing."""
    try:
        return make()
    except Missing as missing:
        reason = f"no rig: {missing}"
    if os.environ.get("JAXCLUSTER_REQUIRE_RIG") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
