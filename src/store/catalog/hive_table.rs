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
        if self.partition_keys.is_empty() {
            return Ok(Way::At(Content::Parquet(None), location));
        }
        if is(self.parameter("projection.enabled"), "true") {
            let hint = "give the address of its directory if all partitions there are meant";
            return refused(format!("whose partitions are projected, not listed, at {}", display(&location)), hint);
        }
        Ok(Way::Partitions(location))
    }

    /// The table `name` as its partitions, whose locations are `partitions`, in directories of its own at `location`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a partition elsewhere, or in a directory that does not name its values.
    pub(super) fn partitioned(
        &self,
        name: &str,
        location: &str,
        partitions: impl IntoIterator<Item = String>,
    ) -> Result<Content> {
        let mut directories = BTreeSet::new();
        for partition in partitions {
            let below = partition.strip_prefix(location).and_then(|rest| rest.strip_prefix('/'));
            let directory = below.map(|below| below.trim_end_matches('/')).filter(|below| self.names_values(below));
            let Some(directory) = directory else {
                let what = format!(
                    "{name}, which has a partition at {}, no directory of its values below {},",
                    display(&partition),
                    display(location)
                );
                return Err(Error::unsupported(what, "give the addresses of its files, or write a copy"));
            };
            directories.insert(directory.to_owned());
        }
        Ok(Content::Parquet(Some(directories)))
    }

    /// Whether `directory` has the values of all partition columns, such as `year=2026/month=1`.
    fn names_values(&self, directory: &str) -> bool {
        let parts: Vec<&str> = directory.split('/').collect();
        let names = |(part, key): (&&str, &String)| {
            part.split_once('=').is_some_and(|(name, value)| name.eq_ignore_ascii_case(key) && !value.is_empty())
        };
        parts.len() == self.partition_keys.len() && parts.iter().zip(&self.partition_keys).all(names)
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
        let mut parts = table(PARQUET, &[]);
        parts.partition_keys = vec!["dt".to_owned()];
        assert_eq!(way(parts), Way::Partitions("s3://b/t".to_owned()));
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
            let locations = locations.iter().map(|at| (*at).to_owned());
            parts.partitioned("glue://d.t", "s3://b/t", locations)
        };
        let found = of(&["s3://b/t/year=2026/m=1", "s3://b/t/Year=2026/m=2/"]).unwrap();
        let directories = ["Year=2026/m=2".to_owned(), "year=2026/m=1".to_owned()];
        assert_eq!(found, Content::Parquet(Some(directories.into())));
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
