"""``python -m jaxcluster.rank.private.self_test``: which private names this jax has moved.

It prints them and what each costs as JSON, for those who may not import jax. ``%jaxcluster doctor``
shows it, a start shows the same of its ranks, and a unit test fails.
"""

from __future__ import annotations

from pathlib import Path

from jaxcluster.agreement.client import Agreement
from jaxcluster.rank.given import Given
from jaxcluster.rank.private import (
    compilations,
    coordination,
    kinds,
    launches,
    moved,
    transfers,
)


def missing() -> dict[str, str]:
    """The cost of private names that have moved, by the purpose of the names. Starts no backend.

    It changes this process's JAX, as a rank does.
    """
    agreement = Agreement(0)
    coordination.set_collectives_address("127.0.0.1", 0)
    coordination.join_cpu_slices()
    coordination.coordinate_elsewhere()
    coordination.announce_waits(agreement)
    launches.announce_launches(agreement)
    launches.hear_host_values(Given())
    transfers.announce_transfers(agreement)
    compilations.keep_compiled(Path("/nonexistent"))
    kinds.can_save()
    return moved


if __name__ == "__main__":
    import json

    import jax  # noqa: F401  # one that can't be imported is to be told as that

    print(json.dumps(missing()))
