//! Defects that tests plant in a gang, to show that the checkers catch them.

/// One defect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Planted {
    #[default]
    Nothing,
    /// Every caller is a member.
    NoFences,
    /// A generation that ends does not count up.
    SameNumber,
    /// Callers of an older generation are taken for members of the running one.
    OlderCallers,
    /// Waiting calls are not woken when their generation ends.
    NobodyWoken,
    /// A late repetition of the join of an ended process is taken for a new process.
    EndsForgotten,
}
