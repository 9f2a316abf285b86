"""Calls that a rank answers instead of obeying: they belong to a session of its own.

``exit`` and ``quit`` would end the process under the other ranks; ``input`` asks in the notebook.
What JAX has of the kind (``jax.distributed.shutdown``) is refused by ``private.coordination``.
"""

from __future__ import annotations

import builtins
import getpass
from typing import Any

from jaxcluster.engine.questions import Asking


def say_how_to_stop() -> None:
    print(
        "exit and quit do nothing on a rank: the others need it. %jaxcluster stop ends the cluster."
    )


def guard(shell: Any, asking: Asking) -> None:
    """Put the answers in place; they stay there after ``%reset`` too."""
    shell.ask_exit = say_how_to_stop  # which IPython's exit and quit call
    # ipykernel puts its own there while ipyparallel's clients run code.
    builtins.input = asking.input
    getpass.getpass = asking.getpass
