//! What limits those who take batches, as a sentence with advice: the ranks of a server, or the consumer of one loader.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::cause::{CAUSES, Cause};
use crate::figures::plain;

/// The finding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bottleneck {
    /// Name of the cause.
    pub cause: String,
    /// Share of their time that they wait for data, in percent.
    pub waited: f64,
    /// The finding, as a sentence.
    pub sentence: String,
    /// The remedy.
    pub advice: String,
}

/// Those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The ranks of a server.
    #[cfg(feature = "flight")]
    Ranks,
    /// The consumer of a loader.
    Consumer,
}

impl Bottleneck {
    /// What limits `who`, of the time that went to each cause; `None` if no time has passed.
    pub(crate) fn of(spent: &[f64; CAUSES], who: Who) -> Option<Self> {
        let (cause, waited) = Cause::limiting(spent)?;
        let waited = waited * 100.0;
        let (wait, their) = match who {
            #[cfg(feature = "flight")]
            Who::Ranks => ("Ranks wait", "their"),
            Who::Consumer => ("The consumer waits", "its"),
        };
        let sentence = match cause {
            Cause::Consumer => {
                format!("{wait} for data {waited:.1} % of {their} time: training itself is the limit.")
            }
            _ => {
                let share = spent[cause as usize] / spent.iter().sum::<f64>() * 100.0;
                let most = cause.phrase();
                format!("{wait} for data {waited:.1} % of {their} time, most of it for {most} ({share:.1} %).")
            }
        };
        let (cause, advice) = (cause.name().to_owned(), cause.advice().to_owned());
        Some(Self { cause, waited: (waited * 10.0).round() / 10.0, sentence, advice })
    }
}

impl fmt::Display for Bottleneck {
    /// Two lines, without control characters: it may come from a server.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}.", plain(&self.sentence), plain(&self.advice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_sentence_with_advice() {
        let mut spent = [0.0; CAUSES];
        assert_eq!(Bottleneck::of(&spent, Who::Consumer), None);
        (spent[Cause::Store as usize], spent[Cause::Decode as usize]) = (5.0, 1.0);
        spent[Cause::Consumer as usize] = 4.0;
        let found = Bottleneck::of(&spent, Who::Consumer).unwrap();
        assert_eq!((found.cause.as_str(), found.waited), ("store", 60.0));
        let text = "The consumer waits for data 60.0 % of its time, most of it for the store (50.0 %).";
        assert_eq!(found.to_string(), format!("{text}\n{}.\n", Cause::Store.advice()));
        spent[Cause::Consumer as usize] = 400.0;
        let found = Bottleneck::of(&spent, Who::Consumer).unwrap();
        assert!(found.cause == "consumer" && found.sentence.ends_with("training itself is the limit."), "{found}");
        let hostile = Bottleneck { sentence: "\u{1b}[31m".to_owned(), ..Bottleneck::default() };
        assert!(!hostile.to_string().contains('\u{1b}'));
    }
}
