#!/usr/bin/env bash
# A SLURM cluster on this machine: each node has a network namespace, a host name and an address of its own. In the foreground; for tests.
# Needs root, iproute2, util-linux, and Debian's slurm-wlm and munge.
#
#   bash scripts/servers/slurm.sh DIR [NODES]           3 nodes by default, each with 32 processors by its own word
#   BOUND=1 bash scripts/servers/slurm.sh DIR [NODES]   each with the machine's own, and tasks bound to theirs
#
# It prints `up` when the nodes are ready; DIR/slurm.conf is the SLURM_CONF of sbatch, squeue and others, and names of nodes (n1, n2, ...)
# resolve on the nodes alone. It ends with its input, or by a signal, and takes the nodes with it.
#
#   SLURM_CONF=DIR/slurm.conf sbatch --wait deploy/slurm/train.sbatch train.py
set -euo pipefail
for tool in ip unshare nsenter munged slurmctld slurmd; do
    command -v "$tool" >/dev/null || { echo "no $tool (Debian: iproute2, util-linux, slurm-wlm, munge)" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "nodes are namespaces, which need root" >&2; exit 1; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
nodes=${2:-3}
bridge=slurm$$
net=10.78.0
host=$(hostname -s)
started=()
exec 3<&0

stop() {
    trap - EXIT
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    wait || true
    for ((n = 1; n <= nodes; n++)); do ip netns del "$bridge-n$n" 2>/dev/null || true; done
    ip link del "$bridge" 2>/dev/null || true
}
trap stop EXIT
trap 'exit 0' TERM INT

# munged asks that nobody else can write on the way to its key and its log, and that all can reach its socket.
mkdir -p "$dir"/{key,door,state,log}
chmod 700 "$dir/key" "$dir/log"
chmod 755 "$dir/door"
[ -e "$dir/key/munge.key" ] || head -c 1024 /dev/urandom >"$dir/key/munge.key"
chmod 400 "$dir/key/munge.key"
munged --foreground --force --socket="$dir/door/munge" --key-file="$dir/key/munge.key" --pid-file="$dir/key/pid" \
    --seed-file="$dir/key/seed" --log-file="$dir/log/munge" 2>>"$dir/log/munge.err" &
started+=($!)

{
    echo "127.0.0.1 localhost"
    echo "$net.254 $host"
    for ((n = 1; n <= nodes; n++)); do echo "$net.$n n$n"; done
} >"$dir/hosts"

# By default more processors than the machine has (config_overrides), so that jobs of any size run; tasks are then bound to none of them.
tasks=none processors=32
[ -z "${BOUND:-}" ] || tasks=affinity processors=$(nproc)
cat >"$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host($net.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/door/munge
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/state/slurmctld.pid
SlurmdPidFile=$dir/spool-%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/$tasks
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=30
NodeName=n[1-$nodes] NodeAddr=$net.[1-$nodes] Sockets=1 CoresPerSocket=$processors ThreadsPerCore=1 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$dir/slurm.conf

ip link add "$bridge" type bridge
ip addr add "$net.254/24" dev "$bridge"
ip link set "$bridge" up
slurmctld -D -c 2>>"$dir/log/slurmctld.err" &
started+=($!)
for ((n = 1; n <= nodes; n++)); do
    space=$bridge-n$n
    ip netns add "$space"
    ip link add "$bridge.$n" type veth peer name eth0 netns "$space"
    ip link set "$bridge.$n" master "$bridge" up
    ip -n "$space" addr add "$net.$n/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
    mkdir -p "$dir/spool-n$n"
    # shellcheck disable=SC2016 # the node's own shell has these
    nsenter --net="/run/netns/$space" -- unshare --uts --mount -- bash -euc '
        hostname "$1"
        mount --bind "$2/hosts" /etc/hosts
        exec slurmd -D' node "n$n" "$dir" 2>>"$dir/log/slurmd-n$n.err" &
    started+=($!)
done

for ((tries = 0; ; tries++)); do
    [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null | tr -d ' ')" != "$nodes" ] || break
    ((tries < 120)) || { echo "the nodes are not ready; see $dir/log" >&2; exit 1; }
    sleep 0.5
done
echo up
# In the background, where a signal ends the wait for it; a shell would give it no input there.
cat <&3 >/dev/null &
started+=($!)
wait $!
