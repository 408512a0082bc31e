#!/usr/bin/env bash
# The container image without a container: the static binary in a root filesystem of its own, as the Dockerfile makes it, and what it does
# there as nobody's user, in a network namespace of its own. Needs root, musl-gcc, cmake, nasm, and Rust's target *-linux-musl.
# Where musl is installed, Spark's snappy takes the machine for one of musl, and the tests with Spark fail: remove it before `make test`.
#
#   bash scripts/image.sh dist/image
set -euo pipefail
cd "$(dirname "$0")/.."
: "${MOST_BYTES:=50000000}"
target=$(uname -m)-unknown-linux-musl
for tool in musl-gcc cmake nasm chroot unshare; do
    command -v "$tool" >/dev/null || { echo "no $tool (Debian: musl-tools, cmake, nasm)" >&2; exit 1; }
done
rustc --print target-libdir --target "$target" | xargs test -d || { echo "rustup target add $target" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "chroot needs root" >&2; exit 1; }

variable=CC_${target//-/_}
env "$variable=musl-gcc" cargo build --locked --profile image --target "$target" --package bowstring --bin bowstring --features turbo
rm -rf "$1"
mkdir -p "$1"/{dev,tmp,data,proc,etc/ssl/certs}
root=$(cd "$1" && pwd)
chmod 1777 "$root/tmp"
cp "${CARGO_TARGET_DIR:-target}/$target/image/bowstring" LICENSE "$root"
python3 scripts/notices.py --output "$root/THIRD-PARTY-NOTICES.txt"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs"
cp fixtures/imagenet40.parquet "$root/data"

bytes=$(stat --format %s "$root/bowstring")
echo "/bowstring has $bytes bytes"
((bytes < MOST_BYTES)) || { echo "more than $MOST_BYTES" >&2; exit 1; }
if ldd "$root/bowstring" 2>&1 | grep -q '=>'; then
    echo "it is not static" >&2
    exit 1
fi

# A new network has its own loopback, which is down. Containers have /proc and /dev.
export ROOT=$root PYTHONPATH=$PWD/python PY=${PY:-$PWD/.venv/bin/python}
unshare --net --mount bash -euo pipefail -c '
    ip link set lo up
    for name in dev proc; do mount --rbind "/$name" "$ROOT/$name"; done
    inside=(chroot --userspec=65532:65532 "$ROOT" /bowstring)
    "${inside[@]}" --version
    "${inside[@]}" demo --epochs 1
    "${inside[@]}" serve photos=/data --listen 127.0.0.1:8815 --admin 127.0.0.1:9090 &
    serving=$!
    trap "kill $serving 2>/dev/null || true" EXIT
    for _ in {1..50}; do
        curl --silent --fail http://127.0.0.1:9090/readyz >/dev/null && break
        sleep 0.2
    done
    for rank in 0 1; do
        "$PY" - "$rank" <<"EOF" &
import sys
from bowstring import Loader
loader = Loader("grpc://127.0.0.1:8815/photos", batch_size=4, columns=["label"], row_id=True, rank=int(sys.argv[1]), world_size=2)
print("rank", sys.argv[1], "has", sum(len(batch["_row_id"]) for batch in loader), "of 40 rows")
EOF
        ranks+=($!)
    done
    wait "${ranks[@]}"
    kill "$serving"
    wait "$serving"
'
echo "$1: served 40 rows to two ranks, drained on SIGTERM"
