"""Commands and options that 0.1 no longer has, each with what takes its place.

They were never in a release. Notebooks of the people who tried jaxcluster early may hold them; this
table goes after the next release.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "profiles": "A start line in a cell is a profile. Several starts can share a variable: "
    'team = "--launcher ssh --hosts h1:4,h2:4", then %jaxcluster start {team}',
    "copies": "%jaxcluster checkpoint NAME saves the variables to disk, %jaxcluster restore NAME "
    "brings them back. In a training loop use Orbax: see docs/how-to/recover.md",
    "compare": "Equal values are shown once by %spmd --all EXPRESSION",
    "cost": "JAX tells it in a %%spmd cell: step.lower(params, batch).compile().cost_analysis(), "
    "and .memory_analysis(): see docs/how-to/slow.md",
    "notify": "IPython calls a function of yours at each cell's end, also of one that failed: "
    "get_ipython().events.register('post_run_cell', function)",
    "steps": "Save every N steps with Orbax. The cell, run again, goes on from there: see "
    '"A long run" in docs/how-to/train.md',
    "profile": "A cell is profiled from its beginning: %%spmd --profile FOLDER",
}
"""What to do instead of a removed ``%jaxcluster`` command."""

OPTIONS: dict[str, str] = {
    "--sync": "Work in a folder that the hosts share, or copy it there before the start: "
    "git, or rsync -a ~/project h1:",
    "--no-sync": "No code is sent to the hosts any more: leave it out.",
    "--profile": "Put the options into a variable: "
    'team = "--launcher ssh --hosts h1:4,h2:4", then %jaxcluster start {team}',
    "--no-profile": "There are no profiles any more: leave it out.",
    "--hosts": (
        "Only a start takes it. Type this on the machine that started the cluster, for example "
        "by ssh: see docs/launchers.md."
    ),
    "--elastic": "Have the script load its last checkpoint, and run it again with the hosts that "
    "are left: see docs/scripts.md",
    "--orbax": "Orbax works in a %%spmd cell as in a script: see docs/how-to/recover.md",
    "--retries": "Have the script load its last checkpoint, and the shell run it again: "
    "for try in 1 2 3; do jaxcluster run -n 4 train.py && break; sleep 10; done",
    "--trace": "The script can do it: "
    "with jax.profiler.trace(f'out/rank-{jax.process_index()}'): ...",
}
"""What to do instead of a removed option, by its flag."""
