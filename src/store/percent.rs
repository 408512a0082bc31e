//! Texts in which bytes are written as `%2F`.

/// `path` as that of an address that means it exactly: without patterns, queries and the like.
pub(super) fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~=".contains(&byte) {
            text.push(byte.into());
        } else {
            text.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
    }
    text
}

fn hex_digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

/// `text` with the bytes that are percent-encoded in it; none if a percent sign begins no byte, or they are no UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some(percent) = rest.find('%') {
        let (before, encoded) = rest.split_at(percent);
        let (byte, after) = leading_byte(encoded)?;
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(byte);
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

/// The byte that `text` begins with, if it is percent-encoded, and what follows it.
pub(super) fn leading_byte(text: &str) -> Option<(u8, &str)> {
    let (digits, rest) = text.strip_prefix('%')?.split_at_checked(2)?;
    let is_byte = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    Some((u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_digits_are_bytes() {
        for (text, meant) in
            [("a%20b%2f", Some("a b/")), ("%C3%A4", Some("ä")), ("100%", None), ("%zz", None), ("%ff", None)]
        {
            assert_eq!(decoded(text).as_deref(), meant, "{text}");
        }
        assert_eq!(encoded("a b/k=1.5/*?[x]{y}#%ä"), "a%20b/k=1.5/%2A%3F%5Bx%5D%7By%7D%23%25%C3%A4");
        assert_eq!(decoded(&encoded("ä%2F?")).as_deref(), Some("ä%2F?"));
        assert_eq!(leading_byte("%2fx"), Some((b'/', "x")));
        assert!(["", "a%20", "%", "%2", "%+1", "%zz", "%ää"].iter().all(|text| leading_byte(text).is_none()));
    }
}
