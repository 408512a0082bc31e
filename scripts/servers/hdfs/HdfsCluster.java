import java.io.*;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.*;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction;
import org.apache.hadoop.hdfs.security.token.delegation.DelegationTokenIdentifier;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;

/**
 * A real HDFS in one JVM: one name node, or two of which one is active, and two DataNodes, all on 127.0.0.1. See ../hdfs.sh.
 * Blocks have 256 KiB and two copies, so that small files have several.
 *
 * `secure` is the same with Kerberos: krb5.conf, the keys of alice (alice.keytab) and a delegation token (tokens) are beside the configuration.
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
    String mode = args.length < 2 ? "ha" : args[1];
    boolean ha = !mode.equals("single"), secure = mode.equals("secure");
    Configuration conf = new HdfsConfiguration();
    conf.setLong("dfs.blocksize", 256 << 10);
    conf.setLong("dfs.namenode.fs-limits.min-block-size", 4096);
    conf.setInt("dfs.replication", DATANODES);
    conf.setInt("dfs.ha.tail-edits.period", 1);
    conf.setInt("dfs.heartbeat.interval", 1);
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1000); // a dead DataNode is known after about 12 s
    if (secure) startKerberos(dir, conf);
    MiniDFSNNTopology topology = ha ? MiniDFSNNTopology.simpleHATopology(2) : MiniDFSNNTopology.simpleSingleNN(0, 0);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf, dir.resolve("data").toFile()).nnTopology(topology).numDataNodes(DATANODES).build();
    if (ha) cluster.transitionToActive(0);
    cluster.waitActive(0);
    writeConf(dir, cluster, ha, secure);
    if (secure) writeToken(dir, cluster);
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

  /** A key server, and everybody's keys. */
  static void startKerberos(java.nio.file.Path dir, Configuration conf) throws Exception {
    MiniKdc kdc = new MiniKdc(MiniKdc.createConf(), Files.createDirectories(dir.resolve("kdc")).toFile());
    kdc.start();
    File keys = dir.resolve("server.keytab").toFile();
    kdc.createPrincipal(keys, "hdfs/localhost", "HTTP/localhost");
    kdc.createPrincipal(dir.resolve("alice.keytab").toFile(), "alice");
    Files.copy(kdc.getKrb5conf().toPath(), dir.resolve("krb5.conf"), StandardCopyOption.REPLACE_EXISTING);
    String hdfs = "hdfs/localhost@" + kdc.getRealm();
    conf.set("hadoop.security.authentication", "kerberos");
    conf.set("hadoop.security.authorization", "true");
    conf.set("dfs.data.transfer.protection", "authentication");
    conf.set("dfs.block.access.token.enable", "true");
    conf.set("ignore.secure.ports.for.testing", "true");
    for (String node : new String[] {"namenode", "datanode"}) {
      conf.set("dfs." + node + ".keytab.file", keys.getPath());
      conf.set("dfs." + node + ".kerberos.principal", hdfs);
    }
    conf.set("dfs.web.authentication.kerberos.principal", "HTTP/localhost@" + kdc.getRealm());
    conf.set("dfs.web.authentication.kerberos.keytab", keys.getPath());
    UserGroupInformation.setConfiguration(conf);
    UserGroupInformation.loginUserFromKeytab(hdfs, keys.getPath());
  }

  /** A delegation token in a file, as YARN gives it to containers. */
  static void writeToken(java.nio.file.Path dir, MiniDFSCluster cluster) throws IOException {
    Token<DelegationTokenIdentifier> token = cluster.getNameNodeRpc(0).getDelegationToken(new Text("hdfs"));
    token.setService(new Text("ha-hdfs:" + NAME));
    Credentials credentials = new Credentials();
    credentials.addToken(token.getService(), token);
    try (DataOutputStream out = new DataOutputStream(Files.newOutputStream(dir.resolve("tokens")))) {
      credentials.writeTokenStorageToStream(out);
    }
  }

  /** What clients read as HADOOP_CONF_DIR. */
  static void writeConf(java.nio.file.Path dir, MiniDFSCluster cluster, boolean ha, boolean secure) throws IOException {
    Configuration core = new Configuration(false), hdfs = new Configuration(false);
    if (secure) {
      core.set("hadoop.security.authentication", "kerberos");
      hdfs.set("dfs.data.transfer.protection", "authentication");
    }
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
