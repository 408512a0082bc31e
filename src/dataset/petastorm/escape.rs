//! Escapes of the text strings of protocol 0; `None` is a damaged escape.

fn hex(digits: Option<&[u8]>) -> Option<u32> {
    let digits = std::str::from_utf8(digits?).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// The bytes of a Python 2 string literal.
pub(super) fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (&escape, tail) = rest.split_first()?;
        rest = tail;
        match escape {
            b'\\' | b'\'' | b'"' => bytes.push(escape),
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            b'a' => bytes.push(7),
            b'b' => bytes.push(8),
            b'v' => bytes.push(11),
            b'f' => bytes.push(12),
            b'x' => {
                bytes.push(u8::try_from(hex(rest.get(..2))?).ok()?);
                rest = rest.get(2..)?;
            }
            b'0'..=b'7' => {
                let mut value = u32::from(escape - b'0');
                for _ in 0..2 {
                    let Some((&digit @ b'0'..=b'7', tail)) = rest.split_first() else { break };
                    value = value * 8 + u32::from(digit - b'0');
                    rest = tail;
                }
                bytes.push(u8::try_from(value).ok()?);
            }
            other => bytes.extend([b'\\', other]),
        }
    }
    Some(bytes)
}

/// The text of Python's `raw-unicode-escape`.
pub(super) fn unescape_unicode(text: &[u8]) -> Option<String> {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = match (first, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                decoded.push(char::from(first));
                rest = tail;
                continue;
            }
        };
        let mut code = hex(tail.get(1..=digits))?;
        rest = tail.get(1 + digits..)?;
        // A narrow Python 2 writes characters beyond 16 bits as a pair.
        if let (0xd800..0xdc00, Some(tail)) = (code, rest.strip_prefix(b"\\u"))
            && let Some(low @ 0xdc00..0xe000) = hex(tail.get(..4))
        {
            code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            rest = tail.get(4..)?;
        }
        decoded.push(char::from_u32(code)?);
    }
    Some(decoded)
}
