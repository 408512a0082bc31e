#!/bin/sh
# Installs the one wheel of a directory into a fresh environment and uses it: no compiler, no other package, no checkout.
#
#   sh scripts/try-wheel.sh dist
set -eu
wheels=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
# From the directory alone, and of the tag that this Python takes.
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --find-links "$wheels" bowstring
venv/bin/bowstring --version
venv/bin/bowstring doctor > doctor.txt || { cat doctor.txt; exit 1; }
cat doctor.txt
grep -q hdfs:// doctor.txt
venv/bin/bowstring demo --epochs 2
venv/bin/python -c 'import bowstring; print(bowstring.__version__, bowstring.doctor()["jpeg_decoder"])'
