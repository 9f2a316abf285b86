"""What errors of JAX mean on a cluster, and what to do about them. Pure."""

from __future__ import annotations

# What JAX says, and what it means on a cluster.
KIND_HINTS = (
    (
        "spans non-addressable",
        "An array that spans processes can't be fetched by one of them. End the cell with it to "
        "see it whole, or %pull it into the notebook.",
    ),
    (
        "distributed.initialize should only be called once",
        "%jaxcluster start has called jax.distributed.initialize on every rank already: leave out "
        "the call.",
    ),
    (
        "distributed.initialize() must be called before",
        "%jaxcluster start has called jax.distributed.initialize on every rank already: leave out "
        "the call.",
    ),
    (
        "must not be called on a rank",
        "Leave out the call: %jaxcluster stop ends the cluster, %jaxcluster restart gives it new "
        "processes.",
    ),
    (
        "config should be updated before backends are initialized",
        "The ranks have their devices from their start on: %jaxcluster stop, then for example "
        "%jaxcluster start --devices-per-process 4.",
    ),
)


def kind_hints(message: str) -> list[str]:
    """What to add to an error of JAX."""
    return [hint for mark, hint in KIND_HINTS if mark in message]
