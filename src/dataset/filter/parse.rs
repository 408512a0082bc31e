//! The text form of a filter: a recursive descent over `or`, `and`, `not`, comparison.
//!
//! Every error names the character, counted from 1, and says what would be right there. Nesting and size are limited, so
//! that no text can exhaust the stack.

use super::lex::{Lexer, Token};
use super::node::{Literal, MAX_DEPTH, MAX_TERMS, Name, Node, OPTION, Op};
use super::words::Keyword;
use crate::error::{Error, Result};

/// Parses a whole filter.
pub(super) fn parse(text: &str) -> Result<Node> {
    let mut parser = Parser { lexer: Lexer::new(text), token: Token::End, start: 0, depth: 0, terms: 0 };
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
        self.start = self.lexer.skip_space();
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
        if self.token == Token::Open && matches!(&column, Name::Dotted(word) if word.eq_ignore_ascii_case("split")) {
            return self.split();
        }
        if self.skip_keyword(Keyword::Overlaps)? {
            return Ok(Node::Overlaps { column, values: self.list()? });
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

    /// `(column, low, high)` after `split`.
    fn split(&mut self) -> Result<Node> {
        self.advance()?;
        let Token::Name(column) = self.advance()? else {
            return Err(self.unexpected("expected split(column, low, high)"));
        };
        let mut bounds = [0.0; 2];
        for bound in &mut bounds {
            if self.advance()? != Token::Comma {
                return Err(self.unexpected("expected split(column, low, high)"));
            }
            *bound = match self.literal()? {
                Literal::Float(bound) | Literal::Exact(_, bound) => bound,
                Literal::Int(bound) => bound as f64,
                _ => return Err(self.unexpected("the bounds of 'split' are numbers from 0 to 1")),
            };
        }
        let [low, high] = bounds;
        if !(0.0 <= low && low <= high && high <= 1.0) {
            return Err(self.unexpected("the bounds of 'split' are numbers from 0 to 1, the lower one first"));
        }
        if self.advance()? != Token::Close {
            return Err(self.unexpected("expected ')' after the bounds of 'split'"));
        }
        Ok(Node::Split { column, low, high })
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
                name.dotted().replace('\'', "''")
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
            ("a = \"\"", 5, "strings take single quotes: ''"),
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
