//! The files of AWS's tools: sections of `key = value`, with indented lines below a key that has no value.

use std::collections::BTreeMap;

/// The entries of a section, by key.
pub(super) type Section = BTreeMap<String, String>;

/// The sections in `text` by name. Lines that are not a section, key or comment are skipped, as AWS's own tools do. An indented line
/// belongs to the key above it: `s3.endpoint_url`.
pub(super) fn parse(text: &str) -> BTreeMap<String, Section> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut here: Option<String> = None;
    let mut above = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let name = name.split_whitespace().map(|word| word.trim_matches(['"', '\''])).collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            (here, above) = (Some(name), String::new());
            continue;
        }
        let Some((key, value)) = trimmed.split_once('=') else { continue };
        let Some(section) = here.as_ref().and_then(|name| sections.get_mut(name)) else { continue };
        // After a blank, a # begins a comment.
        let value =
            value.find(" #").or_else(|| value.find(" ;")).map_or(value, |end| value.get(..end).unwrap_or(value));
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
        let is_below = line.starts_with([' ', '\t']) && !above.is_empty();
        if is_below {
            section.insert(format!("{above}.{key}"), value);
        } else {
            above = if value.is_empty() { key.clone() } else { String::new() };
            section.insert(key, value);
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keys_comments_and_what_is_below_a_key() {
        let text = "\u{feff}lost = 1\n[default]\nregion=eu-west-1 # here\n; no\n\n[profile  \"a b\"]\ns3 =\n  addressing_style = path\n\
                    \tendpoint_url = http://x\nRegion = us-east-1\n  indented = yes\ncredential_process = run --with=a;b\nnonsense\n[]\n";
        let found = parse(text);
        assert_eq!(found["default"]["region"], "eu-west-1");
        let profile = &found["profile a b"];
        assert_eq!(
            (profile["s3.addressing_style"].as_str(), profile["s3.endpoint_url"].as_str()),
            ("path", "http://x")
        );
        assert_eq!((profile["region"].as_str(), profile["indented"].as_str()), ("us-east-1", "yes"));
        assert_eq!(profile["credential_process"], "run --with=a;b");
        assert!(parse("[a").contains_key("a") && parse("]\u{0}[=").is_empty());
    }
}
