//! Column descriptions by other libraries in footers: Spark's in its schema of rows, Hugging Face's beside Arrow's. They become field marks,
//! see [`Feature`]. Vectors and matrices of Spark are known by their members too, so that an index of footers, or another writer, loses
//! nothing but the vectors' length.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use parquet::basic::LogicalType;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Dataset, Layout};
use crate::error::{Error, Result};
use crate::schema::{CLASSES_KEY, FEATURE_KEY, Feature, holds_image, is_matrix, is_vector};

/// The key of a footer under which Spark leaves its schema.
pub(super) const SPARK_ROW: &str = "org.apache.spark.sql.parquet.row.metadata";

/// The key of an Arrow schema under which Hugging Face leaves its features.
pub(crate) const HUGGING_FACE: &str = "huggingface";

/// Most characters of class names in errors.
const SHOWN: usize = 200;

/// Spark's schema of rows.
#[derive(Deserialize)]
struct SparkRow {
    fields: Vec<SparkField>,
}

#[derive(Deserialize)]
struct SparkField {
    name: String,
    #[serde(rename = "type")]
    ty: Value,
    #[serde(default)]
    metadata: Value,
}

/// Hugging Face's description of columns.
#[derive(Deserialize)]
struct Description {
    info: Info,
}

#[derive(Deserialize)]
struct Info {
    /// By the name of the column: the order of a struct's members matters, so they stay text.
    features: Option<BTreeMap<String, Box<RawValue>>>,
}

/// Returns true if Spark's schema says more than Parquet's.
pub(super) fn tells(spark: &str) -> bool {
    spark.contains("\"udt\"") || spark.contains("\"variant\"")
}

impl Dataset {
    /// The [schema](Self::schema) with marks of what other libraries mean by columns, if what the dataset says of its cells is heeded.
    pub(crate) fn marked_schema(&self) -> SchemaRef {
        if !self.inner.decode {
            return Arc::clone(self.schema());
        }
        let spark = self.inner.spark.as_deref().map(spark).unwrap_or_default();
        let hugging_face = &self.inner.described.features;
        let variants: BTreeSet<&str> = self.inner.layouts.iter().flat_map(variants).collect();
        let marked = |field: &Arc<Field>| {
            let (name, ty) = (field.name().as_str(), field.data_type());
            let (said, told) = (spark.get(name), hugging_face.get(name).map(|(told, _)| told));
            let feature = match said {
                _ if is_vector(ty) => match said {
                    Some(Feature::Vector(size)) => Some(Feature::Vector(*size)),
                    _ => Some(Feature::Vector(None)),
                },
                _ if is_matrix(ty) => Some(Feature::Matrix),
                Some(Feature::Variant) => Some(Feature::Variant),
                _ if variants.contains(name) => Some(Feature::Variant),
                _ if told.is_some_and(|told| told.is("Image")) && holds_image(ty) => Some(Feature::Image),
                _ => None,
            };
            let classes = self.inner.described.classes_below(name);
            if feature.is_none() && classes.is_none() {
                return Arc::clone(field);
            }
            let mut metadata = field.metadata().clone();
            metadata.extend(feature.map(|feature| (FEATURE_KEY.to_owned(), feature.text())));
            metadata.extend(classes.map(|classes| (CLASSES_KEY.to_owned(), classes)));
            Arc::new(Field::clone(field).with_metadata(metadata))
        };
        let schema = self.schema();
        let fields: Vec<Arc<Field>> = schema.fields().iter().map(marked).collect();
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }

    /// What Hugging Face's descriptions in all files say of the columns, as one of them.
    #[cfg(feature = "convert")]
    pub(crate) fn hugging_face(&self) -> Option<String> {
        let names = self.schema().fields().iter().map(|field| field.name().as_str());
        description(&self.inner.described.columns, names)
    }

    /// Checks that the class names in `columns` are those of all files.
    ///
    /// # Errors
    /// As of [`check_classes`](Self::check_classes).
    #[cfg(feature = "convert")]
    pub(crate) fn check_classes_below(&self, columns: &[&str]) -> Result<()> {
        let labels = self.inner.described.contradictions.keys().map(String::as_str);
        self.check_classes(labels.filter(|label| columns.iter().any(|column| is_below(label, column))))
    }

    /// Checks that the class names of `labels`, columns of integers by their dotted names, are those of all files.
    ///
    /// # Errors
    /// `Mismatch` naming two files with other names for the same labels.
    pub(crate) fn check_classes<'a>(&self, mut labels: impl Iterator<Item = &'a str>) -> Result<()> {
        let contradictions = &self.inner.described.contradictions;
        let found = labels.find_map(|label| contradictions.get_key_value(label));
        let Some((column, Contradiction { files: [first, second], names: [expected, found] })) = found else {
            return Ok(());
        };
        Err(Error::Mismatch {
            what: format!("class names of column {column:?} in file {first} and file {second}"),
            expected: expected.clone(),
            found: found.clone(),
            hint: "one number would mean two classes; leave the column out, write the labels of one of them again, or open them as \
                   separate datasets"
                .to_owned(),
        })
    }
}

/// The columns for which Spark's schema has types of its own. A schema that cannot be read says nothing.
fn spark(row: &str) -> BTreeMap<String, Feature> {
    let row = serde_json::from_str::<SparkRow>(row).inspect_err(|error| tracing::debug!("Spark's schema: {error}"));
    let feature = |field: &SparkField| {
        if field.ty == "variant" {
            return Some(Feature::Variant);
        }
        let class = field.ty.get("class").and_then(Value::as_str)?;
        let count = field.metadata.get("ml_attr").and_then(|attributes| attributes.get("num_attrs"));
        let size = count.and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
        class.ends_with(".VectorUDT").then_some(Feature::Vector(size))
    };
    let fields = row.into_iter().flat_map(|row| row.fields);
    fields.filter_map(|field| Some((field.name.clone(), feature(&field)?))).collect()
}

/// The root columns that the Parquet schema calls variants.
fn variants(layout: &Layout) -> impl Iterator<Item = &str> {
    let fields = layout.descriptor().root_schema().get_fields().iter().map(|field| field.get_basic_info());
    fields.filter(|info| matches!(info.logical_type_ref(), Some(LogicalType::Variant { .. }))).map(|info| info.name())
}

/// A feature as Hugging Face's `datasets` describes it.
#[derive(Debug)]
pub(super) struct HuggingFace(Value);

impl HuggingFace {
    fn is(&self, name: &str) -> bool {
        self.0.get("_type").is_some_and(|ty| ty == name)
    }

    /// The names of a `ClassLabel`.
    fn classes(&self) -> Option<&[Value]> {
        let names = self.0.get("names")?.as_array()?;
        names.iter().all(Value::is_string).then_some(names)
    }
}

/// What Hugging Face's descriptions in all files say together.
#[derive(Debug, Default)]
pub(super) struct Described {
    /// What is said of each root column, as it is written in the last file that says more of it than those before.
    columns: BTreeMap<String, Box<RawValue>>,
    /// The feature of each column, by its dotted name, and the file that says so.
    features: BTreeMap<String, (HuggingFace, Arc<str>)>,
    /// The first contradiction of each column.
    contradictions: BTreeMap<String, Contradiction>,
}

/// Two files whose labels of one column have other names.
#[derive(Debug)]
struct Contradiction {
    files: [Arc<str>; 2],
    names: [String; 2],
}

impl Described {
    /// The names of the classes of `root` and of what lies below it, by dotted name, as JSON; nothing if there are none.
    fn classes_below(&self, root: &str) -> Option<String> {
        let below = self.features.range(root.to_owned()..).take_while(|(path, _)| path.starts_with(root));
        let classes = below.filter(|(path, _)| is_below(path, root)).filter_map(|(path, (told, _))| {
            told.is("ClassLabel").then_some(())?;
            Some((path.clone(), Value::from(told.classes()?)))
        });
        let classes: serde_json::Map<String, Value> = classes.collect();
        (!classes.is_empty()).then(|| Value::from(classes).to_string())
    }

    /// Adds the description in `file`. Of class names that continue others, as when classes were added, the longer ones hold for both.
    pub(super) fn add(&mut self, json: &str, file: &Arc<str>) {
        for (root, (text, features)) in hugging_face_features(json) {
            let mut says_more = false;
            for (column, feature) in features {
                let Some((known, origin)) = self.features.get_mut(&column) else {
                    self.features.insert(column, (feature, Arc::clone(file)));
                    says_more = true;
                    continue;
                };
                let (Some(names), Some(new)) = (known.classes(), feature.classes()) else { continue };
                if new.starts_with(names) {
                    says_more |= new.len() > names.len();
                    (*known, *origin) = (feature, Arc::clone(file));
                } else if !names.starts_with(new) && !self.contradictions.contains_key(&column) {
                    let shown = |names: &[Value]| Value::from(names).to_string().chars().take(SHOWN).collect();
                    let names = [shown(names), shown(new)];
                    let files = [Arc::clone(origin), Arc::clone(file)];
                    self.contradictions.insert(column, Contradiction { files, names });
                }
            }
            if says_more || !self.columns.contains_key(&root) {
                self.columns.insert(root, text);
            }
        }
    }
}

/// Returns true for `root`, and for the dotted name of what lies below it.
fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What Hugging Face's description says of each column, as it is written there. One that cannot be read says nothing.
fn told(json: &str) -> BTreeMap<String, Box<RawValue>> {
    let read = serde_json::from_str::<Description>(json);
    let read = read.inspect_err(|error| tracing::debug!("{HUGGING_FACE}: {error}"));
    read.ok().and_then(|description| description.info.features).unwrap_or_default()
}

/// The description of these columns, out of what is told of all; nothing if nothing is told of them.
#[cfg(feature = "convert")]
fn description<'a>(told: &BTreeMap<String, Box<RawValue>>, columns: impl Iterator<Item = &'a str>) -> Option<String> {
    let features: Vec<String> =
        columns.filter_map(|name| Some(format!("{}: {}", Value::from(name), told.get(name)?.get()))).collect();
    (!features.is_empty()).then(|| format!(r#"{{"info": {{"features": {{{}}}}}}}"#, features.join(", ")))
}

/// Hugging Face's description `json`, of these columns alone; nothing if it says nothing of them.
#[cfg(feature = "convert")]
pub(crate) fn hugging_face_of(json: &str, columns: &[&str]) -> Option<String> {
    let told = told(json);
    match told.keys().all(|name| columns.contains(&name.as_str())) {
        true => Some(json.to_owned()),
        false => description(&told, columns.iter().copied()),
    }
}

/// What Hugging Face's description `json` says of each column, to be compared.
#[cfg(feature = "convert")]
pub(crate) fn hugging_face_columns(json: &str) -> BTreeMap<String, Value> {
    let told = told(json).into_iter();
    told.filter_map(|(name, text)| Some((name, serde_json::from_str(text.get()).ok()?))).collect()
}

/// What is told of each column, as it is written, and the features of the column and of what lies below it, by dotted name; lists add nothing
/// to it. Those that cannot be read say nothing.
fn hugging_face_features(json: &str) -> BTreeMap<String, (Box<RawValue>, BTreeMap<String, HuggingFace>)> {
    let column = |(name, text): (String, Box<RawValue>)| {
        let mut found = BTreeMap::new();
        if let Ok(told) = serde_json::from_str(text.get()) {
            descend(name.clone(), told, &mut found);
        }
        (name, (text, found))
    };
    told(json).into_iter().map(column).collect()
}

/// Adds the features at and below `path`. A list is `[item]`, or a feature with the item in `feature`; a struct is an object without a
/// `_type`. The parser of JSON bounds the depth.
fn descend(path: String, told: Value, found: &mut BTreeMap<String, HuggingFace>) {
    match told {
        Value::Array(items) => items.into_iter().take(1).for_each(|item| descend(path.clone(), item, found)),
        Value::Object(mut feature) if feature.get("_type").is_some_and(Value::is_string) => {
            match feature.remove("feature") {
                Some(item) => descend(path, item, found),
                None => drop(found.insert(path, HuggingFace(feature.into()))),
            }
        }
        Value::Object(members) => {
            members.into_iter().for_each(|(name, member)| descend(format!("{path}.{name}"), member, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spark_says_is_read_and_damage_says_nothing() {
        let vector = r#"{"type":"udt","class":"org.apache.spark.ml.linalg.VectorUDT"}"#;
        let row = format!(
            r#"{{"type":"struct","fields":[{{"name":"a","type":{vector},"nullable":true,"metadata":{{"ml_attr":{{"num_attrs":3}}}}}},
            {{"name":"b","type":{vector},"metadata":{{}}}},{{"name":"v","type":"variant"}},{{"name":"x","type":"long"}}]}}"#
        );
        let found = spark(&row);
        let expected = [("a", Feature::Vector(Some(3))), ("b", Feature::Vector(None)), ("v", Feature::Variant)];
        assert_eq!(found, expected.map(|(name, feature)| (name.to_owned(), feature)).into_iter().collect());
        assert!(tells(&row) && !tells(r#"{"type":"struct","fields":[]}"#));
        assert!(spark("{").is_empty() && hugging_face_features("[1]").is_empty());
        let features = r#"{"info":{"features":{"l":{"_type":"ClassLabel","names":["a","b"]},"i":{"_type":"Image"}}}}"#;
        let found = hugging_face_features(features);
        let (label, image) = (&found["l"].1["l"], &found["i"].1["i"]);
        assert_eq!(label.classes(), Some(&["a".into(), "b".into()][..]));
        assert!(image.is("Image") && image.classes().is_none());
    }

    #[test]
    fn labels_in_lists_and_structs_are_found_by_dotted_name() {
        let label = r#"{"_type":"ClassLabel","names":["a","b"]}"#;
        let features = format!(
            r#"{{"info":{{"features":{{"list":[{label}],"sequence":{{"_type":"Sequence","feature":{label}}},"list2":{{"_type":"Image"}},
            "struct":{{"member":{label},"deep":{{"_type":"List","feature":{{"inner":{label}}}}}}}}}}}}}"#
        );
        let mut described = Described::default();
        described.add(&features, &"f".into());
        let below = |root: &str| described.classes_below(root);
        assert_eq!(below("list").as_deref(), Some(r#"{"list":["a","b"]}"#));
        assert_eq!(below("sequence").as_deref(), Some(r#"{"sequence":["a","b"]}"#));
        assert_eq!(below("struct").as_deref(), Some(r#"{"struct.deep.inner":["a","b"],"struct.member":["a","b"]}"#));
        assert_eq!((below("list2"), below("stru"), below("x")), (None, None, None));
        described.add(&features.replace(r#"["a","b"]"#, r#"["b","a"]"#), &"g".into());
        assert_eq!(described.contradictions.len(), 4);
    }

    #[test]
    fn class_names_of_files_continue_each_other_or_are_refused() {
        let said =
            |names: &str| format!(r#"{{"info":{{"features":{{"l":{{"_type":"ClassLabel","names":{names}}}}}}}}}"#);
        let merged = |names: &[&str]| {
            let mut described = Described::default();
            names.iter().for_each(|names| described.add(&said(names), &"f".into()));
            let held = Value::from(described.features["l"].0.classes().unwrap()).to_string();
            let written: Value = serde_json::from_str(described.columns["l"].get()).unwrap();
            if described.contradictions.is_empty() {
                assert_eq!(written["names"].to_string(), held, "what is written again");
            }
            (held, described.contradictions.len())
        };
        let (two, three) = (r#"["a","b"]"#, r#"["a","b","c"]"#);
        assert_eq!(merged(&[two, two]), (two.to_owned(), 0));
        assert_eq!(merged(&[two, three, two]), (three.to_owned(), 0));
        assert_eq!(merged(&[three, two]), (three.to_owned(), 0));
        assert_eq!(merged(&[two, r#"["b","a"]"#, r#"["b"]"#]).1, 1);
    }

    #[test]
    #[cfg(feature = "convert")]
    fn a_description_of_some_columns_keeps_what_is_written_of_them() {
        let members = r#"{"z":{"_type":"ClassLabel","names":["a"]},"a":{"_type":"Value","dtype":"string"}}"#;
        let json = format!(r#"{{"info":{{"features":{{"s":{members},"i":{{"_type":"Image"}}}}}},"fingerprint":"f"}}"#);
        assert_eq!(hugging_face_of(&json, &["i", "s", "x"]).as_deref(), Some(&*json), "with all of its columns");
        // A struct's members stay in their order.
        let some = hugging_face_of(&json, &["x", "s"]).unwrap();
        assert_eq!(some, format!(r#"{{"info": {{"features": {{"s": {members}}}}}}}"#));
        assert_eq!(hugging_face_of(&json, &["x"]), None);
        assert_eq!(hugging_face_columns(&some).keys().collect::<Vec<_>>(), ["s"]);
        assert_eq!(hugging_face_columns(&json)["s"], hugging_face_columns(&some)["s"]);
        assert_eq!(hugging_face_of("{", &["x"]).as_deref(), Some("{"), "what cannot be read stays");
    }
}
