import java.io.*;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.*;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;

/**
 * A real HDFS in one JVM: one name node, or two of which one is active, and two DataNodes, all on 127.0.0.1. See ../hdfs.sh.
 * Blocks have 256 KiB and two copies, so that small files have several.
 *
 * Lines of the input, each answered by "ok ..." or "error ...":
 *   status | failover | kill-nn I | start-nn I | kill-dn I | start-dn I | safemode on|off
 *   put LOCAL PATH | rm PATH | chmod MODE PATH | touch PREFIX COUNT | calls | quit
 */
public class HdfsCluster {
  static final String NAME = "bowstring";
  static final int DATANODES = 2;

  public static void main(String[] args) throws Exception {
    java.nio.file.Path dir = Paths.get(args[0]).toAbsolutePath();
    boolean ha = args.length < 2 || args[1].equals("ha");
    Configuration conf = new HdfsConfiguration();
    conf.setLong("dfs.blocksize", 256 << 10);
    conf.setLong("dfs.namenode.fs-limits.min-block-size", 4096);
    conf.setInt("dfs.replication", DATANODES);
    conf.setInt("dfs.ha.tail-edits.period", 1);
    conf.setInt("dfs.heartbeat.interval", 1);
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1000); // a dead DataNode is known after about 12 s
    MiniDFSNNTopology topology = ha ? MiniDFSNNTopology.simpleHATopology(2) : MiniDFSNNTopology.simpleSingleNN(0, 0);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf, dir.resolve("data").toFile()).nnTopology(topology).numDataNodes(DATANODES).build();
    if (ha) cluster.transitionToActive(0);
    cluster.waitActive(0);
    writeConf(dir, cluster, ha);
    System.out.println("up");
    int active = 0;
    List<String> addresses = new ArrayList<>();
    cluster.getDataNodes().forEach(node -> addresses.add(node.getDatanodeId().getXferAddr()));
    Map<Integer, MiniDFSCluster.DataNodeProperties> dead = new HashMap<>();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null && !line.equals("quit"); ) {
      String[] words = line.trim().split(" ");
      StringBuilder said = new StringBuilder();
      try {
        FileSystem fs = cluster.getNameNode(active) == null ? null : cluster.getFileSystem(active);
        int number = words.length > 1 && words[1].matches("\\d+") ? Integer.parseInt(words[1]) : 0;
        switch (words[0]) {
          case "status":
            for (int at = 0; at < cluster.getNumNameNodes(); at++)
              said.append(" nn" + at + "=" + (cluster.getNameNode(at) == null ? "down" : cluster.getNameNode(at).getState()));
            said.append(" datanodes=" + (DATANODES - dead.size()));
            break;
          case "failover": // also after the active one was killed
            if (cluster.getNameNode(active) != null && cluster.isNameNodeUp(active)) cluster.transitionToStandby(active);
            cluster.transitionToActive(active = 1 - active);
            said.append(" active=nn" + active);
            break;
          case "kill-nn": cluster.shutdownNameNode(number); break;
          case "start-nn": cluster.restartNameNode(number, false); break; // comes back as standby
          case "kill-dn": dead.put(number, cluster.stopDataNode(addresses.get(number))); break;
          case "start-dn": cluster.restartDataNode(dead.remove(number), true); cluster.waitActive(active); break;
          case "safemode":
            ((DistributedFileSystem) fs).setSafeMode(words[1].equals("on") ? SafeModeAction.SAFEMODE_ENTER : SafeModeAction.SAFEMODE_LEAVE);
            break;
          case "put": fs.copyFromLocalFile(false, true, new Path(words[1]), new Path(words[2])); break;
          case "rm": fs.delete(new Path(words[1]), true); break;
          case "chmod": fs.setPermission(new Path(words[2]), new FsPermission(Short.parseShort(words[1], 8))); break;
          case "touch": // COUNT empty files PREFIX0, PREFIX1, ...
            for (int at = 0; at < Integer.parseInt(words[2]); at++) fs.create(new Path(words[1] + at)).close();
            break;
          case "calls": // how often a name node was asked where blocks are, for a file, for a listing
            Object metrics = NameNode.getNameNodeMetrics();
            for (String name : new String[] {"getBlockLocations", "fileInfoOps", "getListingOps"}) {
              Field field = metrics.getClass().getDeclaredField(name);
              field.setAccessible(true);
              said.append(" " + ((MutableCounterLong) field.get(metrics)).value());
            }
            break;
          default: throw new IllegalArgumentException(words[0]);
        }
        System.out.println("ok" + said);
      } catch (Exception error) {
        System.out.println("error " + String.valueOf(error).lines().findFirst().orElse(""));
      }
    }
    cluster.shutdown(true);
    System.exit(0);
  }

  /** What clients read as HADOOP_CONF_DIR. */
  static void writeConf(java.nio.file.Path dir, MiniDFSCluster cluster, boolean ha) throws IOException {
    Configuration core = new Configuration(false), hdfs = new Configuration(false);
    List<String> ids = new ArrayList<>(), ports = new ArrayList<>();
    for (int at = 0; at < cluster.getNumNameNodes(); at++) {
      ids.add("nn" + at);
      ports.add("127.0.0.1:" + cluster.getNameNodePort(at));
      hdfs.set("dfs.namenode.rpc-address." + NAME + ".nn" + at, ports.get(at));
    }
    if (ha) {
      hdfs.set("dfs.nameservices", NAME);
      hdfs.set("dfs.ha.namenodes." + NAME, String.join(",", ids));
      hdfs.set("dfs.client.failover.proxy.provider." + NAME,
          "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider");
    }
    core.set("fs.defaultFS", "hdfs://" + (ha ? NAME : ports.get(0)));
    Files.createDirectories(dir.resolve("conf"));
    try (OutputStream out = Files.newOutputStream(dir.resolve("conf/core-site.xml"))) { core.writeXml(out); }
    try (OutputStream out = Files.newOutputStream(dir.resolve("conf/hdfs-site.xml"))) { hdfs.writeXml(out); }
    Files.write(dir.resolve("ports.txt"), ports);
  }
}
