//! Credentials that a command prints (`credential_process`).

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::super::child::within;
use super::super::credentials::Credentials;
use super::times;
use crate::error::Source;

/// Time limit of the command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Most bytes that it may print.
const MAX_BYTES: u64 = 1 << 20;

/// The output of the command.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u64,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Runs `command`, whose standard error is that of this process, and reads its output.
///
/// # Errors
/// The fault, without any of the output.
pub(super) fn run(command: &str) -> Result<Credentials, Source> {
    let words = split(command).ok_or("the credential_process has a quote that is not closed")?;
    let (program, rest) = words.split_first().ok_or("the credential_process is empty")?;
    let child =
        Command::new(program).args(rest).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let mut child = child.map_err(|error| format!("credential_process {program} does not run: {error}"))?;
    let (status, stdout) = output(&mut child, TIMEOUT)?.ok_or_else(|| {
        format!("credential_process {program} is not done after {} s, or prints too much", TIMEOUT.as_secs())
    })?;
    if !status.success() {
        return Err(format!("credential_process {program} ended with {status}").into());
    }
    // The error would quote the output.
    let printed: Printed = serde_json::from_slice(&stdout)
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

/// Waits for `child`; returns its status and its output, or `None` if it takes longer than `limit` and was killed.
fn output(child: &mut Child, limit: Duration) -> Result<Option<(ExitStatus, Vec<u8>)>, Source> {
    let stdout = child.stdout.take().ok_or("the command has no output")?;
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.take(MAX_BYTES + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    // A command that prints too much would wait for a reader that has gone.
    let Some(status) = within(child, limit, || reading.is_finished())? else { return Ok(None) };
    let bytes = reading.join().map_err(|_| "its output was not read")??;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some((status, bytes)))
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

/// The words of a command line, as a shell splits them that knows quotes and nothing else; none if a quote is not closed.
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
