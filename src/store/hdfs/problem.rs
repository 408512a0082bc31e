//! Classifies errors of HDFS: if a retry may help, the kind of error, and the remedy.

use hdfs_native::HdfsError;
use object_store::Error as StoreError;

use crate::error::Error;

/// Most characters of a server's text in a message.
const MOST: usize = 300;

/// An error, and whether it may pass.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) passing: bool,
    /// No answer came: the connection is unusable.
    pub(super) hung: bool,
    pub(super) error: StoreError,
}

/// The receiver of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    NameNode,
    DataNodes,
}

/// Makes a store's error with the text of `problem`.
pub(super) fn broken(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Generic { store: "hdfs", source: problem.into() }
}

pub(super) fn missing(path: &str) -> StoreError {
    StoreError::NotFound { path: path.to_owned(), source: "HDFS has no such file".into() }
}

/// Returns the first line of a server's text; a Java stack trace follows it.
fn line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().chars().take(MOST).collect()
}

impl Problem {
    pub(super) fn last(error: StoreError) -> Self {
        Self { passing: false, hung: false, error }
    }

    pub(super) fn passing(problem: String) -> Self {
        Self { passing: true, hung: false, error: broken(problem) }
    }

    /// Classifies `error` about the file at `path`; `cluster` is the cluster's address, `source` the origin of its configuration.
    pub(super) fn of(error: HdfsError, asked: Asked, cluster: &str, source: &str, path: &str) -> Self {
        let kerberos = |what: String| {
            let source = format!(
                "{cluster} wants to know who asks: {what}; run kinit, give hdfs_kerberos_principal and hdfs_kerberos_keytab in \
                 storage_options, or a file of tokens (HADOOP_TOKEN_FILE_LOCATION) for this very address; Kerberos needs libgssapi_krb5 and \
                 hadoop.security.authentication in core-site.xml"
            );
            Self::last(StoreError::Unauthenticated { path: path.to_owned(), source: source.into() })
        };
        match error {
            HdfsError::FileNotFound(_) | HdfsError::IsADirectoryError(_) => Self::last(missing(path)),
            HdfsError::RPCError(exception, text) | HdfsError::FatalRPCError(exception, text) => {
                let said = line(&text);
                match exception.rsplit(['.', '$']).next().unwrap_or_default() {
                    "FileNotFoundException" => Self::last(missing(path)),
                    "StandbyException" => Self::passing(format!(
                        "no name node of {cluster} is active: {said}; look at hdfs haadmin -getAllServiceState"
                    )),
                    "SafeModeException" | "RetriableException" => Self::passing(format!(
                        "the name node of {cluster} is not ready: {said}; it may be in safe mode (hdfs dfsadmin -safemode get), which \
                         ends when enough DataNodes have come"
                    )),
                    "AccessControlException" | "AuthorizationException" if said.contains("authentication") => {
                        kerberos(said)
                    }
                    "AccessControlException" | "AuthorizationException" => {
                        let source = format!(
                            "the name node of {cluster} refuses it: {said}; read as another user (hdfs_user in storage_options, \
                             HADOOP_USER_NAME), or have reading allowed (hdfs dfs -setfacl)"
                        );
                        Self::last(StoreError::PermissionDenied { path: path.to_owned(), source: source.into() })
                    }
                    "InvalidToken" | "SaslException" | "GSSException" => kerberos(said),
                    name => Self::last(broken(format!("the name node of {cluster} answers {name}: {said}"))),
                }
            }
            HdfsError::SASLError(text) => kerberos(line(&text)),
            error @ (HdfsError::GSSAPIError(..) | HdfsError::NoSASLMechanism) => kerberos(line(&error.to_string())),
            HdfsError::UnsupportedFeature(_) => Self::last(broken(Error::unsupported(
                format!("{cluster}/{path}, which lies in an encryption zone,"),
                "copy it out of the zone, or read it where Hadoop decrypts it, through an NFS gateway or HttpFS",
            ))),
            HdfsError::UnsupportedErasureCodingPolicy(policy) => Self::last(broken(Error::unsupported(
                format!("{cluster}/{path}, whose erasure coding is {policy},"),
                "Reed-Solomon and replicated files are read: hdfs ec -setPolicy, and copy it",
            ))),
            HdfsError::IOError(error) if asked == Asked::NameNode => Self::passing(format!(
                "no name node of {cluster} answers ({error}); check the address, that the cluster runs, and {source}"
            )),
            error if asked == Asked::DataNodes => Self::passing(format!(
                "the DataNodes of {cluster} do not give the bytes: {}; see hdfs fsck /{path} -files -blocks -locations",
                line(&error.to_string())
            )),
            error => Self::last(broken(format!("{cluster}: {}", line(&error.to_string())))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(error: HdfsError, asked: Asked) -> (bool, StoreError, String) {
        let Problem { passing, error, .. } = Problem::of(error, asked, "hdfs://ns", "the configuration in /c", "a/b");
        let text = error.to_string();
        (passing, error, text)
    }

    fn rpc(exception: &str, text: &str) -> (bool, StoreError, String) {
        problem(HdfsError::RPCError(exception.to_owned(), text.to_owned()), Asked::NameNode)
    }

    #[test]
    fn what_passes_is_asked_again_and_what_does_not_says_what_to_do() {
        let (passing, error, text) =
            rpc("org.apache.hadoop.security.AccessControlException", "Permission denied: user=eve\n\tat org.apache.X");
        assert!(!passing && matches!(error, StoreError::PermissionDenied { .. }), "{text}");
        assert!(text.contains("user=eve") && text.contains("hdfs_user") && !text.contains("at org"), "{text}");
        let (passing, error, _) = rpc("java.io.FileNotFoundException", "File does not exist: /a/b");
        assert!(!passing && matches!(error, StoreError::NotFound { .. }));
        for (exception, hint) in [
            ("org.apache.hadoop.ipc.StandbyException", "haadmin"),
            ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "safemode"),
            ("org.apache.hadoop.ipc.RetriableException", "safemode"),
        ] {
            let (passing, _, text) = rpc(exception, "x");
            assert!(passing && text.contains(hint) && text.contains("hdfs://ns"), "{text}");
        }
        for exception in [
            "org.apache.hadoop.security.token.SecretManager$InvalidToken",
            "org.apache.hadoop.security.AccessControlException",
        ] {
            let (passing, error, text) = rpc(exception, "SIMPLE authentication is not enabled.");
            assert!(
                !passing && matches!(error, StoreError::Unauthenticated { .. }) && text.contains("kinit"),
                "{text}"
            );
        }
        let (passing, _, text) = rpc("java.lang.NullPointerException", "x");
        assert!(!passing && text.contains("NullPointerException"), "{text}");
    }

    #[test]
    fn a_failed_connection_is_charged_to_the_receiver_of_the_call() {
        let refused = || HdfsError::IOError(std::io::ErrorKind::ConnectionRefused.into());
        let (passing, _, text) = problem(refused(), Asked::NameNode);
        assert!(passing && text.contains("no name node of hdfs://ns") && text.contains("/c"), "{text}");
        let (passing, _, text) = problem(refused(), Asked::DataNodes);
        assert!(passing && text.contains("DataNodes") && text.contains("fsck /a/b"), "{text}");
        let (passing, _, text) = problem(HdfsError::DataTransferError("x".repeat(10_000)), Asked::DataNodes);
        assert!(passing && text.len() < 1000, "{text}");
        let (passing, _, text) = problem(HdfsError::UnsupportedFeature(String::new()), Asked::NameNode);
        assert!(!passing && text.contains("encryption zone"), "{text}");
    }
}
