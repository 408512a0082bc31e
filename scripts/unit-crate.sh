#!/usr/bin/env bash
# Makes a crate of the library alone in DIRECTORY: the same sources and the same versions, without Python, benches, examples, integration tests and
# the libraries that only they need. Under Miri and the sanitizers everything is built anew, and this is half of it.
# unit-crate.sh DIRECTORY
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
# Sections of other targets go, and the members of the workspace.
awk '
    /^\[/ { kept = !/^\[\[/ && !/^\[package\.metadata/ && !/^\[profile/; dev = /^\[dev-dependencies\]/ }
    /^members = / { print "members = []"; next }
    /^default-members = / || /^readme = / || /^include = / { next }
    dev && /^(brotli|bzip2|criterion|rcgen|turmoil) = / { next }
    kept { print }
    END { print "\n[profile.dev]\nopt-level = 1\ndebug = \"line-tables-only\"" }
' "$root/Cargo.toml" > "$1/Cargo.toml.new"
cmp -s "$1/Cargo.toml.new" "$1/Cargo.toml" || cp "$1/Cargo.toml.new" "$1/Cargo.toml"
cp "$root/Cargo.lock" "$1/Cargo.lock"
for part in src fixtures README.md; do ln -sfn "$root/$part" "$1/$part"; done
