//! What a catalog says where it refuses: the reason in the body of an error, of whichever interface.

use serde_json::Value;

/// Most bytes of a body that is looked at, and most characters that are shown of it.
const MOST: usize = 64 << 10;
const SHOWN: usize = 300;

/// The kind and message of the error in `body`.
fn parts(body: &[u8]) -> Option<(String, String)> {
    let value: Value = serde_json::from_slice(body.get(..MOST).map_or(body, |_| &[])).ok()?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let inner = value.get("error").filter(|error| error.is_object()).unwrap_or(&value);
    // Of Iceberg and Unity's tables of Delta: type; of Databricks: error_code; of AWS: __type, which may have a namespace before it.
    let kind =
        ["type", "error_code", "__type", "error"].iter().find_map(|key| inner.get(key).filter(|it| it.is_string()));
    let kind = text(kind).rsplit('#').next().unwrap_or_default().to_owned();
    let message = ["message", "Message", "error_description"].iter().find_map(|key| inner.get(key));
    Some((kind, text(message)))
}

/// The kind of the error in `body`, such as `EntityNotFoundException`.
pub(super) fn kind(body: &[u8]) -> Option<String> {
    parts(body).map(|(kind, _)| kind).filter(|kind| !kind.is_empty())
}

/// The message of the error in `body`, at most 300 characters, on one line.
pub(super) fn reason(body: &[u8]) -> Option<String> {
    let (kind, message) = parts(body)?;
    let text = match (kind.is_empty(), message.is_empty()) {
        (false, false) => format!("{kind}: {message}"),
        _ => format!("{kind}{message}"),
    };
    let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(SHOWN).collect();
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_all_interfaces_have_a_reason() {
        let of = |text: &str| reason(text.as_bytes());
        let is = |text: &str| Some(text.to_owned());
        let iceberg = r#"{"error":{"message":"no\ntable","type":"NoSuchTableException","code":404}}"#;
        assert_eq!(of(iceberg), is("NoSuchTableException: no table"));
        assert_eq!(of(r#"{"error_code":"TABLE_DOES_NOT_EXIST","message":"x"}"#), is("TABLE_DOES_NOT_EXIST: x"));
        assert_eq!(
            of(r#"{"__type":"com.aws#EntityNotFoundException","Message":"y"}"#),
            is("EntityNotFoundException: y")
        );
        assert_eq!(of(r#"{"error":"invalid_client"}"#), is("invalid_client"));
        assert_eq!((of("<html>"), of("{}"), of("[]")), (None, None, None));
        assert_eq!(kind(br#"{"__type":"a#B"}"#).as_deref(), Some("B"));
        assert_eq!(of(&format!(r#"{{"message":"{}"}}"#, "x".repeat(1000))).map(|text| text.len()), Some(SHOWN));
        assert_eq!(of(&format!(r#"{{"message":"{}"}}"#, "x".repeat(MOST))), None);
    }
}
