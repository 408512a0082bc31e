#!/usr/bin/env bash
# A real HDFS in one JVM on 127.0.0.1: two name nodes of which one is active, and two DataNodes, for tests.
# Needs Java 11 or newer, and Maven the first time, which fetches Hadoop (93 MB) into ${SERVERS:-.servers}/hdfs.
#
#   bash scripts/servers/hdfs.sh DIR [ha|single|secure]
#
# It prints `up` when it is ready; DIR/conf is the HADOOP_CONF_DIR of clients. Commands come in lines, see hdfs/HdfsCluster.java; it ends
# with its input. `bash scripts/servers/hdfs.sh --fetch` only fetches.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
servers=${SERVERS:-$here/../../.servers}
lib=$servers/hdfs/lib
if [ ! -e "$lib/.done" ]; then
    command -v mvn >/dev/null || { echo "no Maven, which fetches Hadoop" >&2; exit 1; }
    mkdir -p "$lib"
    mvn --batch-mode --quiet --file "$here/hdfs/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$(cd "$lib" && pwd)" >&2
    touch "$lib/.done"
fi
[ "$1" = --fetch ] && exit
mkdir -p "$1"
exec java -Xmx512m -cp "$lib/*" -Dorg.slf4j.simpleLogger.defaultLogLevel=warn "$here/hdfs/HdfsCluster.java" "$@"
