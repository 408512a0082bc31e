//! The words of a filter: names, keywords, literals, signs. Each error names the character where it happened.

use super::node::{Literal, Name, OPTION, Op};
use super::words::{Keyword, continues_name, keyword, starts_name};
use crate::error::{Error, Result};

/// One word or sign of a filter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(Name),
    Keyword(Keyword),
    Literal(Literal),
    Op(Op),
    And,
    Or,
    Not,
    Open,
    Close,
    Comma,
    End,
}

/// Reads tokens from text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Moves past white space and says at which byte the next token starts.
    pub(super) fn skip_space(&mut self) -> usize {
        self.take_while(char::is_whitespace);
        self.at
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes `what` if it stands here.
    fn take(&mut self, what: &str) -> bool {
        let found = self.rest().starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &str {
        let start = self.at;
        while let Some(c) = self.peek().filter(|c| wanted(*c)) {
            self.at += c.len_utf8();
        }
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// An error at byte `at`, told as a character counted from 1.
    pub(super) fn error(&self, at: usize, problem: impl AsRef<str>) -> Error {
        let character = self.text.get(..at).map_or(0, |before| before.chars().count()) + 1;
        Error::config(OPTION, format!("at character {character}: {}", problem.as_ref()))
    }

    /// The next token, which starts right here.
    pub(super) fn next(&mut self) -> Result<Token> {
        let start = self.at;
        let Some(c) = self.peek() else { return Ok(Token::End) };
        if starts_name(c) || c == '"' {
            return self.name();
        }
        if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') {
            return self.number();
        }
        if c == '\'' {
            return Ok(Token::Literal(Literal::Text(self.quoted('\'')?)));
        }
        // Longer spellings first.
        const SYMBOLS: [(&str, Token); 17] = [
            ("==", Token::Op(Op::Eq)),
            ("!=", Token::Op(Op::Ne)),
            ("<>", Token::Op(Op::Ne)),
            ("<=", Token::Op(Op::Le)),
            (">=", Token::Op(Op::Ge)),
            ("&&", Token::And),
            ("||", Token::Or),
            ("=", Token::Op(Op::Eq)),
            ("<", Token::Op(Op::Lt)),
            (">", Token::Op(Op::Gt)),
            ("&", Token::And),
            ("|", Token::Or),
            ("!", Token::Not),
            ("~", Token::Not),
            ("(", Token::Open),
            (")", Token::Close),
            (",", Token::Comma),
        ];
        for (symbol, token) in SYMBOLS {
            if self.take(symbol) {
                return Ok(token);
            }
        }
        let hint = match c {
            '`' => "; put column names in double quotes",
            '[' | ']' => "; lists stand in parentheses: x in (1, 2)",
            _ => "",
        };
        Err(self.error(start, format!("unexpected {c:?}{hint}")))
    }

    /// A column: segments, bare or quoted, joined by dots. A single bare word may be a keyword instead. Quotes around each of several
    /// segments keep them apart.
    fn name(&mut self) -> Result<Token> {
        let (mut segments, mut quoted) = (Vec::new(), true);
        loop {
            let start = self.at;
            match self.peek() {
                // A column may have no name at all.
                Some('"') => segments.push(self.quoted('"')?),
                Some(c) if starts_name(c) => {
                    let word = self.take_while(continues_name).to_owned();
                    match keyword(&word) {
                        Some(keyword) if segments.is_empty() && self.peek() != Some('.') => {
                            return Ok(Token::Keyword(keyword));
                        }
                        Some(_) => {
                            let problem =
                                format!("'{word}' is a keyword; a column of that name stands in double quotes");
                            return Err(self.error(start, problem));
                        }
                        None => {
                            quoted = false;
                            segments.push(word);
                        }
                    }
                }
                _ => return Err(self.error(start, "expected the rest of a column name after '.'")),
            }
            if !self.take(".") {
                let apart = quoted && segments.len() > 1;
                return Ok(Token::Name(if apart { Name::Members(segments) } else { Name::Dotted(segments.join(".")) }));
            }
        }
    }

    fn number(&mut self) -> Result<Token> {
        let start = self.at;
        if !self.take("-") {
            self.take("+");
        }
        let mut digits = self.take_while(|c| c.is_ascii_digit()).len();
        let mut whole = true;
        if self.take(".") {
            whole = false;
            digits += self.take_while(|c| c.is_ascii_digit()).len();
        }
        if digits == 0 {
            return Err(self.error(start, "expected a number; there is no arithmetic in filters"));
        }
        if self.take("e") || self.take("E") {
            whole = false;
            if !self.take("-") {
                self.take("+");
            }
            if self.take_while(|c| c.is_ascii_digit()).is_empty() {
                return Err(self.error(start, "the exponent of this number has no digits"));
            }
        }
        if self.peek().is_some_and(|c| continues_name(c) || c == '.') {
            let problem = "a number runs into a word; dates and strings stand in single quotes: '2024-05-31'";
            return Err(self.error(start, problem));
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        if whole {
            let value = text.parse().map_err(|_| self.error(start, "this integer has too many digits"))?;
            return Ok(Token::Literal(Literal::Int(value)));
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Token::Literal(Literal::number(text, value))),
            _ => Err(self.error(start, "this number is too large")),
        }
    }

    /// Text between `quote` and the next single `quote`; two of them mean one.
    fn quoted(&mut self, quote: char) -> Result<String> {
        let start = self.at;
        self.at += quote.len_utf8();
        let mut text = String::new();
        loop {
            text.push_str(self.take_while(|c| c != quote));
            if self.peek().is_none() {
                return Err(self.error(start, format!("no closing {quote} for this one")));
            }
            self.at += quote.len_utf8();
            if self.peek() != Some(quote) {
                return Ok(text);
            }
            text.push(quote);
            self.at += quote.len_utf8();
        }
    }
}
