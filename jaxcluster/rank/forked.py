"""What a process that was forked from the fork server must not share with it and its siblings.

Whatever the preloaded modules drew or looked up when they were imported, each rank has inherited:
all ranks of all clusters of one fork server would draw the same numbers. A script's processes each
have their own, so here they are renewed. Not renewed, because nothing can: the hashes of strings
(``PYTHONHASHSEED``), which are equal on all ranks.

What needs nothing, seen with Python 3.11 to 3.13: ``random`` reseeds itself after a fork,
``tempfile`` and multiprocessing's semaphores draw again in another process, and ``secrets``,
``uuid4``, ``numpy.random.default_rng()`` and OpenSSL ask the kernel each time.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
import warnings
from typing import Any

from jaxcluster.supervision.starting import WARNINGS


def become_a_process_of_its_own(cwd: str) -> None:
    """Renew random states, keys and what was looked up before; after the environment is set.

    Args:
      cwd: the folder that the process has just changed to.
    """
    sys.argv = [""]  # as in an interactive session: argparse and absl read it
    sys.orig_argv = [sys.executable]
    random.seed()
    _renew_numpy()
    modules: dict[str, Any] = dict(sys.modules)
    if (uuid := modules.get("uuid")) is not None:
        # Set where uuid1 or getnode has been called; a node without an address is a random number.
        uuid._node = uuid._last_timestamp = None
    if (tempfile := modules.get("tempfile")) is not None:
        tempfile.tempdir = None  # it may have looked at another TMPDIR
    if (process := modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = cwd  # where spawned children begin
    time.tzset()


def _renew_numpy() -> None:
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return
    # Not only its state: its seed sequence would spawn the same children everywhere.
    numpy_random.set_bit_generator(numpy_random.MT19937())


def apply_warnings() -> None:
    """Treat warnings of a user's code as PYTHONWARNINGS says; those of all else stay warnings.

    An option that names a module (``error:::numpy``) holds for that module, as ever.
    """
    options = os.environ.pop(WARNINGS, None) or os.environ.get("PYTHONWARNINGS", "")
    if options:
        os.environ["PYTHONWARNINGS"] = options  # for what it starts
    for option in filter(None, options.split(",")):
        parts = [*option.split(":"), "", "", "", ""][:5]
        parts[3] = parts[3].strip() or "__main__"
        made: Any = warnings  # it has the words of these options in private functions
        with contextlib.suppress(made._OptionError):
            made._setoption(":".join(parts))
