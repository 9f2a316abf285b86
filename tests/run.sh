#!/usr/bin/env bash
# All checks: ruff, mypy, the import contracts, the Lab extension's build and its tests where there is
# Node, then pytest (whose closing line is the last one). They run in an environment of their own,
# .venv-test-<version> in this checkout.
#
#   bash tests/run.sh                       3 to 5 minutes on 2 cores: all but the live tests, and of
#                                           those one or more for each promise of docs/guarantees.md
#   bash tests/run.sh --all                 everything: more than an hour
#   bash tests/run.sh tests/unit -k plan    arguments go to pytest
#   PYTHON=python3.13 bash tests/run.sh     with another Python
#   LINT=0 bash tests/run.sh                pytest only (and the build, if a source has changed)
#   BUILD=0 bash tests/run.sh               without the Lab extension's build
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

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

# True for a Python that can make our environment. It is really run, because a name in PATH may be
# a shim of a version that is not there, and Debian's python3 comes without venv.
fits() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

python=
candidates=(python3 python3.14 python3.13 python3.12 python3.11)
if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
for candidate in "${candidates[@]}"; do
    if fits "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "The tests need Python 3.11 or newer with its venv module (Debian and Ubuntu: apt-get" \
        "install python3-venv); ${PYTHON:-python3} is not one." >&2
    exit 1
fi

env=.venv-test-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mark=$env/.complete
want="$(cksum <pyproject.toml) $PWD"
have=$(cat "$mark" 2>/dev/null || true)

if [ "$have" != "$want" ]; then
    case $have in
        *" $PWD") ;; # only pyproject.toml has changed
        *)           # there is none, or an unfinished one, or the checkout was moved or copied
            say "making $env with $("$python" --version)"
            rm -rf "$env"
            quietly "$python" -m venv "$env"
            ;;
    esac
    say "installing jaxcluster and the test tools into it (a minute or two)"
    JAXCLUSTER_JS=skip quietly "$env/bin/pip" install --disable-pip-version-check -e '.[test]'
    echo "$want" >"$mark"
fi
say "$("$env/bin/python" -c 'import platform; from importlib.metadata import version as v
print("Python", platform.python_version(), *(f"{p} {v(p)}" for p in ("jax", "ipyparallel", "ipykernel")))')"

if [ "${LINT:-1}" != 0 ]; then
    say "ruff"
    "$env/bin/ruff" check .
    "$env/bin/ruff" format --check .
    say "mypy"
    "$env/bin/mypy"
    say "import contracts"
    "$env/bin/lint-imports"
fi

# One build serves every Python; it is made again when a source is newer.
built=jaxcluster/labextension/package.json
if [ "${BUILD:-1}" = 0 ]; then
    say "the Lab extension is left as it is"
elif ! { command -v npm && node -e 'process.exit(+(parseInt(process.versions.node) < 20))'; } \
    >/dev/null 2>&1; then
    say "no Node 20 or newer here: the Lab extension is neither built nor tested"
elif [ ! -e $built ] || [ ! -e jaxcluster/static/sidebar/widget.js ] || [ "${LINT:-1}" != 0 ] || \
    [ -n "$(find labextension/{src,style,schema} \
    labextension/{package.json,widget.mjs} jaxcluster/static/shardview -newer $built)" ]; then
    say "Lab extension"
    modules=labextension/node_modules/.package-lock.json
    if [ ! -e $modules ] || [ labextension/package-lock.json -nt $modules ]; then
        quietly npm --prefix labextension ci
    fi
    PATH="$PWD/$env/bin:$PATH" quietly npm --prefix labextension run build
    quietly npm --prefix labextension test
fi

# Without a test's name: those of the promises. Three processes at a time, a file each: live tests
# wait half of their time.
part=1 rest=()
for argument in "$@"; do
    case $argument in tests | tests/* | -m* | -k* | --all) part= ;; esac
    if [ "$argument" != --all ]; then rest+=("$argument"); fi
done
if [ -n "$part" ]; then
    say "pytest: 3 to 5 minutes on 2 cores (bash tests/run.sh --all runs all tests)"
    rest=(-n 3 --dist loadfile --no-loadscope-reorder -m "not live or promise or quick"
        ${rest[@]+"${rest[@]}"})
else
    say "pytest"
fi
exec "$env/bin/python" -m pytest ${rest[@]+"${rest[@]}"}
