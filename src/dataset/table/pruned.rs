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
                Some(rows) if !keeps(&file, rows) => pruned.leave_out(rows),
                _ => {
                    pruned.before.push(pruned.rows);
                    left.push(file);
                }
            }
        }
        (left, pruned)
    }

    /// The counts of pruned files, given by name and rows, before each of the files that are `left`. Both are sorted.
    ///
    /// # Errors
    /// The name of a file that is there twice.
    pub(in crate::dataset) fn between<'a>(
        left: impl Iterator<Item = &'a str>,
        pruned: &'a [(Box<str>, u64)],
    ) -> Result<Self, &'a str> {
        let (mut counted, mut last) = (Self::default(), None);
        let mut pruned = pruned.iter().peekable();
        for name in left {
            while let Some((gone, rows)) = pruned.next_if(|(gone, _)| **gone <= *name) {
                follows(&mut last, gone)?;
                counted.leave_out(*rows);
            }
            follows(&mut last, name)?;
            counted.before.push(counted.rows);
        }
        for (gone, rows) in pruned {
            follows(&mut last, gone)?;
            counted.leave_out(*rows);
        }
        Ok(counted)
    }

    fn leave_out(&mut self, rows: u64) {
        self.files += 1;
        self.rows = self.rows.saturating_add(rows);
    }
}

/// Makes `name` the `last` one.
///
/// # Errors
/// The name, if it is that already.
fn follows<'a>(last: &mut Option<&'a str>, name: &'a str) -> Result<(), &'a str> {
    if last.replace(name) == Some(name) { Err(name) } else { Ok(()) }
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

    #[test]
    fn rows_of_pruned_files_are_counted_between_the_names_of_the_others() {
        let pruned =
            |names: &[(&str, u64)]| names.iter().map(|(name, rows)| (Box::from(*name), *rows)).collect::<Vec<_>>();
        let gone = pruned(&[("a", 3), ("c", 7), ("e", 1)]);
        let found = Pruned::between(["b", "d", "d2"].into_iter(), &gone).unwrap();
        assert_eq!(found, Pruned { before: vec![3, 10, 10], files: 3, rows: 11 });
        assert_eq!(Pruned::between(["b", "c"].into_iter(), &gone), Err("c"), "pruned and not");
        assert_eq!(Pruned::between(["b", "b"].into_iter(), &gone), Err("b"));
        assert_eq!(Pruned::between([].into_iter(), &pruned(&[("a", 1), ("a", 1)])), Err("a"));
    }
}
