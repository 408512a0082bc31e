//! Credentials that a command prints (`credential_process`).

use std::process::{Command, Stdio};

use serde::Deserialize;

use super::super::credentials::Credentials;
use super::times;
use crate::error::Source;

/// What the command prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u64,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Runs `command`, whose errors go where those of this process go, and reads what it prints.
///
/// # Errors
/// What is wrong with it, without a word of what it printed.
pub(super) fn run(command: &str) -> Result<Credentials, Source> {
    let words = split(command).ok_or("the credential_process has a quote that is not closed")?;
    let (program, rest) = words.split_first().ok_or("the credential_process is empty")?;
    let output = Command::new(program).args(rest).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("credential_process {program} does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("credential_process {program} ended with {}", output.status).into());
    }
    // An error would quote what stands there.
    let printed: Printed = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("credential_process {program} prints no credentials of version 1 as JSON"))?;
    if printed.version != 1 {
        return Err(
            format!("credential_process {program} prints credentials of version {}, not 1", printed.version).into()
        );
    }
    let expires = match &printed.expiration {
        None => None,
        Some(text) => Some(
            times::parse(text)
                .ok_or_else(|| format!("credential_process {program} prints an Expiration that is no time"))?,
        ),
    };
    Ok(keys(printed.access_key_id, printed.secret_access_key, printed.session_token, expires))
}

/// Credentials of these parts.
pub(super) fn keys(
    id: String,
    secret: String,
    token: Option<String>,
    expires: Option<std::time::SystemTime>,
) -> Credentials {
    let pairs = [("access_key_id", Some(id)), ("secret_access_key", Some(secret)), ("token", token)];
    Credentials::new(pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))), expires)
}

/// The words of a command line, as a shell has them that knows quotes and nothing else; none if a quote is not closed.
fn split(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().push(letters.next()?),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        let words = |line: &str| split(line).unwrap_or_default();
        assert_eq!(words("  a  'b c' \"d\\\"e\" f\\ g '' "), ["a", "b c", "d\"e", "f g", ""]);
        assert_eq!(words("/opt/x --role=a'b'c"), ["/opt/x", "--role=abc"]);
        assert_eq!((split("a 'b"), split("a \\")), (None, None));
    }

    #[cfg(unix)]
    #[test]
    fn what_a_command_prints_is_taken_and_not_told() {
        let sh = |script: &str| run(&format!("sh -c '{script}'"));
        let good = r#"echo "{\"Version\": 1, \"AccessKeyId\": \"i\", \"SecretAccessKey\": \"s\", \"SessionToken\": \"t\", \"Expiration\": \"2099-01-01T00:00:00+00:00\"}""#;
        let found = sh(good).unwrap();
        assert_eq!(found.expires(), times::parse("2099-01-01T00:00:00Z"));
        assert!(format!("{found:?}").contains("access_key_id"));
        for (script, told) in [
            ("exit 3", "ended with"),
            ("echo sEcReT", "no credentials"),
            (r#"echo "{\"Version\": 2, \"AccessKeyId\": \"i\", \"SecretAccessKey\": \"sEcReT\"}""#, "version 2"),
            (
                r#"echo "{\"Version\": 1, \"AccessKeyId\": \"i\", \"SecretAccessKey\": \"sEcReT\", \"Expiration\": \"x\"}""#,
                "no time",
            ),
        ] {
            let error = sh(script).unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("sEcReT"), "{error}");
        }
        assert!(run("/nowhere/at/all x").unwrap_err().to_string().contains("does not run"));
        assert!(run("").is_err() && run("'").is_err());
    }
}
