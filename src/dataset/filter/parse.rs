//! The text form of a filter: a lexer and a recursive descent over `or`, `and`, `not`, comparison.
//!
//! Every error names the character, counted from 1, and says what would be right there. Nesting and size are limited, so
//! that no text can exhaust the stack.

use super::{Literal, MAX_DEPTH, MAX_TERMS, Node, OPTION, Op};
use crate::error::{Error, Result};

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A dotted name, without its quotes.
    Name(String),
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

#[derive(Debug, Clone, Copy, PartialEq)]
enum Keyword {
    And,
    Or,
    Not,
    In,
    Between,
    Is,
    Null,
    True,
    False,
}

const KEYWORDS: [(&str, Keyword); 9] = [
    ("and", Keyword::And),
    ("or", Keyword::Or),
    ("not", Keyword::Not),
    ("in", Keyword::In),
    ("between", Keyword::Between),
    ("is", Keyword::Is),
    ("null", Keyword::Null),
    ("true", Keyword::True),
    ("false", Keyword::False),
];

/// Whether `word` can stand for a column without quotes, keywords aside.
pub(super) fn is_bare(word: &str) -> bool {
    word.chars().next().is_some_and(starts_name) && word.chars().all(continues_name)
}

/// Whether `word` means something else when it stands without quotes.
pub(super) fn is_keyword(word: &str) -> bool {
    keyword(word).is_some()
}

fn keyword(word: &str) -> Option<Keyword> {
    KEYWORDS.iter().find(|(text, _)| text.eq_ignore_ascii_case(word)).map(|(_, keyword)| *keyword)
}

fn starts_name(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn continues_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Parses a whole filter.
pub(super) fn parse(text: &str) -> Result<Node> {
    let mut parser = Parser { lexer: Lexer { text, at: 0 }, token: Token::End, start: 0, depth: 0, terms: 0 };
    parser.advance()?;
    if parser.token == Token::End {
        return Err(Error::config(OPTION, "is empty; write for instance: label >= 3"));
    }
    let node = parser.any()?;
    match parser.token {
        Token::End => Ok(node),
        Token::Close => Err(parser.unexpected("a ')' without its '('")),
        _ => Err(parser.unexpected("expected 'and', 'or' or the end of the filter")),
    }
}

struct Lexer<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
}

impl Lexer<'_> {
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

    fn error(&self, at: usize, problem: impl AsRef<str>) -> Error {
        let character = self.text.get(..at).map_or(0, |before| before.chars().count()) + 1;
        Error::config(OPTION, format!("at character {character}: {}", problem.as_ref()))
    }

    fn next(&mut self) -> Result<Token> {
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

    /// A column: segments, bare or quoted, joined by dots. A single bare word may be a keyword instead.
    fn name(&mut self) -> Result<Token> {
        let mut name = String::new();
        loop {
            let start = self.at;
            match self.peek() {
                Some('"') => {
                    let segment = self.quoted('"')?;
                    if segment.is_empty() {
                        return Err(self.error(start, "a column name is empty; strings take single quotes: ''"));
                    }
                    name.push_str(&segment);
                }
                Some(c) if starts_name(c) => {
                    let word = self.take_while(continues_name).to_owned();
                    match keyword(&word) {
                        Some(keyword) if name.is_empty() && self.peek() != Some('.') => {
                            return Ok(Token::Keyword(keyword));
                        }
                        Some(_) => {
                            let problem =
                                format!("'{word}' is a keyword; a column of that name stands in double quotes");
                            return Err(self.error(start, problem));
                        }
                        None => name.push_str(&word),
                    }
                }
                _ => return Err(self.error(start, "expected the rest of a column name after '.'")),
            }
            if !self.take(".") {
                return Ok(Token::Name(name));
            }
            name.push('.');
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
            Ok(value) if value.is_finite() => Ok(Token::Literal(Literal::Float(value))),
            _ => Err(self.error(start, "this number is too large")),
        }
    }

    /// What stands between `quote` and the next single `quote`; two of them mean one.
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

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token,
    /// Byte offset where `token` starts.
    start: usize,
    depth: usize,
    terms: usize,
}

impl Parser<'_> {
    /// Moves to the next token and returns the current one.
    fn advance(&mut self) -> Result<Token> {
        self.lexer.take_while(char::is_whitespace);
        self.start = self.lexer.at;
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn unexpected(&self, problem: &str) -> Error {
        let problem = match &self.token {
            Token::End => format!("{problem}, but the filter ends here"),
            _ => problem.to_owned(),
        };
        self.lexer.error(self.start, problem)
    }

    fn skip_keyword(&mut self, keyword: Keyword) -> Result<bool> {
        let found = self.token == Token::Keyword(keyword);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn count(&mut self) -> Result<()> {
        self.terms += 1;
        if self.terms > MAX_TERMS {
            return Err(self.lexer.error(self.start, format!("more than {MAX_TERMS} terms in one filter")));
        }
        Ok(())
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.lexer.error(self.start, format!("nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    fn any(&mut self) -> Result<Node> {
        let mut nodes = vec![self.all()?];
        while matches!(self.token, Token::Or | Token::Keyword(Keyword::Or)) {
            self.advance()?;
            nodes.push(self.all()?);
        }
        Ok(Node::any(nodes))
    }

    fn all(&mut self) -> Result<Node> {
        let mut nodes = vec![self.term()?];
        while matches!(self.token, Token::And | Token::Keyword(Keyword::And)) {
            self.advance()?;
            nodes.push(self.term()?);
        }
        Ok(Node::all(nodes))
    }

    fn term(&mut self) -> Result<Node> {
        self.count()?;
        match self.token {
            Token::Not | Token::Keyword(Keyword::Not) => {
                self.deeper()?;
                self.advance()?;
                let node = self.term()?;
                self.depth -= 1;
                Ok(Node::Not(Box::new(node)))
            }
            Token::Open => {
                let open = self.start;
                self.deeper()?;
                self.advance()?;
                let node = self.any()?;
                if self.token != Token::Close {
                    if self.token == Token::End {
                        return Err(self.lexer.error(open, "no closing ')' for this '('"));
                    }
                    return Err(self.unexpected("expected 'and', 'or' or ')'"));
                }
                self.advance()?;
                self.depth -= 1;
                Ok(node)
            }
            _ => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Result<Node> {
        if matches!(self.token, Token::Literal(_) | Token::Keyword(Keyword::True | Keyword::False | Keyword::Null)) {
            return self.reversed();
        }
        let Token::Name(_) = self.token else {
            return Err(self.unexpected("expected a column name, 'not' or '('"));
        };
        let Token::Name(column) = self.advance()? else { return Err(self.unexpected("expected a column name")) };
        if let Token::Op(op) = self.token {
            self.advance()?;
            return Ok(Node::Compare { column, op, value: self.literal()? });
        }
        if self.skip_keyword(Keyword::Is)? {
            let negated = self.skip_keyword(Keyword::Not)?;
            if !self.skip_keyword(Keyword::Null)? {
                return Err(self.unexpected("expected 'null' after 'is'"));
            }
            return Ok(Node::IsNull { column, negated });
        }
        let negated = self.skip_keyword(Keyword::Not)?;
        if self.skip_keyword(Keyword::In)? {
            return Ok(Node::In { column, values: self.list()?, negated });
        }
        if self.skip_keyword(Keyword::Between)? {
            let low = self.literal()?;
            if !matches!(self.token, Token::And | Token::Keyword(Keyword::And)) {
                return Err(self.unexpected("expected 'and' between the two bounds of 'between'"));
            }
            self.advance()?;
            let high = self.literal()?;
            return Ok(Node::Between { column, low, high, negated });
        }
        if negated {
            return Err(self.unexpected("expected 'in' or 'between' after 'not'"));
        }
        match self.token {
            // A column alone is a condition of its own.
            Token::End | Token::Close | Token::And | Token::Or | Token::Keyword(Keyword::And | Keyword::Or) => {
                Ok(Node::Compare { column, op: Op::Eq, value: Literal::Bool(true) })
            }
            _ => Err(self.unexpected("expected a comparison, 'in', 'between' or 'is' after the column")),
        }
    }

    /// `3 < x`.
    fn reversed(&mut self) -> Result<Node> {
        let value = self.literal()?;
        let Token::Op(op) = self.token else { return Err(self.unexpected("expected a comparison after the literal")) };
        self.advance()?;
        if !matches!(self.token, Token::Name(_)) {
            return Err(self.unexpected("expected a column name: a filter compares columns with literals"));
        }
        match self.advance()? {
            Token::Name(column) => Ok(Node::Compare { column, op: op.flipped(), value }),
            _ => Err(self.unexpected("expected a column name")),
        }
    }

    fn list(&mut self) -> Result<Vec<Literal>> {
        if self.token != Token::Open {
            return Err(self.unexpected("expected '(' after 'in'"));
        }
        self.advance()?;
        if self.token == Token::Close {
            return Err(self.unexpected("the list of 'in' is empty, so nothing could match"));
        }
        let mut values = Vec::new();
        loop {
            self.count()?;
            values.push(self.literal()?);
            match self.token {
                Token::Comma => self.advance()?,
                Token::Close => break,
                _ => return Err(self.unexpected("expected ',' or ')' in the list of 'in'")),
            };
            if self.token == Token::Close {
                break;
            }
        }
        self.advance()?;
        Ok(values)
    }

    fn literal(&mut self) -> Result<Literal> {
        let problem = match &self.token {
            Token::Literal(_) | Token::Keyword(Keyword::True | Keyword::False) => None,
            Token::Keyword(Keyword::Null) => {
                Some("nothing equals null; write: x is null, or: x is not null".to_owned())
            }
            Token::Name(name) => Some(format!(
                "expected a literal, not a column; strings take single quotes: '{}'",
                name.replace('\'', "''")
            )),
            _ => Some("expected a literal: a number, a 'string', true or false".to_owned()),
        };
        if let Some(problem) = problem {
            return Err(self.unexpected(&problem));
        }
        match self.advance()? {
            Token::Literal(value) => Ok(value),
            Token::Keyword(keyword) => Ok(Literal::Bool(keyword == Keyword::True)),
            _ => Err(self.unexpected("expected a literal")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_character_and_the_way_out() {
        for (text, character, part) in [
            ("a = ", 5, "ends here"),
            ("a = null", 5, "is null"),
            ("a = b", 5, "single quotes: 'b'"),
            ("größe == \"x\"", 10, "single quotes"),
            ("(a = 1", 1, "no closing ')'"),
            ("a = 1)", 6, "without its '('"),
            ("a = 1 b = 2", 7, "'and'"),
            ("a in ()", 7, "empty"),
            ("a in 1", 6, "'('"),
            ("a in (1 2)", 9, "','"),
            ("a between 1 or 2", 13, "'and'"),
            ("a is 3", 6, "'null'"),
            ("a not 3", 7, "'in' or 'between'"),
            ("a = 2024-05-31", 9, "'and'"),
            ("a = 3x", 5, "single quotes"),
            ("a = 1.2.3", 5, "runs into"),
            ("a = 1e", 5, "exponent"),
            ("a = 1e999", 5, "too large"),
            ("a = 1234567890123456789012345678901234567890", 5, "too many digits"),
            ("a = 'x", 5, "no closing '"),
            ("a..b = 1", 3, "after '.'"),
            ("a.in = 1", 3, "double quotes"),
            ("`a` = 1", 1, "double quotes"),
            ("\"\" = 1", 1, "empty"),
            ("1 = 2", 5, "columns with literals"),
            ("a = - 1", 5, "number"),
            ("and", 1, "column name"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("option filter: at character {character}: ")), "{text}: {error}");
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse(" \n ").unwrap_err().to_string().contains("is empty"));
    }

    #[test]
    fn depth_is_limited_and_the_limit_itself_works() {
        let nested = |n: usize| format!("{}a = 1{}", "(".repeat(n), ")".repeat(n));
        assert!(parse(&nested(MAX_DEPTH)).is_ok());
        for text in [nested(MAX_DEPTH + 1), nested(1_000_000), "not ".repeat(1_000_000), "!".repeat(1_000_000)] {
            assert!(parse(&text).unwrap_err().to_string().contains("nested deeper than 100"));
        }
        assert!(parse(&format!("a in (1{})", ", 1".repeat(MAX_TERMS))).unwrap_err().to_string().contains("terms"));
        assert!(parse(&format!("{}a = 1", "not ".repeat(MAX_DEPTH))).is_ok());
    }
}
