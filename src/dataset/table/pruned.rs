//! Files of a table that are not opened, since a filter selects no row of them: what others must know of them.

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::dataset) struct Pruned {
    /// For each file that is left, the rows of those before it that are not: rows keep their numbers.
    pub(in crate::dataset) before: Vec<u64>,
    pub(in crate::dataset) files: u64,
    pub(in crate::dataset) rows: u64,
}

impl Pruned {
    /// The files of `all` that `keeps`, and what is to be known of the others. Those of which `rows` does not know how many rows they have are
    /// kept: the numbers of rows behind them would be lost.
    pub(in crate::dataset) fn out_of<T>(
        all: Vec<T>,
        rows: impl Fn(&T) -> Option<u64>,
        mut keeps: impl FnMut(&T, u64) -> bool,
    ) -> (Vec<T>, Self) {
        let (mut left, mut pruned) = (Vec::new(), Self::default());
        for file in all {
            match rows(&file) {
                Some(rows) if !keeps(&file, rows) => {
                    pruned.files += 1;
                    pruned.rows = pruned.rows.saturating_add(rows);
                }
                _ => {
                    pruned.before.push(pruned.rows);
                    left.push(file);
                }
            }
        }
        (left, pruned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_files_left_out_are_counted() {
        let files = vec![Some(3), Some(5), None, Some(7), Some(9)];
        let (left, pruned) = Pruned::out_of(files, |rows| *rows, |_, rows| rows == 5 || rows == 9);
        assert_eq!(left, [Some(5), None, Some(9)]);
        assert_eq!(pruned, Pruned { before: vec![3, 3, 10], files: 2, rows: 10 });
    }
}
