//! The `bowstring` command line.

fn main() {}
