#!/usr/bin/env bash
# The image in containers of Docker or Podman: the demo, a server as the recipes start it, two ranks from the host, an end by SIGTERM and
# a start anew in the middle, and the codes with which it ends. Needs a daemon on this machine, or Podman.
#
#   make container                                        builds the Dockerfile first, where IMAGE names no image
#   ENGINE="podman --runtime runc" IMAGE=bowstring RUN="--ulimit nofile=1024:1024" bash scripts/container.sh
set -euo pipefail
cd "$(dirname "$0")/.."
: "${ENGINE:=$(command -v docker podman | head -n 1)}"
: "${RUN:=}" "${PORT:=8815}" "${ADMIN:=9090}"
[[ -n $ENGINE ]] || { echo "no container engine: install docker or podman, or name one in ENGINE" >&2; exit 1; }
read -ra engine <<<"$ENGINE"
read -ra more <<<"$RUN"
"${engine[@]}" version >/dev/null || { echo "$ENGINE does not answer" >&2; exit 1; }

if [[ -z ${IMAGE:-} ]]; then
    IMAGE=bowstring
    "${engine[@]}" build --tag "$IMAGE" .
fi
echo "$IMAGE has $("${engine[@]}" image inspect --format '{{.Size}}' "$IMAGE") bytes"

made=$(mktemp -d)
name=bowstring-check-$$
secure=(--read-only --cap-drop ALL --security-opt no-new-privileges "${more[@]}")
run() { "${engine[@]}" run --rm "${secure[@]}" "$@"; }
clean() {
    touch "$made/end"
    "${engine[@]}" rm --force "$name" >/dev/null 2>&1 || true
    rm -rf "$made"
}
trap clean EXIT
fail() {
    echo "$*" >&2
    "${engine[@]}" logs "$name" >&2 || true
    exit 1
}
ready() {
    for _ in {1..100}; do
        [[ $(curl --silent "http://127.0.0.1:$ADMIN/readyz") == ready ]] && return
        sleep 0.2
    done
    fail "the server is not ready after 20 s"
}
metric() { curl --silent --fail "http://127.0.0.1:$ADMIN/metrics" | sed -n "s/^bowstring_$1 //p"; }
ends() { # ends CODE ARGUMENT...: the container ends with that code
    local code=0
    run --network none "${@:2}" >"$made/said" 2>&1 || code=$?
    [[ $code == "$1" ]] || { cat "$made/said" >&2; fail "$* ended with $code"; }
}

run --network none "$IMAGE" --version
# Its pictures are written to a directory of their own.
run --network none --tmpfs /tmp "$IMAGE" demo --epochs 1

photos=(--volume "$PWD/fixtures/imagenet40.parquet:/data/photos.parquet:ro" "$IMAGE" serve photos=/data)
ends 2 "$IMAGE" serve --listne
ends 2 "${photos[@]}" --listen 0.0.0.0:8815
ends 2 "$IMAGE" serve photos=/data
ends 3 --volume "$PWD/LICENSE:/data/photos.parquet:ro" "$IMAGE" serve photos=/data
echo "ends with 2 for wrong flags, an open address without tokens and a path that is not there, with 3 for a file that is not Parquet"

start() { # start MEMORY ARGUMENT...: a server in the background
    "${engine[@]}" run --detach --name "$name" "${secure[@]}" --memory "$1" --publish "127.0.0.1:$PORT:8815" --publish "127.0.0.1:$ADMIN:9090" \
        "${photos[@]}" --listen 0.0.0.0:8815 --admin 0.0.0.0:9090 --insecure "${@:2}" >/dev/null
    ready
}

# Without a budget it keeps to the container's memory.
start 1g
budget=$(metric memory_budget_bytes)
((budget > 256 << 20 && budget <= 512 << 20)) || fail "a budget of $budget bytes in 1 GiB"
"${engine[@]}" rm --force "$name" >/dev/null
echo "a container of 1 GiB has a budget of $((budget >> 20)) MiB"

start 5g --memory-budget 4GiB
status=/proc/$("${engine[@]}" inspect --format '{{.State.Pid}}' "$name")/status
grep -qx $'Uid:\t65532\t65532\t65532\t65532' "$status" || fail "it runs as another user: $(grep Uid "$status")"
grep -qx $'CapEff:\t0000000000000000' "$status" || fail "it has capabilities"
grep -qx $'NoNewPrivs:\t1' "$status" || fail "it may get privileges"

# Each reads epoch after epoch, of which each row comes once, until it is told to end, and one more.
for rank in 0 1; do
    PYTHONPATH=$PWD/python "${PY:-$PWD/.venv/bin/python}" - "$rank" "$made" "grpc://127.0.0.1:$PORT/photos" <<'EOF' &
import pathlib, sys
from bowstring import Loader

rank, made, url = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
loader = Loader(url, batch_size=4, columns=["label"], row_id=True, rank=rank, world_size=2)
epochs, last = 0, False
while not last:
    last = (made / "end").exists()
    rows = [int(row) for batch in loader for row in batch["_row_id"]]
    assert len(rows) == len(set(rows)) == 20, f"rank {rank}, epoch {epochs}: {sorted(rows)}"
    epochs += 1
    (made / f"begun-{rank}").touch()
print(f"rank {rank}: {epochs} epochs, each row once", flush=True)
EOF
    ranks+=($!)
done
for _ in {1..150}; do
    [[ -e $made/begun-0 && -e $made/begun-1 ]] && break
    sleep 0.2
done
[[ -e $made/begun-0 && -e $made/begun-1 ]] || fail "the ranks do not read"

SECONDS=0
"${engine[@]}" stop --time 40 "$name" >/dev/null
code=$("${engine[@]}" inspect --format '{{.State.ExitCode}}' "$name")
[[ $code == 0 ]] || fail "SIGTERM ended it with $code after $SECONDS s"
echo "SIGTERM ended it with 0, in $SECONDS s, while two ranks read"
"${engine[@]}" start "$name" >/dev/null
ready
touch "$made/end"
for rank in "${ranks[@]}"; do wait "$rank" || fail "a rank failed"; done
"${engine[@]}" stop --time 40 "$name" >/dev/null
echo "$IMAGE: served two ranks over the bridge, through its restart"
