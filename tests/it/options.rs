//! The table of options against the documentation, which people read instead.

use std::fs;
use std::path::Path;

use bowstring::pipeline::option_table::{OPTIONS, markdown};

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

#[test]
fn the_tables_of_the_documentation_are_those_of_the_source() {
    let text = document("options.md");
    let at = text.find("## Dataset").expect("docs/options.md has the tables");
    let (head, tables) = text.split_at(at);
    if std::env::var_os("BOWSTRING_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/options.md");
        fs::write(path, format!("{head}{}", markdown())).unwrap();
        return;
    }
    assert_eq!(tables, markdown(), "repeat with BOWSTRING_BLESS=1 to write the tables again");
}

#[test]
fn every_option_is_a_row_of_the_documentation() {
    let text = document("options.md");
    for entry in OPTIONS {
        assert!(text.contains(&format!("\n| `{}` | {} |", entry.name, entry.kind)), "{}", entry.name);
        assert!(!entry.sentence.is_empty() && !entry.sentence.ends_with('.'), "{}", entry.name);
    }
}

#[cfg(feature = "flight")]
#[test]
fn every_option_of_a_server_is_in_the_documentation() {
    let text = document("serving.md");
    let options = serde_json::to_value(bowstring::flight::server::file::ServeFile::default().server).unwrap();
    let missing: Vec<_> = options
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| !text.contains(name.as_str()) && !text.contains(&format!("--{}", name.replace('_', "-"))))
        .collect();
    assert!(missing.is_empty(), "docs/serving.md does not have {missing:?}");
}

/// Returns the rows of the first table under `heading` in docs/serving.md, each as its cells.
#[cfg(feature = "flight")]
fn table(heading: &str) -> Vec<Vec<String>> {
    let text = document("serving.md");
    let at = text.find(&format!("\n### {heading}")).unwrap_or_else(|| panic!("docs/serving.md has {heading}"));
    let rows = text[at..].lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "{heading} has a table");
    rows
}

/// Returns the texts in backticks.
#[cfg(feature = "flight")]
fn code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(feature = "flight")]
fn sorted<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
    names.sort_unstable();
    names
}

#[cfg(feature = "flight")]
#[test]
fn the_table_of_a_servers_options_has_every_key_and_no_other() {
    let options = serde_json::to_value(bowstring::flight::server::file::ServeFile::default().server).unwrap();
    // Options that are tables of their own.
    let apart = ["limits", "quotas", "spaces", "tls"];
    let known = options.as_object().unwrap().keys().filter(|key| !apart.contains(&key.as_str())).cloned();
    let known = sorted(known.chain(["tls.cert", "tls.key", "tls.client_ca"].map(str::to_owned)));
    assert_eq!(sorted(table("`[server]`").iter().flat_map(|row| code(&row[0]))), known);
}

#[cfg(all(feature = "flight", feature = "cli"))]
#[test]
fn the_table_of_a_servers_options_has_the_flags_and_variables_of_the_command() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_bowstring")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let shown = |flag: &str| help.split_whitespace().any(|word| word.split([',', '[']).next() == Some(flag));
    for row in table("`[server]`") {
        for (key, flag) in code(&row[0]).into_iter().zip(code(&row[1])) {
            assert!(shown(&flag), "bowstring serve has no {flag}, which docs/serving.md has for {key}");
            let key = key.strip_prefix("tls.").filter(|key| *key == "client_ca").unwrap_or(&key).replace('.', "_");
            let variable = format!("BOWSTRING_{}", key.to_ascii_uppercase());
            assert!(help.contains(&format!("[env: {variable}]")), "bowstring serve takes no {variable} for {key}");
        }
    }
}

#[cfg(feature = "flight")]
#[test]
fn the_tables_of_limits_and_quotas_have_their_defaults() {
    let options = serde_json::to_value(bowstring::flight::server::file::ServeFile::default().server).unwrap();
    let limits = options["limits"].as_object().unwrap();
    let rows = table("`[server.limits]`");
    assert_eq!(sorted(rows.iter().flat_map(|row| code(&row[0]))), sorted(limits.keys().cloned()));
    for row in rows {
        let defaults = row[1].split(';').map(|text| text.trim().replace(',', "").parse::<u64>().unwrap());
        for (key, default) in code(&row[0]).into_iter().zip(defaults) {
            assert_eq!(limits[&key].as_u64(), Some(default), "{key}");
        }
    }
    let quota = options["quotas"]["default"].as_object().unwrap();
    let rows = table("`[server.quotas.default]`");
    assert_eq!(sorted(rows.iter().flat_map(|row| code(&row[0]))), sorted(quota.keys().cloned()));
}
