//! The Hadoop configuration and the user: from `storage_options`, then from the variables that Hadoop's own client reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::keys;

/// Key for the time that a DataNode may be silent.
const SOCKET_TIMEOUT: &str = "dfs.client.socket-timeout";

/// First bytes of a file of delegation tokens; its format follows, 0 or 1.
const TOKENS: &[u8] = b"HDTS";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Settings {
    /// The directory of `core-site.xml` and `hdfs-site.xml`.
    pub(super) directory: Option<PathBuf>,
    /// Keys of Hadoop that override those of the files.
    pub(super) pairs: BTreeMap<String, String>,
    pub(super) user: Option<String>,
    pub(super) principal: Option<String>,
    pub(super) keytab: Option<String>,
    pub(super) cache: Option<String>,
    /// Time that a name node may take to answer.
    pub(super) timeout: Duration,
}

impl Settings {
    /// Reads `options` and the variables of `environment`.
    ///
    /// # Errors
    /// [`Error::Config`] for a wrong value: no duration, no directory, an invalid file of tokens.
    pub(in crate::store) fn new(
        options: &BTreeMap<String, String>,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self> {
        let option = |name: &str| {
            let mut found = options.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            found.next().map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
        };
        let mut pairs: BTreeMap<String, String> = options
            .iter()
            .filter(|(key, _)| keys::is_of_hadoop(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let given = option("timeout").map(|text| {
            humantime::parse_duration(&text).map_err(|error| {
                Error::config("storage_options", format!("timeout is no duration such as 30s: {error}"))
            })
        });
        let given = given.transpose()?;
        if let Some(timeout) = given {
            pairs.entry(SOCKET_TIMEOUT.to_owned()).or_insert_with(|| timeout.as_millis().max(1).to_string());
        }
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(tokens) = variable("HADOOP_TOKEN_FILE_LOCATION") {
            check_tokens(&tokens)?;
        }
        let settings = Self {
            directory: directory(option("hdfs_conf_dir").map(PathBuf::from), &variable)?,
            pairs,
            user: option("hdfs_user"),
            principal: option("hdfs_kerberos_principal"),
            keytab: option("hdfs_kerberos_keytab"),
            cache: option("hdfs_kerberos_cache"),
            timeout: given.unwrap_or(Duration::from_secs(30)),
        };
        if settings.keytab.is_some() && settings.principal.is_none() {
            let problem = "hdfs_kerberos_keytab needs hdfs_kerberos_principal: whose key is it?";
            return Err(Error::config("storage_options", problem));
        }
        Ok(settings)
    }

    /// Returns the origin of the configuration, for messages.
    pub(super) fn source(&self) -> String {
        match &self.directory {
            Some(directory) => format!("the configuration in {}", directory.display()),
            None => "HADOOP_CONF_DIR, which is not set".to_owned(),
        }
    }
}

/// Returns the directory of the configuration; a named one must exist.
fn directory(given: Option<PathBuf>, variable: &dyn Fn(&str) -> Option<PathBuf>) -> Result<Option<PathBuf>> {
    let named = match given {
        Some(directory) => Some((directory, "hdfs_conf_dir")),
        None => variable("HADOOP_CONF_DIR").map(|directory| (directory, "HADOOP_CONF_DIR")),
    };
    let Some((directory, name)) = named else {
        return Ok(variable("HADOOP_HOME").map(|home| home.join("etc/hadoop")));
    };
    if directory.is_dir() {
        return Ok(Some(directory));
    }
    let problem = format!("{name} is {}, which is no directory; it is the one of core-site.xml", directory.display());
    Err(Error::config("storage_options", problem))
}

/// Checks that the file at `path` is a file of tokens: the client ignores files that it cannot read, and then calls without a user.
fn check_tokens(path: &Path) -> Result<()> {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(TOKENS.len() as u64 + 1).read_to_end(&mut start));
    let what = match read {
        Err(error) => format!("cannot be read: {error}"),
        Ok(_) if start.strip_prefix(TOKENS).is_some_and(|format| matches!(format, [0 | 1])) => return Ok(()),
        Ok(_) => "is no file of Hadoop's tokens".to_owned(),
    };
    let problem = format!("HADOOP_TOKEN_FILE_LOCATION, {}, {what}; unset it, or have it written anew", path.display());
    Err(Error::config("storage_options", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<Settings> {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let environment = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value))
        };
        Settings::new(&options, &environment)
    }

    #[test]
    fn options_go_before_variables_and_those_before_the_home() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&two).unwrap();
        let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
        let directory = |options: &[(&str, &str)], variables: &[(&str, &str)]| {
            settings(options, variables).unwrap().directory.map(|found| found.to_str().unwrap().to_owned())
        };
        let all = [("HADOOP_CONF_DIR", two), ("HADOOP_HOME", "/opt/hadoop")];
        assert_eq!(directory(&[("hdfs_conf_dir", one)], &all).as_deref(), Some(one));
        assert_eq!(directory(&[], &all).as_deref(), Some(two));
        assert_eq!(directory(&[], &all[1..]).as_deref(), Some("/opt/hadoop/etc/hadoop"));
        assert_eq!(directory(&[], &[]), None);
        for (options, variables, named) in [
            (&[("hdfs_conf_dir", "/nowhere")][..], &all[..], "hdfs_conf_dir"),
            (&[], &[("HADOOP_CONF_DIR", "/nowhere")], "HADOOP_CONF_DIR"),
        ] {
            let error = settings(options, variables).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("/nowhere"), "{error}");
        }
    }

    #[test]
    fn keys_of_hadoop_are_handed_on_and_a_timeout_is_its_own() {
        let found = settings(&[("dfs.ha.namenodes.A", "x,y"), ("timeout", "7s"), ("hdfs_user", "eve")], &[]).unwrap();
        assert_eq!(found.pairs["dfs.ha.namenodes.A"], "x,y");
        assert_eq!(found.pairs["dfs.client.socket-timeout"], "7000");
        assert_eq!((found.timeout, found.user.as_deref()), (Duration::from_secs(7), Some("eve")));
        assert!(!found.pairs.contains_key("timeout") && !found.pairs.contains_key("hdfs_user"));
        let found = settings(&[("dfs.client.socket-timeout", "5"), ("timeout", "7s")], &[]).unwrap();
        assert_eq!(found.pairs["dfs.client.socket-timeout"], "5");
        // The configuration of the site stays.
        assert!(!settings(&[], &[]).unwrap().pairs.contains_key("dfs.client.socket-timeout"));
        assert!(settings(&[("timeout", "soon")], &[]).unwrap_err().to_string().contains("timeout"));
        let error = settings(&[("hdfs_kerberos_keytab", "/k")], &[]).unwrap_err().to_string();
        assert!(error.contains("hdfs_kerberos_principal"), "{error}");
    }

    #[test]
    fn an_invalid_file_of_tokens_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let path = path.to_str().unwrap();
        let problem = || settings(&[], &[("HADOOP_TOKEN_FILE_LOCATION", path)]).err().map(|error| error.to_string());
        assert!(problem().unwrap().contains("cannot be read"));
        for (bytes, good) in [(&b"HDTS\x00\x00"[..], true), (b"HDTS\x01", true), (b"HDTS\x02", false), (b"HDT", false)]
        {
            std::fs::write(path, bytes).unwrap();
            assert_eq!(problem().is_none(), good, "{bytes:?}: {:?}", problem());
        }
    }
}
