//! A gang of ranks: they start together, meet at barriers, and restart together.
