//! Tables of other systems, known by the files of their logs: their directories hold more than their rows.

use std::ffi::OsStr;
use std::path::Path;

use super::found::Found;
use super::logs::{LOG, METADATA, Ratified, is_metadata};
use super::root::Root;
use crate::error::Error;

/// The directory that writers of Iceberg put data files into.
const DATA: &str = "data";

/// A sign of a table around a directory.
pub(super) struct Sign {
    pub(super) kind: Table,
    /// The directory of the table's log.
    pub(super) log: &'static str,
    /// Returns true for a name in it that the systems give: nothing else says that there is a table.
    pub(super) is_name: fn(&str) -> bool,
}

pub(super) const SIGNS: [Sign; 2] = [
    Sign { kind: Table::Delta, log: LOG, is_name: |name| digits(name) == 20 || name == "_last_checkpoint" },
    Sign {
        kind: Table::Iceberg,
        log: METADATA,
        is_name: |name| is_metadata(name) && digits(name.strip_prefix('v').unwrap_or(name)) > 0,
    },
];

fn digits(name: &str) -> usize {
    name.bytes().take_while(u8::is_ascii_digit).count()
}

/// Returns true for the name of a directory that may be a part of a table.
fn is_part(name: &str) -> bool {
    name.contains('=') || [DATA, LOG, METADATA].contains(&name)
}

/// A table whose metadata say which files are its rows.
#[derive(Debug, Clone)]
pub(crate) enum FoundTable {
    /// Of Delta Lake: the directory that has its log, and the commits that its catalog keeps, if one does.
    Delta(Root, Option<Ratified>),
    /// Of Iceberg: its directory, and the file of metadata, if that was named.
    Iceberg(Root, Option<Found>),
}

impl FoundTable {
    /// What it is, for messages.
    #[cfg(feature = "cloud")]
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Iceberg(..) => "a table of Iceberg",
            Self::Delta(..) => "a table of Delta Lake",
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Delta(root, _) | Self::Iceberg(root, None) => root.url(),
            Self::Iceberg(_, Some(found)) => found.url(),
        }
    }
}

/// A kind of table whose directory also holds rows that were deleted or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Delta,
    Iceberg,
    Hudi,
}

impl Table {
    /// The kind whose log has the file `name`, a path relative to a directory.
    pub(super) fn of(name: &str) -> Option<Self> {
        // A directory of a partition has the second one.
        if name.split('/').any(|part| part == ".hoodie" || part == ".hoodie_partition_metadata") {
            return Some(Self::Hudi);
        }
        let mut parts = name.split('/').rev();
        let (file, parent) = (parts.next()?, parts.next()?);
        if parent == LOG {
            Some(Self::Delta)
        } else {
            (parent == METADATA && is_metadata(file)).then_some(Self::Iceberg)
        }
    }

    /// Returns true if `name`, relative to a directory, is part of that directory's log of Delta Lake.
    pub(super) fn is_log(name: &str) -> bool {
        name.strip_prefix(LOG).and_then(|rest| rest.strip_prefix('/')).is_some_and(|file| !file.contains('/'))
    }

    /// Returns true if `name`, relative to a directory, is that directory's metadata of Iceberg.
    pub(super) fn is_own_metadata(name: &str) -> bool {
        let file = name.strip_prefix(METADATA).and_then(|rest| rest.strip_prefix('/'));
        file.is_some_and(|file| !file.contains('/') && is_metadata(file))
    }

    /// The kind that the directory `path` of this machine is a table of, as its log tells. A look at that saves the walk over all files that
    /// the table ever had.
    pub(super) fn at(path: &Path) -> Option<Self> {
        Self::told_by(path, |_| true, is_metadata)
    }

    /// The table that the directory `path` of this machine is a part of, and its kind.
    pub(super) fn around(path: &Path) -> Option<(Self, &Path)> {
        let [commit, metadata] = SIGNS.map(|sign| sign.is_name);
        Self::above(path).find_map(|above| Some((Self::told_by(above, commit, metadata)?, above)))
    }

    /// The directories that may be a table of which the directory `path` is a part: those above it, up to the first that is named as no part of
    /// a table is.
    pub(super) fn above(path: &Path) -> impl Iterator<Item = &Path> {
        let is_part = |path: &&Path| path.file_name().and_then(OsStr::to_str).is_some_and(is_part);
        path.ancestors().take_while(is_part).filter_map(Path::parent)
    }

    fn told_by(path: &Path, commit: impl Fn(&str) -> bool, metadata: impl Fn(&str) -> bool) -> Option<Self> {
        let has = |directory: &str, is: &dyn Fn(&str) -> bool| {
            let mut entries = std::fs::read_dir(path.join(directory)).into_iter().flatten().flatten();
            let named = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(is);
            entries.any(|entry| named(&entry) && entry.file_type().is_ok_and(|kind| !kind.is_dir()))
        };
        // A table of Delta Lake may have metadata of Iceberg beside its log, for others.
        if has(LOG, &commit) { Some(Self::Delta) } else { has(METADATA, &metadata).then_some(Self::Iceberg) }
    }

    /// Name of its system, and where its files are told.
    fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::Delta => ("Delta Lake", "deltalake.DeltaTable(path).file_uris()"),
            Self::Iceberg => ("Iceberg", "the scan's plan_files() in PyIceberg"),
            Self::Hudi => ("Hudi", "the files of its latest snapshot"),
        }
    }

    /// Error for the directory at `url`, which is a part of such a table at `table`.
    pub(super) fn surrounds(self, url: &str, table: &str) -> Error {
        let (name, files) = self.told();
        Error::unsupported(
            format!(
                "{url}, which is inside the table of {name} at {table}: its files also hold rows that were deleted or replaced,"
            ),
            format!(
                "give {table} with a filter that selects this part, or give the list of files of the version that you want \
                 ({files}), or, if all files are meant, a pattern: **/*.parquet"
            ),
        )
    }

    /// Error for the directory at `url`, which has such a table in it.
    pub(super) fn refused(self, url: &str) -> Error {
        let (name, files) = self.told();
        let open =
            if self == Self::Hudi { "" } else { "give the table's own directory, which is read by what it says, or " };
        Error::unsupported(
            format!(
                "{url}, which has a table of {name} in it: its files also hold rows that were deleted or replaced,"
            ),
            format!(
                "{open}give the list of files of the version that you want ({files}), or, if all files are meant, a pattern: \
                 **/*.parquet"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_part_of_a_table_has_directories_above_it() {
        let above = |path| Table::above(Path::new(path)).map(|above| above.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(above("t/day=1"), ["t"]);
        assert_eq!(above("/a/t/data/day=1/hour=2"), ["/a/t/data/day=1", "/a/t/data", "/a/t"]);
        assert_eq!(above("day=1"), [""]);
        assert!(above("a=1/t").is_empty() && above("").is_empty());
    }

    #[test]
    fn a_log_tells_the_kind() {
        for (name, kind) in [
            ("_delta_log/00000000000000000000.json", Some(Table::Delta)),
            ("tables/a/_delta_log/_last_checkpoint", Some(Table::Delta)),
            ("metadata/00001-6a.metadata.json", Some(Table::Iceberg)),
            (".hoodie/hoodie.properties", Some(Table::Hudi)),
            (".hoodie/timeline/20260101.commit", Some(Table::Hudi)),
            (".hoodie_partition_metadata", Some(Table::Hudi)),
            ("day=1/.hoodie_partition_metadata", Some(Table::Hudi)),
            ("metadata/part-0.parquet", None),
            ("_delta_log", None),
            ("x_delta_log/a.parquet", None),
            ("a.metadata.json", None),
        ] {
            assert_eq!(Table::of(name), kind, "{name}");
        }
    }
}
