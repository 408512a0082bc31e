//! Files of a table that a filter prunes: not opened, but their rows are counted, since later rows keep their numbers.

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::dataset) struct Pruned {
    /// Rows of the pruned files before each file that is kept.
    pub(in crate::dataset) before: Vec<u64>,
    pub(in crate::dataset) files: u64,
    pub(in crate::dataset) rows: u64,
}

impl Pruned {
    /// The files of `all` for which `keeps` is true, and the counts of the others. A file whose `rows` are unknown is kept, since rows behind
    /// it could not be numbered.
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
