//! Digests and identifiers in hexadecimal: two digits a byte, lower case.

/// The digits of `bytes`.
pub(crate) fn of(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The `N` bytes whose digits are `text`, in either case.
pub(crate) fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_and_read() {
        assert_eq!(of([0, 10, 255]), "000aff");
        assert_eq!(parse("000aff"), Some([0, 10, 255]));
        assert_eq!(parse("000AfF"), Some([0, 10, 255]));
        for wrong in ["", "000af", "000aff0", "000a+f", "000a f", "00\u{e9}af"] {
            assert_eq!(parse::<3>(wrong), None, "{wrong}");
        }
    }
}
