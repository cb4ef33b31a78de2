#!/bin/sh
# The main job, step by step, in a store that is thrown away: build, prove, clean, and see the proof fail.
#   sh examples/demo.sh [path of the flexwarm command]
set -eu

flexwarm=${1:-flexwarm}
here=$(dirname "$0")
FLEXWARM_STORE=$(mktemp -d)/store
export FLEXWARM_STORE
trap 'rm -rf "$(dirname "$FLEXWARM_STORE")"' EXIT

run() {
    expected=$1
    shift
    printf '\n$ flexwarm %s\n' "$*"
    code=0
    "$flexwarm" "$@" || code=$?
    printf '(exit %s)\n' "$code"
    if [ "$code" -ne "$expected" ]; then
        printf 'the demo expected exit %s\n' "$expected" >&2
        exit 1
    fi
}

run 0 build "$here/cpu.toml"        # compiles with the real torch, once for two ranks
run 0 verify "$here/cpu.toml"       # new processes: everything hits, no compiler runs
run 0 verify --fast "$here/cpu.toml"
run 0 clean --all --yes
run 1 verify "$here/cpu.toml"       # and now the proof fails
