//! Parquet's own columns, added up over all footers: types, encodings, sizes.

use std::collections::{BTreeSet, HashMap};

use arrow::datatypes::DataType;

use crate::dataset::{Chunk, Dataset};
use parquet::basic::{Compression, LogicalType, Type};
use parquet::schema::types::ColumnDescriptor;

/// One column of Parquet, over all files and row groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaf {
    /// Dotted name, as delivered: lists add nothing to it.
    pub(crate) name: String,
    /// Its types: one, unless the files differ.
    pub(crate) types: BTreeSet<String>,
    pub(crate) optional: bool,
    pub(crate) stored_bytes: u64,
    pub(crate) uncompressed_bytes: u64,
    /// Names of the compressions in use.
    pub(crate) compressions: BTreeSet<String>,
    /// True if a column chunk has a dictionary.
    pub(crate) dictionary: bool,
    /// Bytes of all values without an encoding, for floats.
    pub(crate) plain_float_bytes: Option<u64>,
    /// Nulls, as far as statistics give them; empty lists among them.
    pub(crate) nulls: u64,
    /// True if lists are around it, so that `nulls` may be empty lists.
    pub(crate) listed: bool,
}

impl Leaf {
    fn add(&mut self, descriptor: &ColumnDescriptor, chunk: &Chunk) {
        self.types.insert(type_name(descriptor));
        self.optional |= descriptor.self_type().is_optional();
        self.stored_bytes = self.stored_bytes.saturating_add(chunk.stored);
        self.uncompressed_bytes = self.uncompressed_bytes.saturating_add(chunk.unpacked);
        if chunk.compression() != Compression::UNCOMPRESSED {
            let name = format!("{:?}", chunk.compression());
            self.compressions.insert(name.split('(').next().unwrap_or_default().to_owned());
        }
        self.dictionary |= chunk.dictionary;
        let width = match descriptor.physical_type() {
            Type::FLOAT => Some(4),
            Type::DOUBLE => Some(8),
            _ => None,
        };
        if let Some(width) = width {
            let bytes = chunk.values.saturating_mul(width);
            self.plain_float_bytes = Some(self.plain_float_bytes.unwrap_or(0).saturating_add(bytes));
        }
        // Each list adds a level for its items. Where nothing else does, nothing can be null but the items of empty lists.
        let (defined, listed) = (descriptor.max_def_level(), descriptor.max_rep_level());
        self.listed |= listed > 0;
        if defined > listed {
            self.nulls = self.nulls.saturating_add(chunk.nulls.unwrap_or(0));
        }
    }

    /// Returns the types as one text.
    pub(crate) fn type_names(&self) -> String {
        self.types.iter().cloned().collect::<Vec<_>>().join(" / ")
    }
}

/// Returns the columns of all files, in the order of first appearance.
pub(crate) fn leaves(dataset: &Dataset) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    // Files without row groups have columns too.
    for (stored, schema) in dataset.file_columns() {
        let mut names = Vec::new();
        schema.fields().iter().for_each(|field| name(field.name().clone(), field.data_type(), &mut names));
        let mut names = names.into_iter();
        for column in stored.columns() {
            let name = names.next();
            known.entry(column.path().string()).or_insert_with_key(|path| {
                let types = BTreeSet::from([type_name(column)]);
                let name = name.unwrap_or_else(|| path.clone());
                leaves.push(Leaf { name, types, optional: column.self_type().is_optional(), ..Leaf::default() });
                leaves.len() - 1
            });
        }
    }
    dataset.each_chunk(&mut |column, chunk| {
        let at = known.get(&column.path().string()).copied();
        if let Some(leaf) = at.and_then(|at| leaves.get_mut(at)) {
            leaf.add(column, chunk);
        }
    });
    leaves
}

/// Adds the names of what lies below a column, in the order of Parquet's leaves.
fn name(of: String, data_type: &DataType, names: &mut Vec<String>) {
    match data_type {
        DataType::Struct(members) => {
            members.iter().for_each(|member| name(format!("{of}.{}", member.name()), member.data_type(), names));
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => {
                let each = ["key", "value"].iter().zip(pair);
                each.for_each(|(own, member)| name(format!("{of}.{own}"), member.data_type(), names));
            }
            other => name(of, other, names),
        },
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => name(of, item.data_type(), names),
        _ => names.push(of),
    }
}

/// Returns the logical type if there is one, else the physical: `TIMESTAMP(MICROS, UTC)`, `INT64`.
fn type_name(column: &ColumnDescriptor) -> String {
    let upper = |text: &dyn std::fmt::Debug| format!("{text:?}").to_uppercase();
    let zone = |utc: bool| if utc { ", UTC" } else { "" };
    match column.logical_type_ref() {
        Some(LogicalType::Decimal(decimal)) => format!("DECIMAL({},{})", decimal.precision, decimal.scale),
        Some(LogicalType::Timestamp(time)) => {
            format!("TIMESTAMP({}{})", upper(&time.unit), zone(time.is_adjusted_to_u_t_c))
        }
        Some(LogicalType::Time(time)) => format!("TIME({}{})", upper(&time.unit), zone(time.is_adjusted_to_u_t_c)),
        Some(LogicalType::Integer(int)) => format!("{}INT{}", if int.is_signed { "" } else { "U" }, int.bit_width),
        Some(LogicalType::_Unknown { .. }) | None => match column.converted_type() {
            parquet::basic::ConvertedType::NONE => physical_name(column),
            converted => converted.to_string(),
        },
        Some(other) => {
            let name = upper(other);
            name.split('(').next().unwrap_or_default().to_owned()
        }
    }
}

fn physical_name(column: &ColumnDescriptor) -> String {
    match column.physical_type() {
        Type::FIXED_LEN_BYTE_ARRAY => format!("FIXED_LEN_BYTE_ARRAY({})", column.type_length()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;
    use std::sync::Arc;

    #[test]
    fn types_are_named_by_what_they_mean() {
        let message = "message m { required int64 a; optional binary s (STRING); required int32 d (DECIMAL(9,2)); \
                       required int64 t (TIMESTAMP(MICROS,true)); required int32 u (INTEGER(8,false)); required binary b; \
                       required fixed_len_byte_array(2) h (FLOAT16); required fixed_len_byte_array(3) f; required int96 old; \
                       optional group l (LIST) { repeated group list { optional float element; } } required int32 day (DATE); }";
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(message).unwrap()));
        let names: Vec<_> = schema.columns().iter().map(|column| type_name(column)).collect();
        let expected = [
            "INT64",
            "STRING",
            "DECIMAL(9,2)",
            "TIMESTAMP(MICROS, UTC)",
            "UINT8",
            "BYTE_ARRAY",
            "FLOAT16",
            "FIXED_LEN_BYTE_ARRAY(3)",
            "INT96",
            "FLOAT",
            "DATE",
        ];
        assert_eq!(names, expected);
    }
}
