#!/usr/bin/env bash
# Runs notebooks/quickstart.ipynb on 4 JAX processes and prints what process 0 showed.
# Everything it needs goes into .venv in this checkout, by uv where that is installed, else by pip; a
# second run reuses it.
#
#   bash notebooks/quickstart.sh                      with the first fitting python found
#   PYTHON=python3.13 bash notebooks/quickstart.sh    with that one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

env=.venv
mark=$env/.jaxcluster # written by this script alone: what of which checkout is in
lab=(labextension/src labextension/style labextension/schema labextension/package-lock.json)
want="$(find pyproject.toml "${lab[@]}" -type f -exec cksum {} + | sort | cksum) $PWD"

say() { printf '==> %s\n' "$*"; }

# Runs a command silently, and shows what it said only if it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        rm -f "$log"
        printf 'This failed: %s\n' "$*" >&2
        exit 1
    fi
    rm -f "$log"
}

with_uv() { command -v uv >/dev/null; }

# True for a Python that can make our environment. It is really run, because a name in PATH may be
# a shim of a version that is not there, and Debian's python3 comes without venv.
fits() {
    local needed=sys
    with_uv || needed='ensurepip, sys, venv'
    "$1" -c "import $needed; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1
}

find_python() {
    local python candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for python in "${candidates[@]}"; do
        if fits "$python"; then
            echo "$python"
            return
        fi
    done
    if with_uv && [ -z "${PYTHON:-}" ]; then # it finds others, or downloads one
        uv python find '>=3.11' 2>/dev/null && return
    fi
    echo "jaxcluster needs Python 3.11 or newer with its venv module, and ${PYTHON:-python3} is not" \
        "one. On Debian and Ubuntu: apt-get install python3 python3-venv. For one elsewhere:" \
        "PYTHON=/path/to/python3.12 bash notebooks/quickstart.sh" >&2
    return 1
}

make_env() {
    if with_uv; then
        quietly uv venv --allow-existing --python "$1" "$env"
    else
        quietly "$1" -m venv "$env"
    fi
}

install_into_env() {
    if with_uv; then
        quietly uv pip install --python "$env/bin/python" "$@"
    else
        quietly "$env/bin/pip" install --disable-pip-version-check "$@"
    fi
}

# An environment of ours that is unfinished, or was moved or copied here with the checkout, is made
# again (its scripts name the old place). One that somebody else made is used as it is.
works() {
    if [ -e "$mark" ]; then
        case $(cat "$mark") in *" $PWD") ;; *) return 1 ;; esac
    fi
    "$env/bin/python" -c '' >/dev/null 2>&1 && { with_uv || "$env/bin/pip" --version >/dev/null 2>&1; }
}

if works && [ "$(cat "$mark" 2>/dev/null)" = "$want" ]; then
    say "using $env"
else
    if ! works; then
        if [ -e "$env" ] && [ ! -e "$mark" ]; then
            echo "$PWD/$env is not from this script and has no working pip. Move it away." >&2
            exit 1
        fi
        python=$(find_python)
        say "making $env with $("$python" --version)"
        rm -rf "$env"
        mkdir "$env"
        echo unfinished >"$mark"
        make_env "$python"
    fi
    tool=pip takes='a minute or two'
    if with_uv; then tool=uv takes='less than a minute'; fi
    say "installing jaxcluster, jax and JupyterLab into $env with $tool ($takes)"
    install_into_env -e .
    if [ ! -e jaxcluster/labextension/package.json ]; then
        say "no Node 20 or newer here: JupyterLab is without jaxcluster's sidebar, badges and buttons"
    fi
    echo "$want" >"$mark"
fi

# A registry of its own (with a short path: sockets are made in it), so that a cluster that already
# runs in somebody's notebook is not in the way.
JAXCLUSTER_RUNTIME_DIR=$(mktemp -d /tmp/jaxcluster.XXXXXX)
export JAXCLUSTER_RUNTIME_DIR
trap 'rm -rf "$JAXCLUSTER_RUNTIME_DIR"' EXIT

say "running notebooks/quickstart.ipynb on 4 processes"
"$env/bin/python" - <<'EOF'
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def text_of(outputs):
    """What a terminal would show of a cell's outputs."""
    text = ""
    for output in outputs:
        if output.output_type == "stream":  # one line may come in several of these
            text += output.text
        elif output.output_type == "error":
            text += "\n".join(output.traceback) + "\n"
        else:
            text += output.data.get("text/plain", "") + "\n"
    # Progress lines overwrite themselves with \r: keep what stood there in the end.
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip("\n").split("\n"))
    return ESCAPES.sub("", "\n".join(lines))


def show(cell, cell_index, execute_reply):
    print(f"\nIn [{execute_reply['content']['execution_count']}]:")
    print("\n".join(f"    {line}" for line in cell.source.splitlines()))
    if text := text_of(cell.outputs):
        print(text)
    sys.stdout.flush()


path = Path("notebooks/quickstart.ipynb")
client = NotebookClient(
    nbformat.read(path, as_version=4),
    timeout=300,
    kernel_name="python3",
    extra_arguments=["--log-level=ERROR"],  # or the kernel remarks on its (local) sockets
    resources={"metadata": {"path": str(path.parent)}},
    on_cell_executed=show,
)
try:
    client.execute()
except CellExecutionError:
    sys.exit("\nThe cell above failed.")  # its traceback stands there
EOF

echo
say "the same in JupyterLab:  $env/bin/jupyter lab notebooks/quickstart.ipynb"
