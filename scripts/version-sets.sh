#!/usr/bin/env bash
# The package with the Pythons and libraries of Databricks' supported images, and with the oldest and the newest Pythons: makes an environment
# for each set and runs the tests that need no framework with the extension that python/bowstring has.
#
#   bash scripts/version-sets.sh                 all sets whose Python is here
#   bash scripts/version-sets.sh 15.4 -k petastorm   one set, with options of pytest
#
# A Python is looked for as pythonX.Y on the path, and among those of pyenv. A set whose Python or packages cannot be had is named as left out;
# with NEED=all that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
where=${VERSION_SETS:-target/version-sets}
mkdir -p "$where"

# Name, Python, packages. pandas 1.5 has no wheel for Python 3.12: 16.4 builds it, which takes minutes and a C compiler, or is left out.
sets='14.3 3.10 numpy==1.23.5 pandas==1.5.3 pyarrow==8.0.0
15.4 3.11 numpy==1.23.5 pandas==1.5.3 pyarrow==14.0.1
16.4 3.12 numpy==1.26.4 pandas==1.5.3 pyarrow==15.0.2
16.4-without-pandas 3.12 numpy==1.26.4 pyarrow==15.0.2
17.3 3.12 numpy==2.1.3 pandas==2.2.3 pyarrow==19.0.1
latest-3.10 3.10 numpy pandas pyarrow
latest-3.13 3.13 numpy pandas pyarrow
latest-3.14 3.14 numpy pandas pyarrow'
tools='pytest==9.2.0 pytest-rerunfailures==16.7 pytest-timeout==2.4.0 pytest-xdist==3.8.0 pyyaml==6.0.4'

python_of() {
    command -v "python$1" 2>/dev/null || ls -d ~/.pyenv/versions/"$1".*/bin/python 2>/dev/null | sort -V | tail -1
}

# What the sets lack: PyTorch and Spark. Files that need one of them at once cannot even be collected.
mapfile -t lacking < <(cd python && grep -lE '^(import|from) (torch|bowstring\.torch|pyspark)' tests/*.py tests/petastorm/*.py)
ignored=(--ignore tests/frameworks --ignore tests/loops)
for file in "${lacking[@]}"; do ignored+=(--ignore "$file"); done

left_out() {
    echo "$name: left out: $1"
    [[ ${NEED:-} != all ]] || failed=1
}

only=''
if [[ $# -gt 0 && $1 != -* ]]; then only=$1; shift; fi
failed=0 found=0
while read -r name version packages; do
    [[ -z $only || $only == "$name" ]] || continue
    found=1
    # pyenv's stand-ins are on the path even for versions that are not installed.
    python=$(python_of "$version")
    if [[ -z $python ]] || ! "$python" -c '' 2>/dev/null; then left_out "no Python $version here"; continue; fi
    if [[ ! -e $where/$name/ready ]]; then
        rm -rf "${where:?}/$name"
        "$python" -m venv "$where/$name"
        # shellcheck disable=SC2086 # several words
        if ! "$where/$name/bin/python" -m pip install --quiet --disable-pip-version-check $packages $tools > "$where/$name.log" 2>&1; then
            left_out "$packages cannot be installed ($where/$name.log)"
            continue
        fi
        touch "$where/$name/ready"
    fi
    interpreter=$PWD/$where/$name/bin/python
    [[ $where != /* ]] || interpreter=$where/$name/bin/python
    echo "$name: Python $version, $packages"
    (cd python && PYTHONPATH=$PWD "$interpreter" -m pytest -n 2 --dist loadfile "${ignored[@]}" "$@") || failed=1
done <<< "$sets"
if [[ $found == 0 ]]; then echo "no set is named $only" >&2; exit 2; fi
exit "$failed"
