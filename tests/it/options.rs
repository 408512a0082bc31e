//! The table of options against the documentation, which people read in its place.

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
