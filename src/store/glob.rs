//! Shell patterns over `/`-separated paths: `*`, `?`, `[a-z]`, `{a,b}` within a part, `**` over any number of parts. Listing goes down part by
//! part, so patterns are matched and cut by parts; `globset` compiles whole paths to one regular expression, of a size that the pattern decides.

use super::percent::leading_byte;
use crate::error::{Error, Result};

/// Returns true if `text` contains a character that has a meaning in patterns.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Splits a pattern into the directory that needs no matching and the rest, e.g. `/data/` and `*/x.parquet`.
pub(crate) fn split(pattern: &str) -> (&str, &str) {
    let first = pattern.find(['*', '?', '[', '{']).unwrap_or(pattern.len());
    let cut = pattern.get(..first).and_then(|fixed| fixed.rfind('/')).map_or(0, |slash| slash + 1);
    pattern.split_at(cut)
}

/// Maximum number of texts that the braces of a pattern stand for: `{a,b}{a,b}...` doubles with every brace. Braces within parts count by
/// part: three regions with the days of five years are 1,829.
const ALTERNATIVES: usize = 1 << 16;

/// A pattern, made ready.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// One list of parts per alternative of braces that have slashes in them; mostly one.
    alternatives: Vec<Vec<Part>>,
}

/// The alternatives of one part.
type Part = Vec<Vec<Letter>>;

/// A letter of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Letter {
    /// As it was typed: it may have a meaning.
    Typed(char),
    /// It was encoded, and stands for itself.
    Encoded(char),
}

impl Letter {
    fn char(self) -> char {
        match self {
            Self::Typed(letter) | Self::Encoded(letter) => letter,
        }
    }
}

impl Pattern {
    /// Of a path of this machine.
    ///
    /// # Errors
    /// [`Error::Config`] if its braces stand for more than 65,536 texts.
    pub(crate) fn new(pattern: &str) -> Result<Self> {
        Self::made(pattern, |text| Some(text.chars().map(Letter::Typed).collect()))
    }

    /// Of an address, whose characters may be percent-encoded, as in one without a pattern: an encoded one has no meaning.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for bytes that are no UTF-8.
    pub(crate) fn encoded(pattern: &str) -> Result<Self> {
        Self::made(&pattern.replace("%2F", "/").replace("%2f", "/"), letters)
    }

    fn made(pattern: &str, letters: impl Fn(&str) -> Option<Vec<Letter>>) -> Result<Self> {
        let too_many = || {
            let problem = format!(
                "the braces of pattern {pattern} stand for more than {ALTERNATIVES} texts; use * or a list of addresses"
            );
            Error::config("urls", problem)
        };
        let whole = if has_slash_in_braces(pattern) {
            expand(pattern, ALTERNATIVES).ok_or_else(too_many)?
        } else {
            vec![pattern.to_owned()]
        };
        let mut left = ALTERNATIVES;
        let mut part = |text: &str| -> Result<Part> {
            let texts = expand(text, left).ok_or_else(too_many)?;
            left = left.saturating_sub(texts.len().saturating_sub(1));
            let letters = |text: &String| {
                letters(text).ok_or_else(|| Error::config("urls", format!("pattern {pattern} is not UTF-8")))
            };
            texts.iter().map(letters).collect()
        };
        let mut parts = |text: &String| text.split('/').filter(|part| !part.is_empty()).map(&mut part).collect();
        Ok(Self { alternatives: whole.iter().map(&mut parts).collect::<Result<_>>()? })
    }

    /// Number of parts of `path` that the pattern names, if it names `path` or a directory above it.
    pub(crate) fn matches(&self, path: &str) -> Option<usize> {
        let parts: Vec<&str> = path.split('/').collect();
        (1..=parts.len()).rev().find(|&length| {
            parts
                .get(..length)
                .is_some_and(|parts| self.alternatives.iter().any(|pattern| path_matches(pattern, parts)))
        })
    }
}

/// The letters of a part of an address. A percent sign that begins no byte is one. None if the bytes are no UTF-8.
fn letters(text: &str) -> Option<Vec<Letter>> {
    let (mut letters, mut rest) = (Vec::new(), text);
    loop {
        let mut bytes = Vec::new();
        while let Some((byte, after)) = leading_byte(rest) {
            bytes.push(byte);
            rest = after;
        }
        letters.extend(String::from_utf8(bytes).ok()?.chars().map(Letter::Encoded));
        let mut typed = rest.chars();
        match typed.next() {
            Some(letter) => letters.push(Letter::Typed(letter)),
            None => return Some(letters),
        }
        rest = typed.as_str();
    }
}

/// Returns true if a choice of a brace may be more than one part.
fn has_slash_in_braces(pattern: &str) -> bool {
    let mut depth = 0_usize;
    pattern.chars().any(|letter| {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == '/' && depth > 0
    })
}

/// Writes out the braces: `a{b,c}` becomes `ab` and `ac`. `None` if these are more than `most`.
fn expand(pattern: &str, most: usize) -> Option<Vec<String>> {
    let (mut waiting, mut found) = (vec![pattern.to_owned()], Vec::new());
    while let Some(text) = waiting.pop() {
        let braces = text.rfind('{').and_then(|open| {
            let (before, rest) = text.split_at(open);
            let (inside, after) = rest.get(1..)?.split_once('}')?;
            Some((before, inside, after))
        });
        match braces {
            Some((before, inside, after)) => {
                if waiting.len() + found.len() + inside.split(',').count() > most {
                    return None;
                }
                waiting.extend(inside.split(',').map(|choice| format!("{before}{choice}{after}")));
            }
            None => found.push(text),
        }
    }
    Some(found)
}

/// Returns true if a file or directory of this name is no data unless it is named on purpose.
pub(crate) fn is_hidden(part: &str) -> bool {
    part.starts_with('.') || (part.starts_with('_') && !part.contains('='))
}

/// Wildcards do not name what is hidden: `*` means what a directory would give.
fn path_matches(pattern: &[Part], parts: &[&str]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return parts.is_empty() };
    // `**` is any number of parts.
    let (any, one): (Vec<_>, Vec<_>) = first.iter().partition(|choice| choice.as_slice() == [Letter::Typed('*'); 2]);
    let next = parts.split_first();
    let here = |(part, parts): (&&str, &[&str])| {
        let (hidden, letters): (bool, Vec<char>) = (is_hidden(part), part.chars().collect());
        let begins = |choice: &[Letter]| choice.first().copied().map(Letter::char) == letters.first().copied();
        let mut one = one.iter().filter(|choice| !hidden || begins(choice));
        one.any(|choice| part_matches(choice, &letters)) && path_matches(rest, parts)
    };
    let further = |(part, parts): (&&str, &[&str])| !is_hidden(part) && path_matches(pattern, parts);
    next.is_some_and(here) || (!any.is_empty() && (path_matches(rest, parts) || next.is_some_and(further)))
}

/// Linear in practice: on a mismatch only the last `*` is tried again.
fn part_matches(pattern: &[Letter], part: &[char]) -> bool {
    let (mut at, mut here, mut star) = (0, 0, None);
    while let Some(&letter) = part.get(here) {
        match pattern.get(at..).and_then(|rest| one(rest, letter)) {
            Some(Step::Star) => {
                star = Some((at + 1, here));
                at += 1;
            }
            Some(Step::Took(length)) => {
                at += length;
                here += 1;
            }
            None => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    at = after;
                    here = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|&letter| letter == Letter::Typed('*')))
}

enum Step {
    Star,
    /// The letter matched this many characters of the pattern.
    Took(usize),
}

fn one(pattern: &[Letter], letter: char) -> Option<Step> {
    match pattern.first()? {
        Letter::Typed('*') => Some(Step::Star),
        Letter::Typed('?') => Some(Step::Took(1)),
        Letter::Typed('[') => match pattern.iter().position(|&letter| letter == Letter::Typed(']')) {
            Some(end) if end > 1 => class(pattern.get(1..end)?, letter).then_some(Step::Took(end + 1)),
            _ => (letter == '[').then_some(Step::Took(1)),
        },
        same => (same.char() == letter).then_some(Step::Took(1)),
    }
}

fn class(class: &[Letter], letter: char) -> bool {
    let (negated, class) = match class {
        [Letter::Typed('!' | '^'), rest @ ..] => (true, rest),
        all => (false, all),
    };
    let mut rest = class;
    let mut found = false;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [Letter::Typed('-'), last, after @ ..] => {
                found |= (first.char()..=last.char()).contains(&letter);
                rest = after;
            }
            _ => {
                found |= first.char() == letter;
                rest = after;
            }
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_parts_directories_and_alternatives() {
        let yes = |pattern: &str, path: &str| Pattern::new(pattern).unwrap().matches(path).is_some();
        assert!(yes("*.parquet", "a.parquet"));
        assert!(!yes("*.parquet", "d/a.parquet"));
        assert!(yes("year=20*", "year=2020/x.parquet"), "a directory stands for what is in it");
        assert_eq!(Pattern::new("year=20*").unwrap().matches("year=2020/x/y"), Some(1));
        assert!(yes("**/*.parquet", "a.parquet") && yes("**/*.parquet", "b/c/a.parquet"));
        assert!(!yes("**/*", "_temporary/a") && !yes("*", ".a") && yes("_temp*/*", "_temporary/a") && yes("*", "_k=1"));
        assert!(yes("part-[0-3]?.{parquet,pq}", "part-12.pq"));
        assert!(!yes("part-[!0-3]?.pq", "part-12.pq"));
        assert!(yes("é*[", "été["), "an open bracket is itself");
        assert!(!yes("a*b*c", "a_b_d") && yes("a*b*c", "a_bb_c"));
        assert_eq!(split("/data/x/*/y"), ("/data/x/", "*/y"));
        assert_eq!(split("*.parquet"), ("", "*.parquet"));
    }

    #[test]
    fn letters_of_an_address_are_decoded_and_encoded_ones_have_no_meaning() {
        let yes = |pattern: &str, path: &str| Pattern::encoded(pattern).unwrap().matches(path).is_some();
        assert!(yes("a%20*.parquet", "a b.parquet") && !yes("a%20*.parquet", "a%20b.parquet"));
        assert!(yes("a%2520*", "a%20b") && yes("%C3%A4?%c3%a9", "äxé") && yes("a b*", "a bc"));
        assert!(yes("%2A*", "*x") && !yes("%2A*", "ax") && yes("%2A%2A/x", "**/x") && !yes("%2A%2A/x", "a/x"));
        assert!(yes("[a%5D]%5B*", "][x") && yes("[a%2Dc]*", "-x") && !yes("[a%2Dc]*", "bx") && yes("[%21a]*", "!"));
        assert!(yes("{a%2Cb,c}*", "a,bx") && !yes("{a%2Cb,c}*", "bx") && yes("%7Ba,b%7D*", "{a,b}x"));
        assert!(yes("d%2Fa*", "d/ax") && yes("{d%2fa,b}*", "d/a"), "an encoded slash is one, as in any address");
        assert!(yes("%5Ftmp*/x", "_tmp/x") && yes("100%*", "100%x") && yes("%zz*", "%zz"));
        assert!(matches!(Pattern::encoded("%ff*"), Err(Error::Config { option: "urls", .. })));
        assert!(Pattern::new("a%20*").unwrap().matches("a b").is_none(), "a path has nothing encoded");
    }

    #[test]
    fn braces_stand_for_all_of_their_choices_or_are_refused() {
        let yes = |pattern: &str, path: &str| Pattern::new(pattern).unwrap().matches(path).is_some();
        // A pattern of a job over five years in three regions.
        let days: Vec<String> = (0..1827).map(|day| format!("day-{day}")).collect();
        let all = format!("{{us,eu,ap}}/{{{}}}.parquet", days.join(","));
        for region in ["us", "eu", "ap"] {
            assert!(days.iter().step_by(91).all(|day| yes(&all, &format!("{region}/{day}.parquet"))));
        }
        assert!(!yes(&all, "us/day-1827.parquet"));
        let digits = format!("part-{}", "{0,1,2,3,4,5,6,7,8,9}".repeat(4));
        assert!(yes(&digits, "part-0000") && yes(&digits, "part-9999") && !yes(&digits, "part-999a"));
        assert!(yes("{a/b,c}/{d,e{f,g}}", "a/b/eg") && yes("{a/{x,y},c}/d", "a/y/d") && yes("{a/{x,y},c}/d", "c/d"));
        assert!(
            !yes("{a/b,c}/d", "a/d")
                && yes("{**,_x}/d", "_x/d")
                && yes("{**,_x}/d", "a/b/d")
                && yes("{_k,k}*", "_kx")
                && !yes("{*,k}", "_kx")
        );
        for pattern in ["{a,b}".repeat(40), "{a,b}".repeat(17), "{a/b,c}".repeat(17), "{a,b/}{a,b}".repeat(30)] {
            assert!(matches!(Pattern::new(&pattern), Err(Error::Config { option: "urls", .. })), "{pattern}");
        }
    }
}
