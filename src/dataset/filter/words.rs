//! Names and keywords among the words of a filter.

/// A word that cannot be a bare column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Keyword {
    And,
    Or,
    Not,
    In,
    Between,
    Overlaps,
    Is,
    Null,
    True,
    False,
}

const KEYWORDS: [(&str, Keyword); 10] = [
    ("and", Keyword::And),
    ("or", Keyword::Or),
    ("not", Keyword::Not),
    ("in", Keyword::In),
    ("between", Keyword::Between),
    ("overlaps", Keyword::Overlaps),
    ("is", Keyword::Is),
    ("null", Keyword::Null),
    ("true", Keyword::True),
    ("false", Keyword::False),
];

/// Returns true if `word` can stand for a column without quotes, keywords aside.
pub(super) fn is_bare(word: &str) -> bool {
    word.chars().next().is_some_and(starts_name) && word.chars().all(continues_name)
}

/// Returns true if `word` has another meaning without quotes.
pub(super) fn is_keyword(word: &str) -> bool {
    keyword(word).is_some()
}

pub(super) fn keyword(word: &str) -> Option<Keyword> {
    KEYWORDS.iter().find(|(text, _)| text.eq_ignore_ascii_case(word)).map(|(_, keyword)| *keyword)
}

pub(super) fn starts_name(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

pub(super) fn continues_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
