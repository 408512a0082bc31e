//! Namespaces of tenants: names of gangs and of written datasets are valid only within their tenant's space.
//!
//! Each tenant has a space of its own, named like it. The operator may put several tenants into one, and they then share its content.
//! Datasets written by this process, and everything from before there were tenants, are in the common space: every tenant reads its
//! datasets, while only the tenants put into that space write them and join its gangs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::auth::{Tenant, is_name};
use crate::error::{Error, Result};
use crate::flight::put::{COMMON, Staging, Version, WriteId};

/// Separates a space from a gang's name; no tenant's name contains it.
const OF_GANG: char = '/';
/// Longest name of a gang within its space, in bytes.
const MAX_GANG: usize = 128;
/// Longest name of a dataset with its space, in bytes: file names have 255, and need some for a suffix.
const MAX_DATASET: usize = 240;

/// Tenants whose space is not their own.
#[derive(Debug, Clone, Default)]
pub struct Spaces {
    of: HashMap<String, Space>,
}

impl Spaces {
    /// Builds the map from the tenants of each space, by name; `*` stands for all that are named nowhere else.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid name, or a tenant in two spaces.
    pub fn new(members: &BTreeMap<String, Vec<String>>) -> Result<Self> {
        let mut of = HashMap::new();
        for (space, tenants) in members {
            let wrong = |problem: String| Err(Error::config("spaces", format!("space {space:?}: {problem}")));
            if !is_member(space) {
                return wrong("a name has 1 to 128 letters, digits, `-`, `_` and `.`".to_owned());
            }
            for tenant in tenants {
                if tenant != "*" && !is_member(tenant) {
                    return wrong(format!("{tenant:?} is no name of a tenant"));
                }
                if of.insert(tenant.clone(), Space::named(space)).is_some() {
                    return wrong(format!("tenant {tenant:?} is in another space too"));
                }
            }
        }
        Ok(Self { of })
    }

    /// Returns the space of `tenant`. The anonymous caller of a server without tenants has all names.
    pub(crate) fn of(&self, tenant: &Tenant) -> Space {
        if *tenant == Tenant::anonymous() {
            return Space::Whole;
        }
        let put = self.of.get(tenant.name()).or_else(|| self.of.get("*"));
        put.cloned().unwrap_or_else(|| Space::Own(tenant.name().into()))
    }
}

/// Returns true if `name` may name a tenant that is identified by a token or a certificate.
pub(crate) fn is_member(name: &str) -> bool {
    is_name(name.strip_prefix("certificate:").unwrap_or(name))
}

/// One space of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Space {
    /// All names, on a server without tenants.
    Whole,
    /// Names that are in no other space.
    Common,
    /// Names of one tenant, or of several.
    Own(Arc<str>),
}

impl Space {
    fn named(name: &str) -> Self {
        if name == COMMON { Self::Common } else { Self::Own(name.into()) }
    }

    /// Returns the name of the registry and its journal for the gang that is called `name` in this space.
    ///
    /// # Errors
    /// [`Error::Config`] for a name that no gang can have here.
    pub(crate) fn gang(&self, name: &str) -> Result<String> {
        let wrong = |problem: String| Err(Error::config("gang", problem));
        match self {
            Self::Whole => Ok(name.to_owned()),
            Self::Common if name.contains(OF_GANG) => {
                wrong(format!("names with `{OF_GANG}` are those of other spaces"))
            }
            Self::Common => Ok(name.to_owned()),
            Self::Own(_) if !(1..=MAX_GANG).contains(&name.len()) => {
                wrong(format!("a name of {} bytes is none for a gang: 1 to {MAX_GANG}", name.len()))
            }
            Self::Own(space) => Ok(format!("{space}{OF_GANG}{name}")),
        }
    }

    /// Returns the write `id` to the dataset that is called `dataset` in this space.
    ///
    /// # Errors
    /// As [`WriteId::new`]; [`Error::Config`] for a name that is too long with its space.
    pub(crate) fn write(&self, dataset: &str, id: &str) -> Result<WriteId> {
        let write = WriteId::new(dataset, id)?;
        let Self::Own(space) = self else { return Ok(write) };
        let write = write.within(space);
        let length = write.dataset().len();
        if length > MAX_DATASET {
            let problem =
                format!("a name that has {length} bytes with its space {space:?} before it: at most {MAX_DATASET}");
            return Err(Error::config("dataset", problem));
        }
        Ok(write)
    }

    /// Returns `error` with the names that its tenants use for gangs and written datasets, instead of those of this server.
    pub(crate) fn told(&self, error: Error) -> Error {
        let Self::Own(space) = self else { return error };
        let (of_gang, of_dataset) = (format!("gang {space}{OF_GANG}"), format!("{}@", space.replace(':', "@")));
        let quoted = format!("gang \"{space}{OF_GANG}");
        let own = |text: String| bare(&text.replace(&of_gang, "gang ").replace(&quoted, "gang \""), &of_dataset);
        match error {
            Error::Fenced { gang, generation, why } => {
                let gang = gang.strip_prefix(&**space).and_then(|gang| gang.strip_prefix(OF_GANG)).unwrap_or(&gang);
                Error::Fenced { gang: gang.to_owned(), generation, why: own(why) }
            }
            Error::Timeout { stage, culprit, waited } => Error::Timeout { stage, culprit: own(culprit), waited },
            Error::Mismatch { what, expected, found, hint } => {
                Error::Mismatch { what: own(what), expected: own(expected), found: own(found), hint }
            }
            Error::Config { option, problem } => Error::Config { option, problem: own(problem) },
            Error::Limit { place, what, asked, limit, option, raise } => {
                Error::Limit { place, what: own(what), asked, limit, option, raise }
            }
            Error::NotFound { what, hint } => Error::NotFound { what: own(what), hint: own(hint) },
            Error::Closed { why } => Error::Closed { why: own(why) },
            Error::Over { why } => Error::Over { why: own(why) },
            // Nothing in them is named by a tenant.
            other => other,
        }
    }

    /// Returns the URL that the dataset called `dataset` in this space was written to.
    pub(crate) fn own(&self, staging: &Staging, dataset: &str) -> Option<String> {
        staging.url_of(&self.write(dataset, "x").ok()?)
    }

    /// Returns true if a dataset called `dataset` was written, in this space or in the common one, which all may read.
    pub(crate) fn has(&self, staging: &Staging, dataset: &str) -> bool {
        self.own(staging, dataset).is_some() || staging.url(dataset).is_some()
    }

    /// Returns the newest version of what [`has`](Self::has) finds, its own first.
    pub(crate) fn version(&self, staging: &Staging, dataset: &str) -> Option<Version> {
        let own = self.write(dataset, "x").ok().and_then(|name| staging.version_of(&name));
        own.or_else(|| staging.version_of(&WriteId::new(dataset, "x").ok()?))
    }
}

/// `text` without `prefix` where a name begins with it.
fn bare(text: &str, prefix: &str) -> String {
    let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || "._-@".contains(letter);
    let mut parts = text.split(prefix);
    let mut found = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if found.ends_with(is_of_a_name) {
            found.push_str(prefix);
        }
        found.push_str(part);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_told_the_names_that_they_gave() {
        let space = Space::named("lab");
        let own = space.told(Error::Fenced { gang: "lab/g".into(), generation: 1, why: "rank 1 failed".into() });
        assert!(matches!(&own, Error::Fenced { gang, .. } if gang == "g"), "{own}");
        let mismatch = |gang: &str, dataset: &str| Error::Mismatch {
            what: format!("acknowledgement of rank 0 of gang {gang}"),
            expected: format!("a token of gang {gang}"),
            found: format!("dataset {dataset:?} at /put/{dataset}"),
            hint: String::new(),
        };
        let told = space.told(mismatch("lab/g", "lab@x")).to_string();
        assert_eq!(told, mismatch("g", "x").to_string());
        let unknown = Error::NotFound { what: format!("gang {:?}", "lab/g"), hint: String::new() };
        assert!(matches!(space.told(unknown), Error::NotFound { what, .. } if what == "gang \"g\""));
        for (space, dataset) in [(Space::Whole, "lab@x"), (Space::Common, "lab@x"), (Space::named("b"), "lab@x")] {
            assert_eq!(space.told(mismatch("lab/g", dataset)).to_string(), mismatch("lab/g", dataset).to_string());
        }
        let certificate = Space::Own("certificate:zoe".into());
        assert_eq!(certificate.told(mismatch("g", "certificate@zoe@x")).to_string(), mismatch("g", "x").to_string());
    }

    fn members(text: &str) -> BTreeMap<String, Vec<String>> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_tenant_is_in_one_space() {
        let spaces = members(r#"{"lab": ["anna", "certificate:bert.example"], "common": ["carl"], "dora": ["emil"]}"#);
        let spaces = Spaces::new(&spaces).unwrap();
        let of = |name: &str| spaces.of(&Tenant::of_ticket(name));
        assert_eq!(of("anna"), of("certificate:bert.example"));
        assert_eq!((of("carl"), of("anonymous")), (Space::Common, Space::Whole));
        assert_eq!(of("emil"), of("dora"), "a grant: one tenant in another's space");
        let gangs = ["anna", "bert.example", "dora", "common", "carl"].map(|name| of(name).gang("g").unwrap());
        assert_eq!(gangs, ["lab/g", "bert.example/g", "dora/g", "common/g", "g"]);
        assert!(of("carl").gang("lab/g").is_err() && of("anna").gang(&"g".repeat(129)).is_err());
        assert_eq!(of("anonymous").gang("lab/g").unwrap(), "lab/g");
        let names = ["anna", "certificate:zoe"].map(|name| of(name).write("x", "w").unwrap().dataset().to_owned());
        assert_eq!(names, ["lab@x", "certificate@zoe@x"]);
        assert!(of("anna").write("dora@x", "w").is_err() && of("carl").write("lab@x", "w").is_err());
        let long = of(&format!("certificate:{}", "x".repeat(128)));
        assert!(long.write(&"y".repeat(99), "w").is_ok() && long.write(&"y".repeat(100), "w").is_err());
        let all = Spaces::new(&members(r#"{"common": ["*"], "dora": ["dora"]}"#)).unwrap();
        assert_eq!(all.of(&Tenant::of_ticket("anna")), Space::Common);
        assert_eq!(all.of(&Tenant::of_ticket("dora")), Space::Own("dora".into()));
        for wrong in [r#"{"a": ["x"], "b": ["x"]}"#, r#"{"a/b": []}"#, r#"{"a": ["x y"]}"#, r#"{"": []}"#] {
            assert!(Spaces::new(&members(wrong)).is_err(), "{wrong}");
        }
    }
}
