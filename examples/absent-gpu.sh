#!/bin/sh
# Build for two GPUs that are not here, and verify it, in a store that is thrown away.
#   sh examples/absent-gpu.sh [path of the flexwarm command]
set -eu

flexwarm=${1:-flexwarm}
here=$(dirname "$0")
FLEXWARM_STORE=$(mktemp -d)/store
export FLEXWARM_STORE
trap 'rm -rf "$(dirname "$FLEXWARM_STORE")"' EXIT

for command in build verify; do
    printf '\n$ flexwarm %s --target h200:2 examples/h200.toml\n' "$command"
    "$flexwarm" "$command" --target h200:2 "$here/h200.toml"
done
