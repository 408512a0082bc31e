#!/usr/bin/env bash
# Prints `turbo` when libjpeg-turbo can be built here, getting what it lacks where that needs no questions: cmake by pip into
# .venv, nasm by apt-get for root. Otherwise prints nothing, and one line on stderr: the pure-Rust JPEG decoder is used.
set -euo pipefail
cd "$(dirname "$0")/.."

has() { command -v "$1" >/dev/null 2>&1; }

fall_back() {
    echo "libjpeg-turbo cannot be built here ($1): the pure-Rust JPEG decoder is used, slower but right" >&2
    exit 0
}

has cc || has gcc || has clang || fall_back "no C compiler"

if ! has cmake; then
    { .venv/bin/python -m pip install --quiet --disable-pip-version-check cmake >&2 && hash -r; } || fall_back "no cmake, and pip could not install it"
    PATH="$PWD/.venv/bin:$PATH" has cmake || fall_back "no cmake"
fi

# Only x86 has its SIMD code in nasm's language; without it the decoder would be slower than the pure-Rust one.
case "$(uname -m)" in
x86_64 | amd64 | i?86)
    if ! has nasm && ! has yasm; then
        if [[ $(id -u) == 0 ]] && has apt-get; then
            { apt-get install -y -qq nasm || { apt-get update -qq && apt-get install -y -qq nasm; }; } >/dev/null 2>&1 || true
        fi
        has nasm || fall_back "no nasm; Debian: apt install nasm, then rm .venv/turbo"
    fi
    ;;
esac

echo turbo
