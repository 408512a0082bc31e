//! JSON tokens of a text, one after another, each with its raw form.
//!
//! Numbers stay text, so that the consumer interprets them without loss. Anything outside the grammar (NaN, single quotes, leading
//! zeros, half a surrogate pair) is an error.

use std::borrow::Cow;

/// Deepest nesting of lists and objects.
const MAX_DEPTH: usize = 128;

/// The start of a value: a complete scalar, or the opening of a container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token<'a> {
    Null,
    Boolean(bool),
    Number(&'a str),
    Text(Cow<'a, str>),
    List,
    Object,
}

impl Token<'_> {
    /// Returns its kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List => "a list",
            Self::Object => "an object",
        }
    }
}

/// The position in a text where reading continues.
#[derive(Debug, Clone)]
pub(crate) struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

/// The reason that a text is no JSON.
pub(crate) type Broken = &'static str;

impl<'a> Lexer<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Returns the offset where reading continues.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the text between byte `from` and the current position.
    pub(crate) fn since(&self, from: usize) -> &'a [u8] {
        self.bytes.get(from..self.at).unwrap_or_default().trim_ascii()
    }

    fn peek(&mut self) -> Option<u8> {
        let rest = self.bytes.get(self.at..)?;
        let space = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))?;
        self.at += space;
        rest.get(space).copied()
    }

    fn eat(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    /// Checks that only whitespace follows.
    pub(crate) fn end(&mut self) -> Result<(), Broken> {
        if self.peek().is_none() { Ok(()) } else { Err("more follows its end") }
    }

    /// Reads the next value, or its opening.
    pub(crate) fn value(&mut self) -> Result<Token<'a>, Broken> {
        let rest = |this: &Self| this.bytes.get(this.at..).unwrap_or_default();
        match self.peek().ok_or("it is cut short")? {
            b'"' => {
                self.at += 1;
                Ok(Token::Text(self.text()?))
            }
            b'-' | b'0'..=b'9' => Ok(Token::Number(self.number()?)),
            open @ (b'[' | b'{') => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err("it is nested deeper than 128 times");
                }
                Ok(if open == b'[' { Token::List } else { Token::Object })
            }
            _ => {
                for (word, token) in [
                    (&b"null"[..], Token::Null),
                    (&b"true"[..], Token::Boolean(true)),
                    (&b"false"[..], Token::Boolean(false)),
                ] {
                    if rest(self).starts_with(word) {
                        self.at += word.len();
                        return Ok(token);
                    }
                }
                match rest(self).starts_with(b"NaN") || rest(self).starts_with(b"Infinity") {
                    true => Err("JSON has no NaN and no infinity"),
                    false => Err("a value is missing"),
                }
            }
        }
    }

    /// Returns true if a list has another item, and otherwise consumes the closing bracket.
    pub(crate) fn item(&mut self, first: bool) -> Result<bool, Broken> {
        if self.eat(b']') {
            self.depth -= 1;
            return Ok(false);
        }
        if first || self.eat(b',') { Ok(true) } else { Err("a list does not end") }
    }

    /// Reads the name of the next member of an object; consumes the closing brace if there is none.
    pub(crate) fn member(&mut self, first: bool) -> Result<Option<Cow<'a, str>>, Broken> {
        if self.eat(b'}') {
            self.depth -= 1;
            return Ok(None);
        }
        if !first && !self.eat(b',') {
            return Err("an object has no end");
        }
        if !self.eat(b'"') {
            return Err("the name of a member is missing");
        }
        let name = self.text()?;
        if self.eat(b':') { Ok(Some(name)) } else { Err("a colon is missing") }
    }

    /// Skips a value whose `token` was read.
    pub(crate) fn skip(&mut self, token: &Token<'_>) -> Result<(), Broken> {
        let mut first = true;
        match token {
            Token::List => {
                while self.item(first)? {
                    first = false;
                    let inner = self.value()?;
                    self.skip(&inner)?;
                }
            }
            Token::Object => {
                while self.member(first)?.is_some() {
                    first = false;
                    let inner = self.value()?;
                    self.skip(&inner)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn number(&mut self) -> Result<&'a str, Broken> {
        let start = self.at;
        let digits = |this: &mut Self| {
            let rest = this.bytes.get(this.at..).unwrap_or_default();
            let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            this.at += count;
            count
        };
        let next = |this: &Self| this.bytes.get(this.at).copied();
        if next(self) == Some(b'-') {
            self.at += 1;
        }
        let zero = next(self) == Some(b'0');
        match digits(self) {
            0 => return Err("a number has no digits"),
            1 => {}
            _ if zero => return Err("a number has leading zeros"),
            _ => {}
        }
        if next(self) == Some(b'.') {
            self.at += 1;
            if digits(self) == 0 {
                return Err("a number has no digits after its point");
            }
        }
        if matches!(next(self), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(next(self), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if digits(self) == 0 {
                return Err("a number has no exponent");
            }
        }
        if next(self).is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'+' | b'-')) {
            return Err("a number has no end");
        }
        let text = self.bytes.get(start..self.at).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.ok_or("a number is not text")
    }

    /// Reads a text whose opening quote was consumed.
    fn text(&mut self) -> Result<Cow<'a, str>, Broken> {
        let utf8 = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8");
        let mut whole: Option<String> = None;
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let run = rest.iter().position(|byte| matches!(byte, b'"' | b'\\') || *byte < 0x20);
            let run = run.ok_or("a text has no end")?;
            let piece = utf8(rest.get(..run).unwrap_or_default())?;
            self.at += run + 1;
            match rest.get(run) {
                Some(b'"') => {
                    return Ok(match whole {
                        None => Cow::Borrowed(piece),
                        Some(before) => Cow::Owned(before + piece),
                    });
                }
                Some(b'\\') => {
                    let whole = whole.get_or_insert_default();
                    whole.push_str(piece);
                    whole.push(self.escaped()?);
                }
                _ => return Err("a text has a control character in it"),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, Broken> {
        let letter = self.bytes.get(self.at).copied().ok_or("a text has no end")?;
        self.at += 1;
        Ok(match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                const HALF: Broken = "a text has half a surrogate pair, which is not a character";
                let first = self.four()?;
                let code = match first {
                    0xD800..=0xDBFF => {
                        let more = self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(b"\\u"));
                        self.at += if more { 2 } else { return Err(HALF) };
                        match self.four()? {
                            second @ 0xDC00..=0xDFFF => 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00),
                            _ => return Err(HALF),
                        }
                    }
                    other => other,
                };
                char::from_u32(code).ok_or(HALF)?
            }
            _ => return Err("a text has an escape that is none"),
        })
    }

    fn four(&mut self) -> Result<u32, Broken> {
        let four = self.bytes.get(self.at..).and_then(|rest| rest.get(..4));
        let four = four.filter(|four| four.iter().all(u8::is_ascii_hexdigit));
        let four = four.and_then(|four| std::str::from_utf8(four).ok()).ok_or("a text has an escape that is none")?;
        self.at += 4;
        u32::from_str_radix(four, 16).map_err(|_| "a text has an escape that is none")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn passed(text: &[u8]) -> Result<(), Broken> {
        let mut lexer = Lexer::new(text);
        let token = lexer.value()?;
        lexer.skip(&token)?;
        lexer.end()
    }

    #[test]
    fn what_is_json_is_what_serde_says() {
        for text in [
            "{}",
            "[]",
            " [1, -2.5e+3 , 0.1,\"a\"] ",
            "{\"a\": {\"b\": [null, true, false]}}",
            "-0",
            "1E5",
            "\"\\u00e9\"",
            "\"\\ud83d\\ude00\"",
            "",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{a:1}",
            "'a'",
            "nul",
            "truefalse",
            "NaN",
            "[NaN]",
            "Infinity",
            "\"a",
            "\"\\x\"",
            "\"\\ud83d\"",
            "\"\\udc00\"",
            "\"\\ud83d\\u0041\"",
            "\"\t\"",
            "[1 2]",
            "1 2",
            "{\"a\" 1}",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "-",
            "[",
            "{",
            "1a",
            "0x1",
            "null1",
        ] {
            let serde = serde_json::from_str::<Value>(text).is_ok();
            assert_eq!(passed(text.as_bytes()).is_ok(), serde, "{text}: {:?}", passed(text.as_bytes()));
        }
        assert!(passed(b"\"\xff\"").is_err());
        assert!(passed("[".repeat(100_000).as_bytes()).is_err());
        assert!(passed(("[".repeat(128) + &"]".repeat(128)).as_bytes()).is_ok());
    }

    #[test]
    fn texts_are_those_that_were_meant() {
        let text = r#""é\n\t\"\\\/\u0041\ud83d\ude00\u0000""#;
        let expected: String = serde_json::from_str(text).unwrap();
        assert_eq!(Lexer::new(text.as_bytes()).value(), Ok(Token::Text(expected.into())));
        assert_eq!(Lexer::new(b" 1.50e+3").value(), Ok(Token::Number("1.50e+3")));
    }
}
