//! The stores behind addresses, opened once each: those of the caller's own options, and those of each mount, with its own.

#[cfg(any(feature = "convert", test))]
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use object_store::ObjectStoreScheme;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::{Position, Url};

use super::access::Access;
use super::address::{Address, bad_url};
#[cfg(feature = "cloud")]
use super::catalog::CatalogTable;
use super::display::shown;
#[cfg(feature = "hdfs")]
use super::hdfs::{Hdfs, Settings};
#[cfg(feature = "cloud")]
use super::hub::{self, Hub};
use super::keys;
#[cfg(feature = "convert")]
use super::mounts::Resolved;
use super::mounts::{Mount, Mounts, Target, is_mounted};
use super::multipart::Opened;
use super::place::{MountedAt, Place, kept};
#[cfg(feature = "cloud")]
use super::profile;
use super::registered::{self, is_registered};
use super::remedy::advised;
use super::unaddressed::fault;
use crate::error::{Error, Result};

/// Makes stores, one per bucket or server.
#[derive(Debug)]
pub(super) struct Stores<'a> {
    access: Access<'a>,
    /// True if reads of remote stores that are late are requested a second time.
    hedges: bool,
    known: KnownStores,
    /// The mount whose stores they all are, and whose options the access has.
    mount: Option<Arc<Mount>>,
    /// The mounts that there are, once they were asked for.
    mounts: Option<Arc<Mounts>>,
}

/// Stores that are open, by the beginning of their addresses; those of mounts apart, each mount's for itself.
#[derive(Debug, Default)]
pub(super) struct KnownStores {
    own: HashMap<String, Place>,
    mounted: HashMap<String, (Arc<Mount>, HashMap<String, Place>)>,
}

impl KnownStores {
    #[cfg(all(test, feature = "cloud"))]
    pub(super) fn insert(&mut self, start: String, place: Place) {
        self.own.insert(start, place);
    }
}

impl<'a> Stores<'a> {
    /// # Errors
    /// [`Error::Config`] for options that no store knows, and for a value of `hedge` that is none.
    pub(super) fn new(access: Access<'a>) -> Result<Self> {
        Self::knowing(access, KnownStores::default())
    }

    /// As [`new`](Self::new), with stores that were opened before with the same access.
    ///
    /// # Errors
    /// As there.
    pub(super) fn knowing(access: Access<'a>, known: KnownStores) -> Result<Self> {
        keys::check(access.options)?;
        let hedges = keys::hedges(access.options)?;
        Ok(Self { access, hedges, known, mount: None, mounts: None })
    }

    /// The stores that it has opened.
    pub(super) fn into_known(self) -> KnownStores {
        self.known
    }

    /// How stores are reached.
    #[cfg(feature = "cloud")]
    pub(super) fn access(&self) -> Access<'a> {
        self.access
    }

    /// The mounts that there are, as they are now.
    ///
    /// # Errors
    /// [`Error::Config`] if there are none, or their file is wrong.
    pub(super) fn mounts(&mut self) -> Result<Arc<Mounts>> {
        if let Some(mounts) = &self.mounts {
            return Ok(Arc::clone(mounts));
        }
        let mounts = Mounts::of(self.access.mounts)?;
        self.mounts = Some(Arc::clone(&mounts));
        Ok(mounts)
    }

    /// The stores of `mount`, which are reached with its options alone. [`leave`](Self::leave) keeps them.
    ///
    /// # Errors
    /// [`Error::Config`] if the caller gave options or credentials: they are of no mount, and nobody could tell which of them apply.
    pub(super) fn enter<'m>(&mut self, mount: &'m Arc<Mount>) -> Result<Stores<'m>> {
        let given = |option, what: &str| {
            let problem = format!(
                "{} is a mount, which has options of its own and takes no {what} of the caller; give them in [mounts.{:?}] of {}",
                mount.url(),
                mount.name(),
                mount.origin()
            );
            Err(Error::config(option, problem))
        };
        if !self.access.options.is_empty() {
            return given("storage_options", "storage_options");
        }
        #[cfg(feature = "cloud")]
        if self.access.credentials.is_some() {
            return given("credential_provider", "credentials");
        }
        // Another mount of the same name may have taken its place meanwhile.
        let known = self.known.mounted.remove(mount.name()).filter(|(of, _)| of == mount);
        let known = KnownStores { own: known.map(|(_, own)| own).unwrap_or_default(), ..KnownStores::default() };
        let inner = Stores::knowing(Access::from(mount.options()), known)?;
        Ok(Stores { mount: Some(Arc::clone(mount)), ..inner })
    }

    /// Keeps the stores `inner` of `mount`.
    pub(super) fn leave(&mut self, mount: &Arc<Mount>, inner: Stores<'_>) {
        self.known.mounted.insert(mount.name().to_owned(), (Arc::clone(mount), inner.known.own));
    }

    /// The store of any address `url`, and the path within it.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no address, and for one above mounts, which is of no store; `option` is what gave a local one.
    pub(super) fn place(&mut self, url: &str, option: &'static str) -> Result<(Place, Path)> {
        let (address, mount) = self.target(url)?;
        match mount {
            None => self.at(address, option),
            Some(mount) => {
                let mut inner = self.enter(&mount)?;
                let found = inner.at(address, option);
                self.leave(&mount, inner);
                found
            }
        }
    }

    /// The address that `url` stands for, and its mount if it is below one.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub(super) fn target(&mut self, url: &str) -> Result<(Address, Option<Arc<Mount>>)> {
        if !is_mounted(url) {
            return Ok((Address::parse(url)?, None));
        }
        let Target { address, mount, .. } = self.mounts()?.target(url)?;
        Ok((address, Some(mount)))
    }

    fn at(&mut self, address: Address, option: &'static str) -> Result<(Place, Path)> {
        match address {
            Address::Local(path) => {
                let shown = path.display().to_string();
                let wrong = |error: &dyn std::fmt::Display| Error::config(option, format!("{shown}: {error}"));
                let path = std::path::absolute(path).map_err(|error| wrong(&error))?;
                Ok((self.local(), Path::from_absolute_path(path).map_err(|error| wrong(&error))?))
            }
            Address::Remote(text) => self.remote(&text),
        }
    }

    /// As [`remote`](Self::remote), for a table of a catalog: with its options and credentials, unless the user gave some.
    #[cfg(feature = "cloud")]
    pub(super) fn vended(&self, table: &CatalogTable, text: &str) -> Result<(Place, Path)> {
        let has_own = self.access.credentials.is_some() || keys::has_credentials(self.access.options);
        let credentials = if has_own { self.access.credentials } else { table.credentials.as_ref() };
        let mut options = self.access.options.clone();
        for (key, value) in &table.settings {
            let same = |own: &String| keys::is_same(own, key);
            // Google's token is sent as it is, so that only a vended one may go to a host that the catalog names.
            let sends_token = key == "google_base_url" && (has_own || table.credentials.is_none());
            if !sends_token && !self.access.options.keys().any(same) {
                options.insert(key.clone(), value.clone());
            }
        }
        Stores::new(Access { options: &options, credentials, mounts: None })?.remote(text)
    }

    pub(super) fn local(&mut self) -> Place {
        let mount = self.mount.as_ref().map(|mount| MountedAt { mount: Arc::clone(mount), root: Path::default() });
        let local = || Place { local: true, mount, ..Place::new(Arc::new(LocalFileSystem::new()), "/") };
        self.known.own.entry(String::new()).or_insert_with(local).clone()
    }

    /// The store of `text` and the path within it.
    pub(super) fn remote(&mut self, text: &str) -> Result<(Place, Path)> {
        let (mut place, path) = self.open_at(text)?;
        if let Some(mount) = self.mount.clone() {
            let root = self.open_at(mount.address())?.1;
            place.mount = Some(MountedAt { mount, root });
        }
        Ok((place, path))
    }

    fn open_at(&mut self, text: &str) -> Result<(Place, Path)> {
        let text = &kept(text);
        let url = Url::parse(text).map_err(|error| bad_url(text, error))?;
        let shown = shown(&url);
        if url.query().is_some() {
            let hint = "signed URLs have no stable objects behind them; use the store's own scheme and storage_options";
            return Err(Error::unsupported(format!("{shown} with a query"), hint));
        }
        if url.fragment().is_some() {
            let hint = "write %23 for a # in a name";
            return Err(Error::unsupported(format!("{shown} with a fragment"), hint));
        }
        if url.scheme().starts_with("http") && (url.password().is_some() || !url.username().is_empty()) {
            // They would not be sent, and each error of a request would tell them.
            let problem = format!(
                "{shown} has a user name or password in it: leave that out; web servers are read without one, and clouds take keys from \
                 storage_options"
            );
            return Err(Error::config("urls", problem));
        }
        if is_registered(text) {
            let missing = || Error::NotFound { what: shown.clone(), hint: "it is not of this process".to_owned() };
            let path = Path::from_url_path(url.path()).map_err(|_| missing())?;
            let prefix = format!("{}/", &url[..Position::BeforePath]);
            let store = registered::find(&prefix).ok_or_else(missing)?;
            let place = Place::new(store, prefix);
            return Ok((place, path));
        }
        #[cfg(feature = "cloud")]
        if url.scheme() == hub::SCHEME {
            return self.hub(&url, text, &shown);
        }
        if matches!(url.scheme(), "hdfs" | "viewfs") {
            return self.hdfs(&url, &shown);
        }
        // The error's own text quotes the address, credentials included.
        let parsed = ObjectStoreScheme::parse(&url).map_err(|_| {
            let is_known = matches!(
                url.scheme(),
                "s3" | "s3a" | "gs" | "az" | "adl" | "azure" | "abfs" | "abfss" | "http" | "https"
            );
            let in_path = |wrong| format!("has {} in its path", fault(&wrong));
            let problem = match url.scheme() {
                "grpc" | "grpc+tcp" | "grpc+tls" => {
                    "is a server's, which gives batches and no files; loaders, `bench` and `inspect` take it alone, and \
                     `bowstring.flight.Connection` its rows"
                        .to_owned()
                }
                _ if is_known && url.has_host() => {
                    Path::from_url_path(url.path()).map_or_else(in_path, |_| "is no address of its store".to_owned())
                }
                _ if is_known => "names no bucket, container or host".to_owned(),
                _ => "has an unknown scheme; known are local paths, s3, gs, az, abfss, http, https, hf, hdfs, bow, iceberg, uc, glue, hms"
                    .to_owned(),
            };
            Error::config("urls", format!("{shown} {problem}"))
        })?;
        let (scheme, path) = self.meant(&url, parsed);
        // A cloud's https form has the bucket in its path; all others have it in the host.
        let shared = url.scheme() != "https" || scheme == ObjectStoreScheme::Http;
        let key = url[..Position::BeforePath].to_owned();
        if let Some(place) = self.known.own.get(&key).filter(|_| shared) {
            return Ok((place.clone(), path));
        }
        let prefix = shown.strip_suffix(path.as_ref()).map_or_else(|| format!("{shown}#"), str::to_owned);
        let is_whole = !path.as_ref().is_empty() || prefix.ends_with('/');
        let prefix: Arc<str> = if is_whole { prefix.into() } else { format!("{prefix}/").into() };
        let (store, numbered) = self.open(&url, &scheme, &prefix)?.map_err(|error| {
            // The error text may quote the address; credentials in it are never shown.
            if url.password().is_some() {
                return Error::config("urls", format!("{shown} cannot be opened"));
            }
            Error::Store { operation: "open".to_owned(), url: shown.clone(), source: advised(&shown, error) }
        })?;
        let lists = scheme != ObjectStoreScheme::Http;
        let place = Place { hedges: self.hedges, lists, numbered, ..Place::new(store, prefix) };
        if shared {
            self.known.own.insert(key, place.clone());
        }
        Ok((place, path))
    }

    /// The kind of store that `url` leads to, and the path in it; `parsed` is what its host says. An https address of a cloud is that of a web
    /// server, unless the caller gives credentials of that cloud: those of the environment are for addresses that name the cloud.
    #[cfg(feature = "cloud")]
    fn meant(&self, url: &Url, (scheme, path): (ObjectStoreScheme, Path)) -> (ObjectStoreScheme, Path) {
        let given = |cloud: keys::Cloud| self.access.credentials.is_some() || cloud.has_identity(self.access.options);
        if url.scheme() != "https" || keys::Cloud::of(&scheme).is_none_or(given) {
            return (scheme, path);
        }
        match Path::from_url_path(url.path()) {
            Ok(path) => (ObjectStoreScheme::Http, path),
            Err(_) => (scheme, path),
        }
    }

    #[cfg(not(feature = "cloud"))]
    #[allow(clippy::unused_self, reason = "as where stores of clouds are built in")]
    fn meant(&self, _: &Url, parsed: (ObjectStoreScheme, Path)) -> (ObjectStoreScheme, Path) {
        parsed
    }

    /// The dataset of the Hub at `url`, typed as `text` and shown in messages as `shown`, and the path within it.
    #[cfg(feature = "cloud")]
    fn hub(&mut self, url: &Url, text: &str, shown: &str) -> Result<(Place, Path)> {
        if self.access.credentials.is_some() {
            keys::no_credentials(self.access.options)?;
        }
        let (repo, path) = hub::Repo::parse(url, text, shown)?;
        let key = repo.prefix().to_owned();
        if let Some(place) = self.known.own.get(&key) {
            return Ok((place.clone(), path));
        }
        let settings = hub::Settings::new(self.access.options, &|name| std::env::var_os(name))?;
        let prefix: Arc<str> = repo.prefix().into();
        let store = Hub::new(repo, &settings, self.access.credentials.cloned()).map_err(|error| Error::Store {
            operation: "open".to_owned(),
            url: shown.to_owned(),
            source: error.into(),
        })?;
        let place = Place { hedges: self.hedges, ..Place::new(Arc::new(store), prefix) };
        self.known.own.insert(key, place.clone());
        Ok((place, path))
    }

    /// The cluster of `url`, shown in messages as `shown`, and the path within it.
    #[cfg(feature = "hdfs")]
    fn hdfs(&mut self, url: &Url, shown: &str) -> Result<(Place, Path)> {
        #[cfg(feature = "cloud")]
        if self.access.credentials.is_some() {
            let problem = format!("{shown} takes none: HDFS has Kerberos and tokens of its own");
            return Err(Error::config("credential_provider", problem));
        }
        if !url.username().is_empty() || url.password().is_some() {
            let problem = format!("{shown} has a user name in it: give it as hdfs_user in storage_options");
            return Err(Error::config("urls", problem));
        }
        let path = Path::from_url_path(url.path());
        let path = path.map_err(|error| Error::config("urls", format!("{shown}: {error}")))?;
        let key = url[..Position::BeforePath].to_owned();
        if let Some(place) = self.known.own.get(&key) {
            return Ok((place.clone(), path));
        }
        let settings = Settings::new(self.access.options, &|name| std::env::var_os(name))?;
        let store = Arc::new(Hdfs::new(key.clone(), settings)?);
        let place = Place::new(store, format!("{key}/"));
        self.known.own.insert(key, place.clone());
        Ok((place, path))
    }

    #[cfg(not(feature = "hdfs"))]
    #[allow(clippy::unused_self, reason = "as where it is built in")]
    fn hdfs(&mut self, _: &Url, shown: &str) -> Result<(Place, Path)> {
        let hint = "this build is without HDFS: take bowstring's wheel (pip install bowstring), or build with cargo's feature hdfs";
        Err(Error::unsupported(format!("{shown}, on HDFS,"), hint))
    }

    /// The store at `url`, whose addresses begin with `prefix`.
    #[cfg(feature = "cloud")]
    fn open(&self, url: &Url, scheme: &ObjectStoreScheme, prefix: &Arc<str>) -> Result<object_store::Result<Opened>> {
        let mut settings = self.settings(url, scheme);
        let mut source = self.access.credentials.cloned();
        if source.is_some() {
            keys::no_credentials(self.access.options)?;
        } else if *scheme == ObjectStoreScheme::AmazonS3 {
            keys::check_headers(&settings)?;
            let chosen = profile::choose(self.access.options, &|name| std::env::var_os(name))?;
            settings.splice(..0, chosen.settings);
            source = chosen.source;
        }
        if let Some(cloud) = keys::Cloud::of(scheme) {
            keys::check_addresses(cloud, &settings, source.is_some())?;
        }
        super::credentials::open(url, scheme, prefix, settings, source.as_ref())
    }

    /// The store at `url`, of this machine.
    #[cfg(not(feature = "cloud"))]
    #[allow(clippy::unnecessary_wraps, reason = "as where stores of clouds are built in")]
    fn open(&self, url: &Url, scheme: &ObjectStoreScheme, _: &Arc<str>) -> Result<object_store::Result<Opened>> {
        Ok(object_store::parse_url_opts(url, self.settings(url, scheme)).map(|(store, _)| (store.into(), None)))
    }

    /// The environment first, then the options, which win. Keys are object_store's own.
    fn settings(&self, url: &Url, scheme: &ObjectStoreScheme) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        #[cfg(feature = "cloud")]
        if let Some(cloud) = keys::Cloud::of(scheme) {
            // `vars` panics on names that are not Unicode; those are not ours.
            let texts = std::env::vars_os()
                .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
            // Beside credentials of its own a store gets no part of others: a session token beside keys, or a token that wins over them.
            let has_own = cloud.has_credentials(self.access.options);
            let ours = |key: &str| {
                key.starts_with(cloud.start())
                    && !(has_own && cloud.is_credential(key))
                    && !cloud.gives_way(key, self.access.options)
            };
            // A variable that is set to nothing is not set.
            let is_set = |(key, value): &(String, String)| !(value.is_empty() && cloud.is_endpoint(key));
            settings.extend(texts.filter(|(key, _)| ours(key)).filter(is_set));
        }
        #[cfg(not(feature = "cloud"))]
        let _ = scheme;
        if url.scheme() == "http" {
            // A user who writes http:// means it.
            settings.push(("allow_http".to_owned(), "true".to_owned()));
        }
        settings.extend(self.access.options.iter().map(|(key, value)| (key.clone(), value.clone())));
        settings
    }
}

/// The address that `url` stands for and the options of its store, if it is below a mount; none for any other address, such as one above
/// several mounts.
///
/// # Errors
/// [`Error::NotFound`] if there is no mount; [`Error::Config`] for options beside those of the mount.
#[cfg(feature = "convert")]
pub(crate) fn unmounted(url: &str, access: Access<'_>) -> Result<Option<(String, BTreeMap<String, String>)>> {
    if !is_mounted(url) {
        return Ok(None);
    }
    let mut stores = Stores::new(access)?;
    let Resolved::Below(Target { address, mount, .. }) = stores.mounts()?.resolve(url)? else { return Ok(None) };
    stores.enter(&mount)?;
    let text = match address {
        Address::Local(path) => path.to_string_lossy().into_owned(),
        Address::Remote(text) => text,
    };
    Ok(Some((text, mount.options().clone())))
}

#[cfg(test)]
mod tests {
    use super::super::display::display;
    use super::*;

    #[test]
    fn messages_never_show_credentials() {
        let url = Url::parse("https://user:secret@host:8443/a%20b/c.parquet?token=secret").unwrap();
        assert_eq!(shown(&url), "https://host:8443/a b/c.parquet");
        let options = BTreeMap::new();
        let mut stores = Stores::new((&options).into()).unwrap();
        for text in [
            "s3://user:secret@[bad/x",
            "https://user:secret@h/x?y=1",
            "nope://user:secret@h/x",
            "https://h:bad/x?sig=secret",
            "https://h:bad/x#secret",
        ] {
            let error = stores.remote(text).unwrap_err();
            assert!(!error.chain().contains("secret"), "{}", error.chain());
            assert!(!display(text).contains("secret"), "{}", display(text));
        }
        for text in ["https://user:secret@h/x.parquet", "http://secret@h/x.parquet", "https://:secret@h/a/b"] {
            let error = stores.remote(text).unwrap_err();
            assert!(matches!(error, Error::Config { option: "urls", .. }), "{error}");
            assert!(error.to_string().contains("storage_options") && !error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(display("s3://bucket/a/*.parquet"), "s3://bucket/a/*.parquet");
        assert_eq!(display("/data/a@b"), "/data/a@b");
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn an_https_address_of_a_cloud_is_that_of_a_web_server_unless_credentials_of_it_are_given() {
        let lists = |url: &str, options: &[(&str, &str)]| {
            let options: BTreeMap<String, String> =
                options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let (place, path) = Stores::new((&options).into()).unwrap().remote(url).unwrap();
            assert_eq!(place.url(&path), url);
            place.lists
        };
        let keys = [("aws_access_key_id", "i"), ("aws_secret_access_key", "s")];
        for url in [
            "https://b.s3.amazonaws.com/t/a.parquet",
            "https://s3.eu-west-1.amazonaws.com/b/t/a.parquet",
            "https://x.r2.cloudflarestorage.com/b/a.parquet",
        ] {
            assert!(
                !lists(url, &[])
                    && !lists(url, &[("aws_region", "x")])
                    && !lists(url, &[("azure_storage_sas_key", "a=b")])
            );
            assert!(lists(url, &keys) && lists(url, &[("aws_skip_signature", "true")]));
        }
        let azure = "https://a.blob.core.windows.net/c/t/a.parquet";
        assert!(!lists(azure, &keys) && lists(azure, &[("azure_skip_signature", "true")]));
    }

    #[test]
    fn an_address_that_cannot_be_read_says_what_is_wrong_with_it() {
        let options = BTreeMap::new();
        let mut stores = Stores::new((&options).into()).unwrap();
        for (text, problem) in [
            ("http://h/d//a.parquet", "has an empty part"),
            ("s3://b//t", "has an empty part in its path"),
            ("s3://b/a%01b", "has a control character in its path"),
            ("s3://b/a\tb", "has a control character in its path"),
            ("s3://b/%ff", "has a part that is not UTF-8 in its path"),
            ("s3:///t", "names no bucket"),
            ("s4://b/t", "has an unknown scheme"),
            ("https://h/a.parquet#x", "with a fragment"),
            ("https://h/a.parquet?x", "with a query"),
        ] {
            let error = stores.remote(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert_eq!(error.contains("unknown scheme"), problem.contains("scheme"), "{error}");
        }
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn one_store_per_bucket_and_the_address_is_rebuilt() {
        let options = [("aws_region", "eu-west-1"), ("azure_skip_signature", "true")]
            .map(|(key, value)| (key.into(), value.into()));
        let options = BTreeMap::from(options);
        let mut stores = Stores::new((&options).into()).unwrap();
        let (first, path) = stores.remote("s3://bucket/a/b").unwrap();
        assert_eq!((first.prefix.as_ref(), path.as_ref()), ("s3://bucket/", "a/b"));
        let (second, _) = stores.remote("s3://bucket/c").unwrap();
        assert!(Arc::ptr_eq(&first.store, &second.store));
        let (other, path) = stores.remote("https://account.blob.core.windows.net/container/x/y").unwrap();
        assert_eq!((other.prefix.as_ref(), path.as_ref()), ("https://account.blob.core.windows.net/container/", "x/y"));
        let (root, _) = stores.remote("s3://other").unwrap();
        assert_eq!(root.prefix.as_ref(), "s3://other/");
    }
}
