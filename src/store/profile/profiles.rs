//! The content of the files, and the means by which a profile gets credentials.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::ini::{self, Section};
use crate::error::{Error, Result};
use crate::hex;
use crate::nearest::nearest;
use crate::store::home;

/// Most bytes of one of these files.
const MAX_BYTES: u64 = 4 << 20;

/// Longest chain of roles.
const MAX_DEPTH: usize = 8;

/// Means by which a profile gets credentials.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Means {
    /// By keys that stand in a file.
    Keys { id: String, secret: String, token: Option<String> },
    /// From the output of a command.
    Process(String),
    /// By a login of IAM Identity Center.
    Sso { cache: PathBuf, region: String, account: String, role: String, profile: String },
    /// As a role that others' credentials may take.
    Role { arn: String, session: String, external_id: Option<String>, seconds: Option<String>, of: Box<Means> },
    /// As a role that a token in a file may take.
    WebIdentity { arn: String, session: String, token: PathBuf },
}

/// The sections of both files.
#[derive(Default)]
pub(super) struct Profiles {
    /// By the name of the profile.
    profiles: BTreeMap<String, Section>,
    sessions: BTreeMap<String, Section>,
    home: PathBuf,
}

fn wrong(name: &str, problem: &str) -> Error {
    Error::config("storage_options", format!("profile {name} of AWS: {problem}"))
}

impl Profiles {
    /// Reads the files that the variables of `environment` name, or those in `~/.aws`. Missing files say nothing.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Limit`].
    pub(super) fn read(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        // Without a home there is none: never a directory that the process happens to be in.
        let home = home::home(environment).map(|home| home.join(".aws"));
        let read = |variable: &str, name: &str| match (home::path(environment, variable), &home) {
            (Some(path), _) => text(&path, true),
            (None, Some(home)) => text(&home.join(name), false),
            (None, None) => Ok(String::new()),
        };
        let config = ini::parse(&read("AWS_CONFIG_FILE", "config")?);
        let credentials = ini::parse(&read("AWS_SHARED_CREDENTIALS_FILE", "credentials")?);
        Ok(Self::of(config, credentials, home.unwrap_or_default()))
    }

    fn of(config: BTreeMap<String, Section>, credentials: BTreeMap<String, Section>, home: PathBuf) -> Self {
        let mut found = Self { home, ..Self::default() };
        for (name, section) in config {
            if let Some(name) = name.strip_prefix("sso-session ") {
                found.sessions.insert(name.to_owned(), section);
            } else if let Some(name) =
                name.strip_prefix("profile ").or_else(|| (name == "default").then_some("default"))
            {
                found.profiles.insert(name.to_owned(), section);
            }
        }
        for (name, section) in credentials {
            // The file of credentials wins.
            found.profiles.entry(name).or_default().extend(section);
        }
        found
    }

    /// Returns true if there is a profile `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    /// The value of `key` in profile `name`.
    pub(super) fn value(&self, name: &str, key: &str) -> Option<&str> {
        self.profiles.get(name)?.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Means by which profile `name` gets credentials; none if it says nothing about them.
    ///
    /// # Errors
    /// [`Error::NotFound`] names the nearest profile; [`Error::Config`] for one that contradicts itself, and for means that
    /// are not known here.
    pub(super) fn means(&self, name: &str) -> Result<Option<Means>> {
        self.chained(name, &mut Vec::new())
    }

    fn chained(&self, name: &str, above: &mut Vec<String>) -> Result<Option<Means>> {
        if !self.has(name) {
            let like = nearest(name, self.profiles.keys().map(String::as_str));
            let hint = like.map_or_else(
                || "give the name of a profile in ~/.aws/config or ~/.aws/credentials (AWS_PROFILE)".to_owned(),
                |like| format!("there is {like}"),
            );
            return Err(Error::NotFound { what: format!("profile {name} of AWS"), hint });
        }
        let value = |key: &str| self.value(name, key);
        let session = || value("role_session_name").unwrap_or("bowstring").to_owned();
        // A profile may take its role from keys of its own.
        let again = above.iter().any(|above| above == name);
        if let Some(arn) = value("role_arn").filter(|_| !again) {
            let arn = arn.to_owned();
            if let Some(token) = value("web_identity_token_file") {
                return Ok(Some(Means::WebIdentity { arn, session: session(), token: token.into() }));
            }
            if let Some(source) = value("credential_source") {
                let problem = format!(
                    "credential_source {source} is not known here; give credential_provider=, or run with that source's own role"
                );
                return Err(wrong(name, &problem));
            }
            if value("mfa_serial").is_some() {
                return Err(wrong(
                    name,
                    "it asks for a code (mfa_serial): take the role by another tool, and give credential_process",
                ));
            }
            let Some(source) = value("source_profile") else {
                return Err(wrong(name, "it has a role_arn and no source_profile"));
            };
            above.push(name.to_owned());
            if above.len() > MAX_DEPTH || (source != name && above.iter().any(|above| above == source)) {
                return Err(wrong(name, "its source_profile leads back to it"));
            }
            let of = self.chained(source, above)?;
            let of = of.ok_or_else(|| wrong(name, &format!("its source_profile {source} has no credentials")))?;
            let (external_id, seconds) = (value("external_id"), value("duration_seconds"));
            let (external_id, seconds) = (external_id.map(str::to_owned), seconds.map(str::to_owned));
            return Ok(Some(Means::Role { arn, session: session(), external_id, seconds, of: Box::new(of) }));
        }
        if let Some(account) = value("sso_account_id") {
            return self.sso(name, account).map(Some);
        }
        if let Some(id) = value("aws_access_key_id") {
            let secret =
                value("aws_secret_access_key").ok_or_else(|| wrong(name, "it has no aws_secret_access_key"))?;
            let token = value("aws_session_token").map(str::to_owned);
            return Ok(Some(Means::Keys { id: id.to_owned(), secret: secret.to_owned(), token }));
        }
        if let Some(command) = value("credential_process") {
            return Ok(Some(Means::Process(command.to_owned())));
        }
        // Incomplete settings must not fall back to the role of the machine.
        let halves = [
            ("sso_start_url", "sso_account_id"),
            ("sso_session", "sso_account_id"),
            ("sso_role_name", "sso_account_id"),
            ("aws_secret_access_key", "aws_access_key_id"),
            ("source_profile", "role_arn"),
            ("web_identity_token_file", "role_arn"),
        ];
        match halves.iter().find(|(has, _)| value(has).is_some()) {
            Some((has, lacks)) => Err(wrong(name, &format!("it has a {has} and no {lacks}"))),
            None => Ok(None),
        }
    }

    fn sso(&self, name: &str, account: &str) -> Result<Means> {
        let own = |key: &str| self.value(name, key);
        let session = own("sso_session");
        let section = match session {
            Some(session) => Some(self.sessions.get(session).ok_or_else(|| {
                wrong(name, &format!("there is no [sso-session {session}] in the file of configuration"))
            })?),
            None => None,
        };
        let value = |key: &str| section.and_then(|section| section.get(key)).map(String::as_str).or_else(|| own(key));
        let lacking = |key: &str| wrong(name, &format!("it has an sso_account_id and no {key}"));
        let start = value("sso_start_url").ok_or_else(|| lacking("sso_start_url"))?;
        let region = value("sso_region").ok_or_else(|| lacking("sso_region"))?.to_owned();
        let role = own("sso_role_name").ok_or_else(|| lacking("sso_role_name"))?.to_owned();
        if !is_region(&region) {
            return Err(wrong(name, "its sso_region is no region"));
        }
        if self.home.as_os_str().is_empty() {
            return Err(wrong(name, "no HOME is set, and a login is kept there"));
        }
        // The tools name the file of a login by its session, or its address.
        use sha1::Digest;
        let digest = hex::of(sha1::Sha1::digest(session.unwrap_or(start)));
        let cache = self.home.join("sso").join("cache").join(format!("{digest}.json"));
        Ok(Means::Sso { cache, region, account: account.to_owned(), role, profile: name.to_owned() })
    }
}

/// Returns true if `text` is valid within a host name; servers of other makers have regions with a dot or an underscore.
pub(in crate::store) fn is_region(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() < 64 && text.bytes().all(plain)
}

/// The text of a file; none if there is no such file, or, unless it is `named`, none that may be read.
fn text(path: &Path, named: bool) -> Result<String> {
    use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};

    let failed = |error: std::io::Error| Error::Store {
        operation: "read".to_owned(),
        url: path.display().to_string(),
        source: error.into(),
    };
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() <= MAX_BYTES => {
            std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(failed)
        }
        Ok(_) => Err(failed(std::io::Error::other("it is no file of AWS's tools"))),
        Err(error) if error.kind() == NotFound => Ok(String::new()),
        Err(error) if !named && matches!(error.kind(), NotADirectory | PermissionDenied) => Ok(String::new()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &str, credentials: &str) -> Profiles {
        Profiles::of(ini::parse(config), ini::parse(credentials), PathBuf::from("/h/.aws"))
    }

    fn keys(id: &str) -> Means {
        Means::Keys { id: id.to_owned(), secret: "s".to_owned(), token: None }
    }

    const CREDENTIALS: &str = "[default]\naws_access_key_id=d\naws_secret_access_key=s\n[base]\naws_access_key_id=b\naws_secret_access_key=s\n";

    #[test]
    fn keys_processes_roles_and_logins_are_told_apart() {
        let config = "[default]\nregion=eu-west-1\n[profile run]\ncredential_process=give me\n[profile role]\nrole_arn=arn:r\n\
                      source_profile=base\nexternal_id=x\n[profile second]\nrole_arn=arn:s\nsource_profile=role\nrole_session_name=me\n\
                      [profile own]\nrole_arn=arn:o\nsource_profile=own\naws_access_key_id=o\naws_secret_access_key=s\n\
                      [profile web]\nrole_arn=arn:w\nweb_identity_token_file=/t\n[profile bare]\nregion=x\n\
                      [profile login]\nsso_session=corp\nsso_account_id=1\nsso_role_name=R\n[sso-session corp]\nsso_region=us-east-1\n\
                      sso_start_url=https://start\n[profile old]\nsso_start_url=https://start\nsso_region=us-east-1\nsso_account_id=1\n\
                      sso_role_name=R\n";
        let found = of(config, CREDENTIALS);
        let means = |name: &str| found.means(name).unwrap();
        assert_eq!(means("default"), Some(keys("d")));
        assert_eq!(means("base"), Some(keys("b")));
        assert_eq!(found.value("default", "region"), Some("eu-west-1"));
        assert_eq!(means("run"), Some(Means::Process("give me".to_owned())));
        assert_eq!(means("bare"), None);
        let role = |arn: &str, session: &str, external: Option<&str>, of: Means| Means::Role {
            arn: arn.to_owned(),
            session: session.to_owned(),
            external_id: external.map(str::to_owned),
            seconds: None,
            of: Box::new(of),
        };
        let first = role("arn:r", "bowstring", Some("x"), keys("b"));
        assert_eq!(means("role"), Some(first.clone()));
        assert_eq!(means("second"), Some(role("arn:s", "me", None, first)));
        assert_eq!(means("own"), Some(role("arn:o", "bowstring", None, keys("o"))));
        let web = Means::WebIdentity { arn: "arn:w".to_owned(), session: "bowstring".to_owned(), token: "/t".into() };
        assert_eq!(means("web"), Some(web));
        let cached = |name: &str| match means(name) {
            Some(Means::Sso { cache, region, .. }) => (cache.display().to_string(), region),
            other => panic!("{other:?}"),
        };
        // SHA-1 of "corp" and of the address.
        assert_eq!(cached("login").1, "us-east-1");
        assert!(cached("login").0.starts_with("/h/.aws/sso/cache/") && cached("login").0.ends_with(".json"));
        assert_ne!(cached("login").0, cached("old").0);
    }

    #[test]
    fn what_cannot_be_is_told_and_no_secret_with_it() {
        let config = "[profile a]\nrole_arn=x\nsource_profile=b\n[profile b]\nrole_arn=y\nsource_profile=a\n[profile none]\nrole_arn=x\n\
                      [profile ec2]\nrole_arn=x\ncredential_source=Ec2InstanceMetadata\n[profile mfa]\nrole_arn=x\nsource_profile=b\nmfa_serial=m\n\
                      [profile half]\naws_access_key_id=sEcReT\n[profile lost]\nsso_session=zz\nsso_account_id=1\n\
                      [profile odd]\nsso_start_url=u\nsso_region=a.evil/\nsso_account_id=1\nsso_role_name=r\n[profile empty]\nrole_arn=x\nsource_profile=bare\n[profile bare]\n";
        let found = of(config, CREDENTIALS);
        for (name, told) in [
            ("a", "leads back"),
            ("none", "no source_profile"),
            ("ec2", "credential_provider="),
            ("mfa", "mfa_serial"),
            ("half", "no aws_secret_access_key"),
            ("lost", "[sso-session zz]"),
            ("odd", "no region"),
            ("empty", "no credentials"),
        ] {
            let error = found.means(name).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains(name) && !error.contains("sEcReT"), "{name}: {error}");
        }
        let error = found.means("bas").unwrap_err();
        assert!(matches!(&error, Error::NotFound { hint, .. } if hint == "there is base"), "{error}");
    }

    #[test]
    fn the_files_are_where_the_environment_says() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir_all(home.join(".aws")).unwrap();
        std::fs::write(home.join(".aws/credentials"), CREDENTIALS).unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "[profile far]\nregion=r\n").unwrap();
        let read = |variables: &[(&str, &Path)]| {
            Profiles::read(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
        };
        assert!(read(&[("HOME", &home)]).unwrap().has("base"));
        let both = read(&[("HOME", &home), ("AWS_CONFIG_FILE", &other)]).unwrap();
        assert!(both.has("base") && both.has("far"));
        let tilde = read(&[("HOME", folder.path()), ("AWS_CONFIG_FILE", Path::new("~/other"))]).unwrap();
        assert!(tilde.has("far"));
        assert!(!read(&[("HOME", folder.path())]).unwrap().has("default"), "no file says nothing");
        assert!(matches!(read(&[("AWS_CONFIG_FILE", folder.path())]), Err(Error::Store { .. })));
    }
}
