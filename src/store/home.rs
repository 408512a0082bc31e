//! Paths in environment variables, as the tools read them whose variables they are.

use std::ffi::OsString;
use std::path::PathBuf;

/// The home of this user.
pub(super) fn home(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HOME").or_else(|| set("USERPROFILE"))
}

/// The path that the variable `name` holds; `~` at its beginning is the home. `None` if the variable is missing or empty.
pub(super) fn path(environment: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    let path = environment(name).filter(|value| !value.is_empty()).map(PathBuf::from)?;
    match (path.strip_prefix("~"), home(environment)) {
        (Ok(rest), Some(home)) => Some(home.join(rest)),
        _ => Some(path),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
