"""Commands and options that 0.1 no longer has, each with what takes its place.

They were never in a release. Notebooks of the people who tried jaxcluster early may hold them; this
table goes after the next release.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "resize": "%jaxcluster restart -n 8 keeps the variables.",
    "steps": "Save every N steps with Orbax. The cell, run again, goes on from there: see "
    "docs/how-to/train.md",
    "copies": "%jaxcluster autosave on saves each rank's variables after each cell.",
    "profiles": "A start line in a cell is a profile. Several starts can share a variable: "
    'team = "--launcher ssh --hosts h1:4,h2:4", then %jaxcluster start {team}',
    "compare": "Equal values are shown once by %spmd --all EXPRESSION",
    "cost": "JAX tells it in a %%spmd cell: step.lower(params, batch).compile().cost_analysis(), "
    "and .memory_analysis(): see docs/how-to/slow.md",
    "notify": "IPython calls a function of yours at each cell's end, also of one that failed: "
    "get_ipython().events.register('post_run_cell', function)",
    "resync": "Ranks can't get out of step any more: nothing is launched before all agree.",
    "undo": "A refused or failed cell launches nothing more, and its variables stay as they are.",
    "strict": "Every launch is agreed on before it is made: strict mode is always on.",
    "stacks": "%jaxcluster status --stacks",
    "memory": "%jaxcluster status --memory",
    "mesh": "%jaxcluster status --mesh",
    "history": "%jaxcluster outputs --history",
    "use": "%jaxcluster attach NAME has this notebook's cells run there.",
    "recovery": "New processes come before the next cell. To wait for %jaxcluster restart instead: "
    "jaxcluster.current().recovery = 'never'",
    "journal": "%jaxcluster report shows the last launches of a cell that went wrong.",
    "profile": "A cell is profiled from its beginning: %%spmd --profile FOLDER",
}
"""What to do instead of a removed ``%jaxcluster`` command."""

OPTIONS: dict[str, str] = {
    "--retries": "Have the script load its last checkpoint, and the shell run it again: "
    "for try in 1 2 3; do jaxcluster run -n 4 train.py && break; sleep 10; done",
    "--elastic": "Have the script load its last checkpoint, and run it again with the hosts that "
    "are left: see docs/scripts.md",
    "--strict": "Every launch is agreed on before it is made: leave it out.",
    "--stall": "A launch begins on all of its ranks together, so none waits for another: leave it "
    "out. --timeout limits a cell.",
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
    "--sbatch": "Jobs are made by salloc now: --salloc OPTION passes an option of its own.",
    "--orbax": "Orbax works in a %%spmd cell as in a script: see docs/how-to/checkpoints.md",
    "--as-written": "Run the cells, then type: %jaxcluster export train.py",
    "--trace": "The script can do it: "
    "with jax.profiler.trace(f'out/rank-{jax.process_index()}'): ...",
}
"""What to do instead of a removed option, by its flag."""
