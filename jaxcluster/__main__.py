"""``python -m jaxcluster`` is the console script ``jaxcluster``."""

import contextlib
import os
import sys

if __name__ == "__main__":
    # -m puts the current folder first, which may be another user's: a cloudpickle.py there is not
    # to be run. Modules in it are found last.
    with contextlib.suppress(FileNotFoundError):  # a current folder that was removed
        if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
            sys.path.append(sys.path.pop(0))
    from jaxcluster.cli import main

    sys.exit(main())
