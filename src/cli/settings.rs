//! The settings of a server from three places: its file, the environment, flags. The later ones override the earlier.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, CommandFactory as _, Parser};
use serde_json::Value;

use crate::flight::server::file::{MAX_FILE, ServeFile};
use crate::flight::server::{Catalogue, Entry};
use crate::pipeline::option_table::{OPTIONS, OptionEntry};
use crate::store::{Mounts, at_home, path_at_home};
use crate::{Error, Result};

use crate::cli::args::{MaybeSwitch, bytes, switch};
use crate::cli::daemon::Access;

/// Flags and variables that override keys of `[server]`.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Settings {
    /// Address and port for Flight; `:8815` is every interface [default: 127.0.0.1:8815]
    #[arg(long, env = "BOWSTRING_LISTEN", value_name = "ADDR", hide_env_values = true)]
    listen: Option<String>,
    #[command(flatten)]
    access: Access,
    /// File of tokens, one `tenant:token` or `tenant:sha256:<hex>` per line, readable by you alone
    #[arg(long, env = "BOWSTRING_TOKENS", value_name = "FILE", hide_env_values = true)]
    tokens: Option<PathBuf>,
    /// File of at least 32 random bytes, the key that signs tickets; the same for all replicas
    #[arg(long, env = "BOWSTRING_KEY_FILE", value_name = "FILE", hide_env_values = true)]
    key_file: Option<PathBuf>,
    /// Address of a replica for clients, this server included, e.g. grpc://10.0.0.2:8815; may be repeated
    #[arg(
        long = "replica",
        env = "BOWSTRING_REPLICAS",
        value_name = "URL",
        value_delimiter = ',',
        hide_env_values = true
    )]
    replicas: Vec<String>,
    /// Memory for everything in flight, e.g. 512MiB or 2GiB
    #[arg(long, env = "BOWSTRING_MEMORY_BUDGET", value_name = "BYTES", value_parser = bytes, hide_env_values = true)]
    memory_budget: Option<u64>,
    /// CPU threads for decoding
    #[arg(long, env = "BOWSTRING_THREADS", value_name = "N", hide_env_values = true)]
    threads: Option<usize>,
    /// Concurrent streams of batches over all tenants
    #[arg(long, env = "BOWSTRING_MAX_STREAMS", value_name = "N", hide_env_values = true)]
    max_streams: Option<u32>,
    /// Seconds for streams to end after SIGTERM [default: 30]
    #[arg(long, env = "BOWSTRING_DRAIN_GRACE", value_name = "SECONDS", hide_env_values = true)]
    drain_grace: Option<f64>,
    /// File in which a gang's generation and step survive a crash
    #[arg(long, env = "BOWSTRING_JOURNAL", value_name = "FILE", hide_env_values = true)]
    journal: Option<PathBuf>,
    /// Seconds after which a silent rank of a gang is lost [default: 10]
    #[arg(long, env = "BOWSTRING_GANG_LEASE", value_name = "SECONDS", hide_env_values = true)]
    gang_lease: Option<f64>,
    /// Seconds before the files of an idle dataset are listed again [default: 60]
    #[arg(long, env = "BOWSTRING_REFRESH", value_name = "SECONDS", hide_env_values = true)]
    refresh: Option<f64>,
    /// Bytes of the last batches of each stream, kept for others that request the same, e.g. 1GiB [default: 64MiB, at most 256 batches]
    #[arg(long, env = "BOWSTRING_SHARE_BYTES", value_name = "BYTES", value_parser = bytes, hide_env_values = true)]
    share_bytes: Option<u64>,
    /// Memory of datasets that are open, e.g. 1GiB [default: a quarter of --memory-budget, at least 256MiB]
    #[arg(long, env = "BOWSTRING_OPEN_BYTES", value_name = "BYTES", value_parser = bytes, hide_env_values = true)]
    open_bytes: Option<u64>,
    /// Let clients write datasets: to this directory as Parquet, or to `memory`
    #[arg(long, env = "BOWSTRING_PUT", value_name = "DIRECTORY", hide_env_values = true)]
    put: Option<String>,
    /// Deliver batches to ranks on this host through shared memory [default: true]
    #[arg(long, env = "BOWSTRING_SHARED_MEMORY", value_name = "BOOL", value_parser = switch, hide_env_values = true)]
    shared_memory: Option<MaybeSwitch>,
    /// File that gets a line of JSON for each call and each end of a stream
    #[arg(long, env = "BOWSTRING_AUDIT_LOG", value_name = "FILE", hide_env_values = true)]
    audit_log: Option<PathBuf>,
}

impl Settings {
    /// Returns the configuration of a server: that of the file at `config`, overridden by flags and environment, with `datasets` as well, and the
    /// mounts that the environment names if the file has none.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file, the line and the key, or the option.
    pub(crate) fn merged(&self, config: Option<&Path>, datasets: &[String]) -> Result<ServeFile> {
        let mut file = match config {
            Some(path) => ServeFile::from_toml(&read(path)?, &path.display().to_string())?,
            None => ServeFile::default(),
        };
        let server = &mut file.server;
        over(&mut server.listen, &self.listen);
        over(&mut server.admin, &self.access.admin);
        over(&mut server.admin_tokens, &self.access.admin_tokens);
        over(&mut server.tokens, &self.tokens);
        over(&mut server.key_file, &self.key_file);
        over(&mut server.memory_budget, &self.memory_budget);
        over(&mut server.threads, &self.threads);
        over(&mut server.max_streams, &self.max_streams);
        over(&mut server.drain_grace, &self.drain_grace);
        over(&mut server.journal, &self.journal);
        over(&mut server.gang_lease, &self.gang_lease);
        over(&mut server.refresh, &self.refresh);
        over(&mut server.share_bytes, &self.share_bytes);
        over(&mut server.open_bytes, &self.open_bytes);
        over(&mut server.put, &self.put);
        over(&mut server.shared_memory, &self.shared_memory.flatten());
        over(&mut server.audit_log, &self.audit_log);
        server.insecure = self.access.insecure().unwrap_or(server.insecure);
        if !self.replicas.is_empty() {
            server.replicas.clone_from(&self.replicas);
        }
        server.put = server.put.take().map(|put| at_home(&put));
        let paths = [
            &mut server.admin_tokens,
            &mut server.tokens,
            &mut server.key_file,
            &mut server.journal,
            &mut server.audit_log,
        ];
        for path in paths.into_iter().flatten() {
            *path = path_at_home(path);
        }
        server.tls = self.access.tls(server.tls.take())?;
        file.catalogue = housed(&file.catalogue)?;
        if file.catalogue.mounts().is_none()
            && let Some(mounts) = Mounts::of_environment()?
        {
            file.catalogue.set_mounts(Arc::new(mounts));
        }
        add(&mut file.catalogue, datasets)?;
        Ok(file)
    }
}

/// A sentence about the variables of options of loaders that are set and that a server does not take, if there are any.
pub(crate) fn left_out() -> Option<String> {
    let left = not_taken(|variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty()));
    let what = match left.len() {
        0 => return None,
        1 => "is an option of loaders, which a server does not take; give it",
        _ => "are options of loaders, which a server does not take; give them",
    };
    Some(format!("{} {what} in [datasets.NAME] of its file", left.join(", ")))
}

/// The variables of options of datasets that are set, and that a server does not take.
fn not_taken(is_set: impl Fn(&str) -> bool) -> Vec<String> {
    let command = Settings::command();
    let taken: Vec<_> = command.get_arguments().filter_map(Arg::get_env).collect();
    // Mounts are taken apart from the flags.
    let options = OPTIONS.iter().filter(|entry| entry.is_of_the_data() && entry.name != "mounts");
    let variables = options.filter_map(OptionEntry::variable);
    variables.filter(|variable| is_set(variable) && !taken.iter().any(|name| *name == variable.as_str())).collect()
}

fn over<T: Clone>(value: &mut Option<T>, typed: &Option<T>) {
    if typed.is_some() {
        value.clone_from(typed);
    }
}

/// Returns the text of the configuration at `path`.
///
/// # Errors
/// [`Error::Config`] if it cannot be read or is too large.
pub(crate) fn read(path: &Path) -> Result<String> {
    // No shell replaces the ~ of --config=~/x, nor that of a variable.
    let path = &path_at_home(path);
    let shown = path.display().to_string();
    let unreadable = |error: std::io::Error| Error::config("config", format!("file {shown} cannot be read: {error}"));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err(Error::config("config", format!("file {shown} has more than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// `catalogue` with the home for `~` in the addresses of its datasets.
fn housed(catalogue: &Catalogue) -> Result<Catalogue> {
    let mut housed = Catalogue::default();
    if let Some(mounts) = catalogue.mounts() {
        housed.set_mounts(Arc::clone(mounts));
    }
    for entry in catalogue.entries() {
        let mut options = entry.given().clone();
        let urls = options.remove("urls").unwrap_or_default();
        let urls: Vec<&str> = urls.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let entry = if urls.iter().any(|url| url.starts_with('~')) {
            let urls = urls.into_iter().map(at_home).collect();
            Entry::new(entry.name(), urls, options, entry.limits().clone())?
        } else {
            entry.clone()
        };
        housed.insert(entry)?;
    }
    Ok(housed)
}

/// Adds datasets of the command line: a repeated name adds an address to the same dataset.
fn add(catalogue: &mut Catalogue, typed: &[String]) -> Result<()> {
    let mut datasets: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for text in typed {
        let (name, url) = named(text)?;
        let urls = datasets.entry(name.clone()).or_default();
        if !urls.is_empty() && !text.starts_with(&format!("{name}=")) {
            return Err(Error::config(
                "datasets",
                format!("two datasets are named {name}; write NAME=URL to name them"),
            ));
        }
        urls.push(at_home(&url));
    }
    datasets.into_iter().try_for_each(|(name, urls)| catalogue.add(&name, urls))
}

/// Splits `NAME=URL`, or derives the name from the URL's last part: `s3://bucket/photos/*.parquet` is `photos`, `/data/clicks.parquet`
/// is `clicks`. A path that begins like a name (`year=2026/x`) is written `./year=2026/x`.
fn named(text: &str) -> Result<(String, String)> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    if let Some((name, url)) = text.split_once('=')
        && is_name(name)
    {
        if url.is_empty() {
            return Err(Error::config("datasets", format!("{name}= names no URL")));
        }
        return Ok((name.to_owned(), url.to_owned()));
    }
    let path = text.split(['?', '#']).next().unwrap_or(text);
    let last = path.split('/').rev().find(|part| !part.is_empty() && !part.contains(['*', '[', '{']));
    let stem = last.map(|part| part.strip_suffix(".parquet").unwrap_or(part)).filter(|stem| is_name(stem));
    match stem {
        Some(stem) if !stem.starts_with('.') => Ok((stem.to_owned(), text.to_owned())),
        // The address may hold a password, so it is not repeated.
        _ => Err(Error::config("datasets", "the name of a dataset cannot be told from its address; write NAME=URL")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_datasets_that_a_server_does_not_take_are_named() {
        let all = not_taken(|_| true);
        for named in ["BOWSTRING_CACHE", "BOWSTRING_STORAGE_OPTIONS", "BOWSTRING_LIMITS", "BOWSTRING_VERSION"] {
            assert!(all.iter().any(|variable| variable == named), "{named}");
        }
        for other in ["BOWSTRING_MEMORY_BUDGET", "BOWSTRING_THREADS", "BOWSTRING_MOUNTS", "BOWSTRING_RANK"] {
            assert!(!all.iter().any(|variable| variable == other), "{other}");
        }
        assert_eq!(not_taken(|variable| variable == "BOWSTRING_SEED"), ["BOWSTRING_SEED"]);
    }

    #[test]
    fn a_tilde_of_the_file_is_the_home() {
        let error = read(Path::new("~/there is no such file.toml")).unwrap_err().to_string();
        assert!(error.contains(&format!("file {}/there is no such file.toml", at_home("~"))), "{error}");
    }

    #[test]
    fn datasets_have_names() {
        for (text, name, url) in [
            ("photos=s3://b/x", "photos", "s3://b/x"),
            ("a.b-c_1=/x=y", "a.b-c_1", "/x=y"),
            ("/data/clicks.parquet", "clicks", "/data/clicks.parquet"),
            ("s3://bucket/photos/**/*.parquet", "photos", "s3://bucket/photos/**/*.parquet"),
            ("https://host/x.parquet?token=1", "x", "https://host/x.parquet?token=1"),
            ("data/", "data", "data/"),
        ] {
            assert_eq!(named(text).unwrap(), (name.to_owned(), url.to_owned()), "{text}");
        }
        for text in ["photos=", "./year=2026", "*.parquet", "", "/a b"] {
            assert!(named(text).is_err(), "{text}");
        }
        let mut catalogue = Catalogue::default();
        let typed = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        add(&mut catalogue, &typed(&["x=a", "x=b", "/c/y.parquet"])).unwrap();
        let urls = catalogue.get("x").unwrap().options(&Value::Null).unwrap().urls;
        assert_eq!(urls, ["a", "b"]);
        assert!(add(&mut catalogue, &typed(&["y=z"])).is_err());
        assert!(add(&mut Catalogue::default(), &typed(&["/a/x.parquet", "/b/x.parquet"])).is_err());
    }
}
