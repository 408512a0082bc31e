//! All mounts together, and what an address below `bow://` means among them.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use sha2::{Digest, Sha256};

use super::super::address::Address;
use super::super::display::unparsed;
use super::super::glob;
use super::mount::Mount;
use super::name::{Name, START};
use crate::error::{Error, Result};
use crate::hex;
use crate::nearest::nearest;

/// Most mounts that an error names.
const NAMED: usize = 8;

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Mounts {
    /// By name. None is above another one.
    mounts: BTreeMap<String, Arc<Mount>>,
    /// The file that has them, in messages.
    origin: Arc<str>,
}

impl fmt::Debug for Mounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.mounts.values()).finish()
    }
}

/// The meaning of an address.
#[derive(Debug)]
pub(in crate::store) enum Resolved {
    /// It is a mount, or below one.
    Below(Target),
    /// It is a directory above mounts.
    Above(Above),
}

/// An address of one mount.
#[derive(Debug)]
pub(in crate::store) struct Target {
    pub(in crate::store) mount: Arc<Mount>,
    /// The address in its store.
    pub(in crate::store) address: Address,
    /// The path in the namespace, as it was written and decoded.
    pub(in crate::store) raw: String,
    pub(in crate::store) path: String,
}

/// A directory above mounts.
#[derive(Debug)]
pub(in crate::store) struct Above {
    /// Its path in the namespace; empty for all of it.
    pub(in crate::store) directory: String,
    /// The part of a pattern that follows it.
    pub(in crate::store) pattern: Option<String>,
    /// The mounts below it, in order.
    pub(in crate::store) mounts: Vec<Arc<Mount>>,
}

impl Above {
    /// Its own address.
    pub(in crate::store) fn url(&self) -> String {
        format!("{START}{}", self.directory)
    }

    /// The names right below it: of mounts, and of directories above others.
    pub(in crate::store) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.mounts.iter().filter_map(|mount| self.below(mount).split('/').next().map(str::to_owned)).collect();
        names.dedup();
        names
    }

    /// The path of `mount` relative to the directory.
    pub(in crate::store) fn below<'m>(&self, mount: &'m Mount) -> &'m str {
        mount.name().strip_prefix(&self.directory).unwrap_or(mount.name()).trim_start_matches('/')
    }
}

impl Mounts {
    /// These mounts, which `origin` has.
    ///
    /// # Errors
    /// [`Error::Config`] for two of one name, and for one inside another.
    pub fn new(mounts: Vec<Mount>, origin: &Arc<str>) -> Result<Self> {
        let mut all = Self { mounts: BTreeMap::new(), origin: Arc::clone(origin) };
        for mount in mounts {
            let name = mount.name().to_owned();
            if all.mounts.insert(name.clone(), Arc::new(mount)).is_some() {
                return Err(Error::config("mounts", format!("two mounts are named {name}")));
            }
        }
        for name in all.mounts.keys() {
            let above = name.match_indices('/').filter_map(|(at, _)| name.get(..at));
            if let Some(outer) = above.into_iter().find(|above| all.mounts.contains_key(*above)) {
                let problem = format!(
                    "{name} is inside the mount {outer}, whose own files it would hide; name one of them otherwise"
                );
                return Err(Error::config("mounts", problem));
            }
        }
        Ok(all)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.values().map(|mount| &**mount)
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.mounts.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    /// The file that has them.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// A text that is another one for other mounts, within this process: from outside nobody can try values of options on it.
    pub(super) fn digest(&self) -> String {
        static SALT: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("mounts"));
        let mut digest = Sha256::new();
        digest.update(SALT.to_le_bytes());
        let mut part = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        for mount in self.mounts.values() {
            part(mount.name());
            part(mount.address());
            mount.options().iter().for_each(|(key, value)| [key, value].into_iter().for_each(|text| part(text)));
        }
        hex::of(digest.finalize())
    }

    /// The meaning of `url`.
    ///
    /// # Errors
    /// [`Error::NotFound`] naming the mounts that there are; [`Error::Config`] for what is no path.
    pub(in crate::store) fn resolve(&self, url: &str) -> Result<Resolved> {
        let name = Name::parse(url)?;
        let found = (1..=name.parts.len())
            .find_map(|length| Some((length, self.mounts.get(&name.parts.get(..length)?.join("/"))?)));
        if let Some((length, mount)) = found {
            let (raw, parts) = (name.raw.get(length..), name.parts.get(length..));
            let address = mount.below(raw.unwrap_or_default(), parts.unwrap_or_default(), name.slash);
            let (raw, path) = (name.raw.join("/"), name.parts.join("/"));
            return Ok(Resolved::Below(Target { mount: Arc::clone(mount), address, raw, path }));
        }
        let fixed = name.raw.iter().take_while(|raw| !glob::is_pattern(raw)).count();
        let directory = name.parts.get(..fixed).unwrap_or_default().join("/");
        let start = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let mounts: Vec<_> = self
            .mounts
            .iter()
            .filter(|(name, _)| name.starts_with(&start))
            .map(|(_, mount)| Arc::clone(mount))
            .collect();
        if mounts.is_empty() {
            return Err(self.missing(url, &name.parts.join("/")));
        }
        let pattern = name.raw.get(fixed..).filter(|rest| !rest.is_empty()).map(|rest| rest.join("/"));
        Ok(Resolved::Above(Above { directory, pattern, mounts }))
    }

    /// As [`resolve`](Self::resolve), for an address that has to be of one mount.
    ///
    /// # Errors
    /// As there, and [`Error::Config`] for one above mounts.
    pub(in crate::store) fn target(&self, url: &str) -> Result<Target> {
        match self.resolve(url)? {
            Resolved::Below(target) => Ok(target),
            Resolved::Above(above) => {
                let names = listed(above.mounts.iter().map(|mount| mount.url()));
                let problem = format!("{} is above mounts and in no store: it has {names}", unparsed(url));
                Err(Error::config("urls", problem))
            }
        }
    }

    fn missing(&self, url: &str, path: &str) -> Error {
        let what = format!("a mount for {}", unparsed(url));
        if self.is_empty() {
            return Error::NotFound { what, hint: format!("{} has none", self.origin) };
        }
        // The mounts, and the directories above them; each is compared with as many segments as it has.
        let known = self.mounts.keys().flat_map(|name| {
            let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
            ends.filter_map(|end| name.get(..end))
        });
        let like = |name: &str| path.split('/').take(name.split('/').count()).collect::<Vec<_>>().join("/");
        let meant = known.filter(|name| nearest(&like(name), [*name]).is_some()).max_by_key(|name| name.len());
        let meant = meant.map_or_else(String::new, |name| format!("did you mean {START}{name}? "));
        let all = listed(self.mounts.values().map(|mount| mount.url()));
        Error::NotFound { what, hint: format!("{meant}{} has {all}", self.origin) }
    }
}

/// Some of `names`, and how many others there are.
fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(NAMED);
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(all: &[(&str, &str)]) -> Result<Mounts> {
        let origin: Arc<str> = "mounts.toml".into();
        let mount = |(name, address): &(&str, &str)| Mount::new(name, address, BTreeMap::new(), &origin).unwrap();
        Mounts::new(all.iter().map(mount).collect(), &origin)
    }

    #[test]
    fn an_address_is_of_the_mount_whose_name_it_begins_with() {
        let mounts =
            mounts(&[("data/photos", "s3://b/p"), ("data/photos-2", "/more"), ("checkpoints", "gs://c")]).unwrap();
        for (url, name, address) in [
            ("bow://data/photos", "data/photos", Address::Remote("s3://b/p".to_owned())),
            ("bow://data/photos/a%20b/", "data/photos", Address::Remote("s3://b/p/a%20b/".to_owned())),
            ("bow://data/photos-2/a%20b", "data/photos-2", Address::Local("/more/a b".into())),
            ("bow://checkpoints/*.pt", "checkpoints", Address::Remote("gs://c/*.pt".to_owned())),
        ] {
            let target = mounts.target(url).unwrap();
            assert_eq!((target.mount.name(), target.address), (name, address), "{url}");
        }
        let Resolved::Above(above) = mounts.resolve("bow://data/").unwrap() else { panic!() };
        assert_eq!((above.names(), above.pattern), (vec!["photos".to_owned(), "photos-2".to_owned()], None));
        let Resolved::Above(above) = mounts.resolve("bow://data/ph*/x/*.parquet").unwrap() else { panic!() };
        assert_eq!((above.directory.as_str(), above.pattern.as_deref()), ("data", Some("ph*/x/*.parquet")));
        let Resolved::Above(above) = mounts.resolve("bow://").unwrap() else { panic!() };
        assert_eq!(above.names(), ["checkpoints", "data"]);
        assert!(matches!(mounts.target("bow://data"), Err(Error::Config { .. })));
    }

    #[test]
    fn a_name_without_a_mount_is_told_with_those_there_are() {
        let all = mounts(&[("data/photos", "s3://b/p"), ("checkpoints", "gs://c")]).unwrap();
        for url in ["bow://data/fotos/x", "bow://dat", "bow://me:s3cr3t@data"] {
            let error = all.resolve(url).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::NotFound { .. }), "{text}");
            assert!(text.contains("mounts.toml has bow://checkpoints, bow://data/photos"), "{text}");
            assert!(!text.contains("s3cr3t"), "{text}");
        }
        for (url, meant) in
            [("bow://data/fotos/x", "data/photos"), ("bow://dta", "data"), ("bow://chekpoints/x", "checkpoints")]
        {
            let text = all.resolve(url).unwrap_err().to_string();
            assert!(text.contains(&format!("did you mean bow://{meant}?")), "{text}");
        }
    }

    #[test]
    fn no_mount_is_inside_another() {
        let text = mounts(&[("a", "/x"), ("a-b", "/y"), ("a/b/c", "/z")]).unwrap_err().to_string();
        assert!(text.contains("a/b/c is inside the mount a"), "{text}");
        assert!(mounts(&[("a", "/x"), ("a", "/y")]).is_err());
        assert!(mounts(&[("a/b", "/x"), ("a/bc", "/y")]).is_ok());
    }
}
