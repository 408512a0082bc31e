//! The home of this user, and `~` at the beginning of paths.

use std::ffi::OsString;
#[cfg(any(feature = "cli", feature = "cloud"))]
use std::path::Path;
use std::path::PathBuf;

/// The home of this user.
pub(super) fn home(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HOME").or_else(|| set("USERPROFILE"))
}

/// Expands a `~` at the start of `path` to the home of the process's user: a shell does not do so inside quotes, or after
/// `--flag=`.
pub(crate) fn at_home(path: &str) -> String {
    expand(path, &|name| std::env::var_os(name))
}

/// As [`at_home`], of a path; one that is no text stays as it is.
#[cfg(feature = "cli")]
pub(crate) fn path_at_home(path: &Path) -> PathBuf {
    expand_path(path, &|name| std::env::var_os(name))
}

fn expand(path: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> String {
    let home = home(environment).and_then(|home| home.into_os_string().into_string().ok());
    match (path.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        _ => path.to_owned(),
    }
}

#[cfg(any(feature = "cli", feature = "cloud"))]
fn expand_path(path: &Path, environment: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    path.to_str().map_or_else(|| path.to_owned(), |text| expand(text, environment).into())
}

/// The path that the variable `name` holds; `~` at its beginning is the home. `None` if the variable is missing or empty.
#[cfg(feature = "cloud")]
pub(super) fn path(environment: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    let path = environment(name).filter(|value| !value.is_empty())?;
    Some(expand_path(Path::new(&path), environment))
}

#[cfg(all(test, feature = "cloud"))]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_the_home_at_the_beginning_alone() {
        let of = |value: &str| {
            let variables = [("HOME", "/home/me"), ("X", value)];
            path(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()), "X")
        };
        for (value, expected) in
            [("~/a/b", "/home/me/a/b"), ("~", "/home/me"), ("/a/~/b", "/a/~/b"), ("~you/a", "~you/a")]
        {
            assert_eq!(of(value).as_deref(), Some(Path::new(expected)), "{value}");
        }
        assert_eq!(of(""), None);
        assert_eq!(path(&|name| (name == "X").then(|| "~/a".into()), "X").as_deref(), Some(Path::new("~/a")));
    }
}
