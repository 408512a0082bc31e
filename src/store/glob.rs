//! Shell patterns over `/`-separated paths: `*`, `?`, `[a-z]`, `{a,b}` within a part, `**` over any number of parts. Listing goes down part by
//! part, so patterns are matched and cut by parts; `globset` compiles whole paths to one regular expression, of a size that the pattern decides.

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

/// Alternatives beyond this make a pattern match nothing; `{a,b}{a,b}...` doubles with every brace.
const ALTERNATIVES: usize = 4096;

/// A pattern, made ready.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// One list of parts per alternative of the braces.
    alternatives: Vec<Vec<String>>,
}

impl Pattern {
    pub(crate) fn new(pattern: &str) -> Self {
        let mut alternatives = Vec::new();
        expand(pattern, &mut alternatives);
        let parts = |text: &String| text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Self { alternatives: alternatives.iter().map(parts).collect() }
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

/// Writes out the braces: `a{b,c}` becomes `ab` and `ac`.
fn expand(pattern: &str, found: &mut Vec<String>) {
    let mut waiting = vec![pattern.to_owned()];
    while let Some(text) = waiting.pop() {
        let braces = text.rfind('{').and_then(|open| {
            let (before, rest) = text.split_at(open);
            let (inside, after) = rest.get(1..)?.split_once('}')?;
            Some(inside.split(',').map(|choice| format!("{before}{choice}{after}")).collect::<Vec<_>>())
        });
        match braces {
            Some(choices) if waiting.len() + found.len() + choices.len() <= ALTERNATIVES => waiting.extend(choices),
            Some(_) => return,
            None => found.push(text),
        }
    }
}

/// Returns true if a file or directory of this name is no data unless it is named on purpose.
pub(super) fn is_hidden(part: &str) -> bool {
    part.starts_with('.') || (part.starts_with('_') && !part.contains('='))
}

/// Wildcards do not name what is hidden: `*` means what a directory would give.
fn path_matches(pattern: &[String], parts: &[&str]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "**" => {
            let further = |(part, parts): (&&str, &[&str])| !is_hidden(part) && path_matches(pattern, parts);
            path_matches(rest, parts) || parts.split_first().is_some_and(further)
        }
        (Some((first, rest)), Some((part, parts))) => {
            let meant = !is_hidden(part) || first.chars().next() == part.chars().next();
            let pattern: Vec<char> = first.chars().collect();
            let part: Vec<char> = part.chars().collect();
            meant && part_matches(&pattern, &part) && path_matches(rest, parts)
        }
        _ => false,
    }
}

/// Linear in practice: on a mismatch only the last `*` is tried again.
fn part_matches(pattern: &[char], part: &[char]) -> bool {
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
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|&letter| letter == '*'))
}

enum Step {
    Star,
    /// The letter matched this many characters of the pattern.
    Took(usize),
}

fn one(pattern: &[char], letter: char) -> Option<Step> {
    match pattern.first()? {
        '*' => Some(Step::Star),
        '?' => Some(Step::Took(1)),
        '[' => match pattern.iter().position(|&letter| letter == ']').filter(|&end| end > 1) {
            Some(end) => class(pattern.get(1..end)?, letter).then_some(Step::Took(end + 1)),
            None => (letter == '[').then_some(Step::Took(1)),
        },
        &same => (same == letter).then_some(Step::Took(1)),
    }
}

fn class(class: &[char], letter: char) -> bool {
    let (negated, class) = match class {
        ['!' | '^', rest @ ..] => (true, rest),
        all => (false, all),
    };
    let mut rest = class;
    let mut found = false;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            ['-', last, after @ ..] => {
                found |= (first..=*last).contains(&letter);
                rest = after;
            }
            _ => {
                found |= first == letter;
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
        let yes = |pattern: &str, path: &str| Pattern::new(pattern).matches(path).is_some();
        assert!(yes("*.parquet", "a.parquet"));
        assert!(!yes("*.parquet", "d/a.parquet"));
        assert!(yes("year=20*", "year=2020/x.parquet"), "a directory stands for what is in it");
        assert_eq!(Pattern::new("year=20*").matches("year=2020/x/y"), Some(1));
        assert!(yes("**/*.parquet", "a.parquet") && yes("**/*.parquet", "b/c/a.parquet"));
        assert!(!yes("**/*", "_temporary/a") && !yes("*", ".a") && yes("_temp*/*", "_temporary/a") && yes("*", "_k=1"));
        assert!(yes("part-[0-3]?.{parquet,pq}", "part-12.pq"));
        assert!(!yes("part-[!0-3]?.pq", "part-12.pq"));
        assert!(yes("é*[", "été["), "an open bracket is itself");
        assert!(!yes("a*b*c", "a_b_d") && yes("a*b*c", "a_bb_c"));
        assert_eq!(split("/data/x/*/y"), ("/data/x/", "*/y"));
        assert_eq!(split("*.parquet"), ("", "*.parquet"));
        assert!(!yes(&"{a,b}".repeat(40), "a"), "bounded");
    }
}
