//! Texts in which bytes are written as `%2F`.

/// `text` with the bytes that are percent-encoded in it; none if a percent sign begins no byte, or they are no UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
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
    }
}
