#!/bin/sh
# Iceberg's own REST catalog on 127.0.0.1, in the foreground: prints "up" when it is ready.
# usage: iceberg-rest.sh DIR PORT WAREHOUSE [S3_ENDPOINT KEY SECRET [vend]]     needs: Java 17, Maven, network once
# WAREHOUSE is a folder, or s3://bucket/prefix; with "vend" the keys come with each table, as catalogs lend them. Then, with rows in a table:
#   BOWSTRING_ICEBERG_REST="http://127.0.0.1:PORT db.t 90" with iceberg:// before the name runs the test of it (tests/it/dataset/catalog.rs)
set -e
own=$(cd "$(dirname "$0")" && pwd)
dir=$1 port=$2
shift 2
mkdir -p "$dir"
cp "$own/iceberg-rest-pom.xml" "$dir/pom.xml"
# A fetch that was interrupted is begun again.
[ -e "$dir/lib/.done" ] || (cd "$dir" && mvn -B -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=lib && touch lib/.done)
exec java -Xmx256m -cp "$dir/lib/*" "$own/IcebergRest.java" "$port" "$dir/catalog.db" "$@"
