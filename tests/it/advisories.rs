//! Locked dependencies against `deny.toml`: versions below an advisory floor and banned crates fail the build.
//!
//! `cargo deny check bans licenses` checks the same and more; this test needs no tool and no network, so it always runs.

use std::fs;

#[test]
fn no_locked_crate_is_denied() {
    let root = env!("CARGO_MANIFEST_DIR");
    let rules = rules(&fs::read_to_string(format!("{root}/deny.toml")).unwrap());
    let locked = locked(&fs::read_to_string(format!("{root}/Cargo.lock")).unwrap());
    assert!(rules.len() >= 30, "only {} rules were read from deny.toml", rules.len());
    assert!(locked.len() >= 100, "only {} crates were read from Cargo.lock", locked.len());
    let found = denied(&rules, &locked);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// parking_lot's locks share one table per process: a child forked while another thread was in it hangs, even in a runtime of
/// its own. tokio uses them only if some crate enables its feature.
#[test]
fn tokio_has_no_locks_that_a_fork_breaks() {
    let lock = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).unwrap();
    let tokio = lock.split("[[package]]").find(|package| package.contains("\nname = \"tokio\"\n")).unwrap();
    assert!(!tokio.contains("parking_lot"), "a dependency enables tokio/parking_lot:\n{tokio}");
}

type Version = [u64; 3];

/// One `[[bans.deny]]` entry: a crate, the denied version ranges (all, if empty), and the reason.
#[derive(Debug)]
struct Rule {
    name: String,
    bounds: Vec<Bound>,
    reason: String,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    Below(Version),
    AtLeast(Version),
}

fn denied(rules: &[Rule], locked: &[(String, Version)]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, version) in locked {
        for rule in rules.iter().filter(|rule| rule.name == *name) {
            let inside = rule.bounds.iter().all(|bound| match bound {
                Bound::Below(limit) => version < limit,
                Bound::AtLeast(limit) => version >= limit,
            });
            if inside {
                let [major, minor, patch] = version;
                found.push(format!("{name} {major}.{minor}.{patch} is denied: {}", rule.reason));
            }
        }
    }
    found
}

/// Returns the entries `crate = "name"` or `crate = "name:>=1.2, <1.2.3"` with their `reason` lines.
fn rules(text: &str) -> Vec<Rule> {
    // Only on a line of its own: a comment may name the table.
    let entries = text.split("\n[[bans.deny]]\n").skip(1);
    entries
        .map(|entry| {
            let entry = entry.split("\n[").next().unwrap_or_default();
            let spec = value(entry, "crate").unwrap_or_else(|| panic!("an entry without `crate`: {entry}"));
            let reason = value(entry, "reason").unwrap_or_else(|| panic!("{spec}: an entry without `reason`"));
            let (name, ranges) = spec.split_once(':').unwrap_or((spec, ""));
            let bounds = ranges.split(',').map(str::trim).filter(|range| !range.is_empty()).map(bound).collect();
            Rule { name: name.to_owned(), bounds, reason: reason.to_owned() }
        })
        .collect()
}

fn bound(range: &str) -> Bound {
    match (range.strip_prefix(">="), range.strip_prefix('<')) {
        (Some(limit), _) => Bound::AtLeast(version(limit)),
        (None, Some(limit)) if !limit.starts_with('=') => Bound::Below(version(limit)),
        _ => panic!("`{range}`: only `<` and `>=` are understood"),
    }
}

fn locked(text: &str) -> Vec<(String, Version)> {
    let packages = text.split("[[package]]").skip(1);
    packages
        .map(|package| {
            let field = |key| value(package, key).unwrap_or_else(|| panic!("a package without `{key}`: {package}"));
            (field("name").to_owned(), version(field("version")))
        })
        .collect()
}

/// Returns the string of `key = "string"` on a line of its own.
fn value<'a>(entry: &'a str, key: &str) -> Option<&'a str> {
    entry.lines().find_map(|line| {
        line.strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().strip_prefix('"')?.strip_suffix('"')
    })
}

/// Parses `1.2.3-rc.1+build` as `[1, 2, 3]`; missing parts are 0.
fn version(text: &str) -> Version {
    let plain = text.trim().split(['-', '+']).next().unwrap_or_default();
    let mut parts = plain.split('.').map(|part| part.parse().unwrap_or_else(|_| panic!("`{text}` is not a version")));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

#[test]
fn a_version_below_its_floor_and_a_banned_crate_are_found() {
    let rules = rules(
        "[bans]\n[[bans.deny]]\ncrate = \"h2:<0.4.16\"\nreason = \"a\"\n\n[[bans.deny]]\ncrate = \"rand:>=0.9, <0.9.3\"\n\
         reason = \"b\"\n[[bans.deny]]\ncrate = \"bincode\"\nreason = \"c\"\n[licenses]\nallow = [\"MIT\"]\n",
    );
    let lock =
        |name: &str, version: &str| locked(&format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n"));
    for (name, version, found) in [
        ("h2", "0.4.15", 1),
        ("h2", "0.4.16", 0),
        ("h2", "0.3.26", 1),
        ("h2", "0.4.9", 1),
        ("rand", "0.9.2", 1),
        ("rand", "0.9.3", 0),
        ("rand", "0.8.9", 0),
        ("bincode", "2.0.0", 1),
        ("bincode-derive", "1.0.0", 0),
    ] {
        assert_eq!(denied(&rules, &lock(name, version)).len(), found, "{name} {version}");
    }
}
