#!/bin/sh
# Hive 4's own metastore on 127.0.0.1 over embedded Derby, in the foreground; ready when the port opens.
# usage: hive.sh DIR [PORT]     needs: Java 17, Maven, network once
# Then BOWSTRING_HIVE="hms://127.0.0.1:PORT/db.t 90" runs the test of it, with 90 rows in a table (tests/it/dataset/hive.rs).
set -e
own=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/conf" "$1/warehouse"
cd "$1"
cp "$own/hive-pom.xml" pom.xml
# A fetch that was interrupted is begun again.
[ -e lib/.done ] || { mvn -B -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=lib && touch lib/.done; }
p() { echo "<property><name>$1</name><value>$2</value></property>"; }
{
  echo '<configuration>'
  p javax.jdo.option.ConnectionURL "jdbc:derby:;databaseName=db;create=true"
  p javax.jdo.option.ConnectionDriverName org.apache.derby.jdbc.EmbeddedDriver
  p datanucleus.schema.autoCreateAll true
  p metastore.schema.verification false
  p metastore.thrift.bind.host 127.0.0.1
  p metastore.warehouse.dir "file:$PWD/warehouse"
  p metastore.event.db.notification.api.auth false
  p metastore.task.threads.always ""
  echo '</configuration>'
} > conf/metastore-site.xml
exec java -Xmx384m -XX:TieredStopAtLevel=1 -cp "conf:lib/*" org.apache.hadoop.hive.metastore.HiveMetaStore -p "${2:-9083}"
