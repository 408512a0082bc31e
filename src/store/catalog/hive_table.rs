//! A table as a Hive metastore has it, or Glue, which has the same parts: what it says of kind and place.

use std::collections::{BTreeMap, BTreeSet};

use super::table::Content;
use crate::error::{Error, Result};
use crate::store::display::display;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HiveTable {
    pub(super) table_type: String,
    pub(super) location: String,
    pub(super) input_format: String,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) serde_parameters: BTreeMap<String, String>,
    /// Names of its partition columns, in order.
    pub(super) partition_keys: Vec<String>,
}

/// A partition of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) location: String,
    /// Empty if the catalog does not say it.
    pub(super) input_format: String,
}

/// What to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// What lies at an address.
    At(Content, String),
    /// Parquet files below an address, in the directories of the partitions that the catalog has.
    Partitions(String),
}

/// Parquet's input format.
const PARQUET: &str = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat";

/// Most partitions of a table.
pub(super) const MOST_PARTITIONS: usize = 1_000_000;

/// What to do about a table that is not read.
const HINT: &str = "read it with Spark and hand the rows over (docs/spark.md)";

impl HiveTable {
    fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// How the table `name` is read.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what is not read.
    pub(super) fn way(&self, name: &str) -> Result<Way> {
        let refused = |what: String, hint: &str| Err(Error::unsupported(format!("{name}, {what},"), hint));
        let is = |text: &str, what: &str| text.eq_ignore_ascii_case(what);
        if self.table_type.to_ascii_uppercase().ends_with("_VIEW") {
            return refused("a view".to_owned(), HINT);
        }
        let kind = self.parameter("table_type");
        if is(kind, "ICEBERG") {
            return match self.parameter("metadata_location") {
                "" => refused(
                    "a table of Iceberg without metadata_location".to_owned(),
                    "give the address of its metadata",
                ),
                at => Ok(Way::At(Content::Iceberg, at.to_owned())),
            };
        }
        // Spark keeps the place of tables of its data sources in the options of the reader.
        let provider = self.parameter("spark.sql.sources.provider");
        let path = self.serde_parameters.get("path").filter(|path| !provider.is_empty() && !path.is_empty());
        let location = path.unwrap_or(&self.location).trim_end_matches('/').to_owned();
        if location.is_empty() {
            return refused("which has no location".to_owned(), HINT);
        }
        let class = self.parameter("classification");
        if is(provider, "delta") || is(kind, "DELTA") || is(class, "delta") {
            if self.input_format.ends_with("SymlinkTextInputFormat") {
                let hint = "give the address of the table of Delta Lake itself";
                return refused(format!("a list of files at {}", display(&location)), hint);
            }
            return Ok(Way::At(Content::Delta(None), location));
        }
        if is(provider, "hudi") || self.input_format.contains("hudi") {
            return refused("a table of Hudi".to_owned(), HINT);
        }
        if is(self.parameter("transactional"), "true") {
            return refused("a transactional table of Hive".to_owned(), HINT);
        }
        if !is(provider, "parquet") && self.input_format != PARQUET {
            let format = if provider.is_empty() { &self.input_format } else { provider };
            let format: String = format.chars().filter(|letter| !letter.is_control()).take(100).collect();
            return refused(format!("a table of format {format:?}"), HINT);
        }
        // Spark lists the directories of a table of its data sources unless this says that the catalog has its partitions.
        let is_listed = !provider.is_empty() && !is(self.parameter("spark.sql.partitionProvider"), "catalog");
        if self.partition_keys.is_empty() || is_listed {
            return Ok(Way::At(Content::Parquet(None), location));
        }
        if is(self.parameter("projection.enabled"), "true") {
            let hint = "give the address of its directory if all partitions there are meant";
            return refused(format!("whose partitions are projected, not listed, at {}", display(&location)), hint);
        }
        Ok(Way::Partitions(location))
    }

    /// The table `name` as its `partitions`, in directories of its own at `location`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a partition elsewhere, of another format, or in a directory that does not name its values as the others do.
    pub(super) fn partitioned(
        &self,
        name: &str,
        location: &str,
        partitions: impl IntoIterator<Item = Partition>,
    ) -> Result<Content> {
        let mut directories = BTreeSet::new();
        // The columns have these names, in any case of letters but in the same.
        let mut spelt: Option<Vec<String>> = None;
        for Partition { location: at, input_format } in partitions {
            let refused = |problem: &str| {
                let what = format!("{name}, which has a partition at {}, {problem},", display(&at));
                Err(Error::unsupported(what, "give the addresses of its files, or write a copy"))
            };
            // Files of another format have no ending that says so, or one by which they are passed over.
            if !(input_format.is_empty() || input_format == PARQUET || input_format == self.input_format) {
                let format: String = input_format.chars().filter(|letter| !letter.is_control()).take(100).collect();
                return refused(&format!("of format {format:?}"));
            }
            let below = at.strip_prefix(location).and_then(|rest| rest.strip_prefix('/'));
            let directory = below.map(|below| below.trim_end_matches('/'));
            let Some((directory, keys)) = directory.and_then(|at| Some((at, self.keys(at)?))) else {
                return refused(&format!("no directory of its values below {}", display(location)));
            };
            if *spelt.get_or_insert_with(|| keys.clone()) != keys {
                return refused("whose directory spells its columns otherwise than another one");
            }
            directories.insert(directory.to_owned());
        }
        Ok(Content::Parquet(Some(directories)))
    }

    /// The names of the partition columns as `directory` spells them, if it has the values of all, such as `year=2026/month=1`.
    fn keys(&self, directory: &str) -> Option<Vec<String>> {
        let parts: Vec<&str> = directory.split('/').collect();
        let key = |(part, key): (&&str, &String)| {
            let (name, value) = part.split_once('=')?;
            (name.eq_ignore_ascii_case(key) && !value.is_empty()).then(|| name.to_owned())
        };
        if parts.len() != self.partition_keys.len() {
            return None;
        }
        parts.iter().zip(&self.partition_keys).map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(input_format: &str, parameters: &[(&str, &str)]) -> HiveTable {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let (input_format, location) = (input_format.to_owned(), "s3://b/t/".to_owned());
        HiveTable { input_format, location, parameters, ..HiveTable::default() }
    }

    fn at(content: Content, location: &str) -> Way {
        Way::At(content, location.to_owned())
    }

    #[test]
    fn the_parts_of_a_table_say_how_it_is_read() {
        let way = |table: HiveTable| table.way("hms://h/d.t").unwrap();
        let iceberg = [("table_type", "iceberg"), ("metadata_location", "s3://b/t/metadata/1.metadata.json")];
        assert_eq!(way(table("", &iceberg)), at(Content::Iceberg, "s3://b/t/metadata/1.metadata.json"));
        assert_eq!(way(table(PARQUET, &[])), at(Content::Parquet(None), "s3://b/t"));
        for delta in [("table_type", "DELTA"), ("classification", "delta")] {
            assert_eq!(way(table("x", &[delta])), at(Content::Delta(None), "s3://b/t"));
        }
        // Spark's tables of data sources: the location may be a placeholder.
        let mut spark =
            table("org.apache.hadoop.mapred.SequenceFileInputFormat", &[("spark.sql.sources.provider", "delta")]);
        spark.location = "s3://b/t-__PLACEHOLDER__".to_owned();
        spark.serde_parameters.insert("path".to_owned(), "s3://b/own".to_owned());
        assert_eq!(way(spark), at(Content::Delta(None), "s3://b/own"));
        let parts = |parameters: &[(&str, &str)]| {
            let mut parts = table(PARQUET, parameters);
            parts.partition_keys = vec!["dt".to_owned()];
            way(parts)
        };
        let partitions = Way::Partitions("s3://b/t".to_owned());
        let provider = ("spark.sql.sources.provider", "parquet");
        assert_eq!(parts(&[]), partitions);
        assert_eq!(parts(&[provider, ("spark.sql.partitionProvider", "catalog")]), partitions);
        // The catalog may have none of them then.
        for kind in [&[provider][..], &[provider, ("spark.sql.partitionProvider", "filesystem")]] {
            assert_eq!(parts(kind), at(Content::Parquet(None), "s3://b/t"));
        }
    }

    #[test]
    fn what_is_not_read_is_refused_by_name() {
        let told = |table: HiveTable| table.way("hms://h/d.t").unwrap_err().to_string();
        let mut view = table(PARQUET, &[]);
        view.table_type = "VIRTUAL_VIEW".to_owned();
        assert!(told(view).contains("hms://h/d.t, a view"));
        assert!(told(table("", &[("table_type", "ICEBERG")])).contains("metadata_location"));
        let symlinks = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat";
        assert!(told(table(symlinks, &[("table_type", "delta")])).contains("list of files"));
        assert!(told(table("org.apache.hudi.hadoop.HoodieParquetInputFormat", &[])).contains("Hudi"));
        assert!(told(table(PARQUET, &[("transactional", "TRUE")])).contains("transactional"));
        assert!(told(table("org.apache.hadoop.mapred.TextInputFormat", &[])).contains("TextInputFormat"));
        assert!(told(table("", &[("spark.sql.sources.provider", "csv")])).contains("\"csv\""));
        let mut projected = table(PARQUET, &[("projection.enabled", "true")]);
        projected.partition_keys = vec!["dt".to_owned()];
        assert!(told(projected).contains("projected"));
        assert!(told(HiveTable { input_format: PARQUET.to_owned(), ..HiveTable::default() }).contains("no location"));
    }

    #[test]
    fn partitions_lie_below_the_table_in_directories_of_their_values() {
        let mut parts = table(PARQUET, &[]);
        parts.partition_keys = vec!["year".to_owned(), "m".to_owned()];
        let of = |locations: &[&str]| {
            let partition = |at: &&str| Partition { location: (*at).to_owned(), ..Partition::default() };
            parts.partitioned("glue://d.t", "s3://b/t", locations.iter().map(partition))
        };
        let found = of(&["s3://b/t/Year=2026/m=1", "s3://b/t/Year=2026/m=2/"]).unwrap();
        let directories = ["Year=2026/m=1".to_owned(), "Year=2026/m=2".to_owned()];
        assert_eq!(found, Content::Parquet(Some(directories.into())));
        // These would be two columns, with nulls in each.
        let error = of(&["s3://b/t/year=2026/m=1", "s3://b/t/Year=2026/m=2"]).unwrap_err().to_string();
        assert!(error.contains("s3://b/t/Year=2026/m=2") && error.contains("spells"), "{error}");
        let orc = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat";
        for (format, is_read) in [(PARQUET, true), ("", true), (orc, false)] {
            let of_format = Partition { location: "s3://b/t/year=1/m=1".to_owned(), input_format: format.to_owned() };
            let found = parts.partitioned("glue://d.t", "s3://b/t", [of_format]);
            assert_eq!(found.is_ok(), is_read, "{format}");
            assert!(is_read || found.unwrap_err().to_string().contains("OrcInputFormat"));
        }
        for odd in [
            "s3://b/tt/year=1/m=1",
            "s3://c/t/year=1/m=1",
            "s3://b/t/year=1",
            "s3://b/t/m=1/year=1",
            "s3://b/t/a/b",
            "s3://b/t",
        ] {
            let error = of(&[odd]).unwrap_err().to_string();
            assert!(error.contains(odd) && error.contains("glue://d.t"), "{error}");
        }
    }
}
