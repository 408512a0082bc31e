//! The advice of `inspect`, from plain facts: each sentence has the finding, its cost, and the remedy.

use crate::cli::table::{bytes, count};

/// Row groups larger than this share of the budget leave no room for several lanes and for reading ahead.
const BUDGET_SHARE: u64 = 16;

/// A row group smaller than this costs more in requests than in bytes, if there are many.
const SMALL_GROUP: u64 = 256 << 10;

/// Row groups per rank that keep ranks from sharing them.
const GROUPS_PER_RANK: u64 = 4;

/// The smallest saving of compression on a photo column that is worth its time.
const WORTHWHILE: f64 = 0.1;

/// The dataset as a whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) rows: u64,
    pub(crate) row_groups: u64,
    /// Uncompressed bytes of the largest row group and of the median one.
    pub(crate) largest_group: u64,
    pub(crate) median_group: u64,
    pub(crate) budget: u64,
    pub(crate) ranks: u64,
    pub(crate) columns: Vec<ColumnFacts>,
    /// Keys of directories that are text, and dates all of them.
    pub(crate) dates: Vec<String>,
}

/// One column.
#[derive(Debug, Clone, Default)]
pub(crate) struct ColumnFacts {
    pub(crate) name: String,
    pub(crate) stored_bytes: u64,
    pub(crate) uncompressed_bytes: u64,
    /// The name of a compression that is in use; `None` if it is stored plainly.
    pub(crate) compression: Option<String>,
    /// Bytes that the values take without an encoding, for a float column that has dictionaries.
    pub(crate) dictionary_floats: Option<u64>,
    /// Nulls, if the statistics have them.
    pub(crate) nulls: u64,
    /// True if these may be empty lists, which statistics count as nulls.
    pub(crate) listed: bool,
    /// True if it is text or binary, or lists of them.
    pub(crate) text: bool,
    /// The format's name, if it holds images, and the median of their longer sides.
    pub(crate) images: Option<(String, u64)>,
    /// True if images are delivered as pixels.
    pub(crate) decoded: bool,
    /// The reason for no outcome.
    pub(crate) problem: Option<String>,
}

/// The advice, most important first.
pub(crate) fn advise(facts: &Facts) -> Vec<String> {
    let mut advice = Vec::new();
    for column in &facts.columns {
        if let Some(problem) = &column.problem {
            advice.push(format!("{problem}; leave it out: --exclude '{}'", column.name));
        }
    }
    if facts.rows == 0 {
        advice.push("there are no rows".to_owned());
        return advice;
    }
    advice.extend(row_groups(facts));
    advice.extend(facts.columns.iter().flat_map(column));
    advice.extend(facts.dates.iter().map(|name| {
        format!("{name} is a directory's text, and all its values are dates; for dates, as Spark has them: --partitioning dates")
    }));
    advice
}

fn row_groups(facts: &Facts) -> Option<String> {
    let Facts { row_groups, largest_group, median_group, budget, ranks, .. } = *facts;
    if largest_group > budget / BUDGET_SHARE {
        return Some(format!(
            "row groups are too big: one has {}, the memory budget is {}, and each lane needs one or two at once; write them with about {}",
            bytes(largest_group),
            bytes(budget),
            bytes((budget / BUDGET_SHARE / 4).clamp(1 << 20, 64 << 20))
        ));
    }
    if row_groups < ranks {
        return Some(format!(
            "{} row groups are too few for {} ranks: some will be read by several ranks; write at least {}",
            count(row_groups),
            count(ranks),
            count(ranks * GROUPS_PER_RANK)
        ));
    }
    if ranks > 1 && row_groups < ranks * GROUPS_PER_RANK {
        return Some(format!(
            "{} row groups are few for {} ranks: lanes are cut inside of row groups, which two ranks then read; better write {} or more",
            count(row_groups),
            count(ranks),
            count(ranks * GROUPS_PER_RANK)
        ));
    }
    if row_groups >= 256 && median_group < SMALL_GROUP {
        return Some(format!(
            "row groups are small: half of them have less than {}, and each costs requests; write larger ones",
            bytes(median_group)
        ));
    }
    None
}

fn column(column: &ColumnFacts) -> Vec<String> {
    let mut advice = Vec::new();
    let name = &column.name;
    if let Some((format, side)) = &column.images {
        if !column.decoded {
            advice.push(format!(
                "{name} holds {format} and is delivered as bytes; for pixels: --images '{{\"{name}\": {{\"size\": 224}}}}'"
            ));
        }
        let saved = 1.0 - column.stored_bytes as f64 / column.uncompressed_bytes.max(1) as f64;
        if let Some(compression) = column.compression.as_ref().filter(|_| saved < WORTHWHILE) {
            advice.push(format!(
                "{name} holds {format}, which is compressed already: {compression} saves {:.1} % and is undone for every epoch; write this column uncompressed",
                saved.max(0.0) * 100.0
            ));
        }
        if *side >= 1024 {
            advice.push(format!(
                "half of the images in {name} have a longer side of {side} pixels or more: if training takes small crops, images stored at twice the crop's size decode several times faster"
            ));
        }
    }
    if let Some(plain) = column.dictionary_floats.filter(|plain| column.uncompressed_bytes * 10 >= plain * 9) {
        advice.push(format!(
            "{name} has dictionaries of floats that save nothing ({} instead of {}) and cost decoding; write it without a dictionary",
            bytes(column.uncompressed_bytes),
            bytes(plain)
        ));
    }
    if column.nulls > 0 {
        let found = match (column.nulls, column.listed) {
            (1, false) => "1 null, which is an error".to_owned(),
            (nulls, false) => format!("{} nulls, which are errors", count(nulls)),
            (1, true) => "1 null or empty list, which footers do not tell apart; a null is an error".to_owned(),
            (nulls, true) => {
                format!("{} nulls or empty lists, which footers do not tell apart; nulls are errors", count(nulls))
            }
        };
        let fill = if column.text { "\"\"" } else { "0" };
        advice.push(format!(
            "{name} has {found} unless you choose: --nulls mask, or --nulls '{{\"{name}\": {{\"fill\": {fill}}}}}'"
        ));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            rows: 1000,
            row_groups: 100,
            largest_group: 1 << 20,
            median_group: 1 << 20,
            budget: 1 << 30,
            ranks: 8,
            columns: Vec::new(),
            dates: Vec::new(),
        }
    }

    fn with(column: ColumnFacts) -> Vec<String> {
        advise(&Facts { columns: vec![ColumnFacts { name: "x".into(), ..column }], ..facts() })
    }

    #[test]
    fn a_good_dataset_gets_no_advice() {
        assert_eq!(advise(&facts()), Vec::<String>::new());
        let photo = ColumnFacts {
            images: Some(("JPEG".into(), 500)),
            decoded: true,
            stored_bytes: 100,
            uncompressed_bytes: 100,
            ..Default::default()
        };
        assert_eq!(with(photo), Vec::<String>::new());
        assert_eq!(
            with(ColumnFacts { dictionary_floats: Some(800), uncompressed_bytes: 200, ..Default::default() }),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_fault_is_found() {
        let one = |facts: Facts, what: &str| {
            let advice = advise(&facts);
            assert!(advice.len() == 1 && advice[0].contains(what), "{what}: {advice:?}");
        };
        one(Facts { largest_group: 1 << 29, ..facts() }, "too big");
        one(Facts { dates: vec!["day".to_owned()], ..facts() }, "--partitioning dates");
        one(Facts { row_groups: 7, ..facts() }, "too few for 8 ranks");
        one(Facts { row_groups: 20, ..facts() }, "few for 8 ranks");
        one(Facts { row_groups: 1000, median_group: 1000, ..facts() }, "small");
        one(Facts { rows: 0, ..facts() }, "no rows");
        let photo = ColumnFacts {
            images: Some(("JPEG".into(), 4000)),
            decoded: true,
            compression: Some("ZSTD".into()),
            stored_bytes: 99,
            uncompressed_bytes: 100,
            ..Default::default()
        };
        let advice = with(photo);
        assert!(
            advice.len() == 2 && advice[0].contains("saves 1.0 %") && advice[1].contains("4000 pixels"),
            "{advice:?}"
        );
        for (column, what) in [
            (
                ColumnFacts { dictionary_floats: Some(800), uncompressed_bytes: 900, ..Default::default() },
                "dictionaries of floats",
            ),
            (ColumnFacts { images: Some(("PNG".into(), 10)), ..Default::default() }, "for pixels"),
            (ColumnFacts { nulls: 3, ..Default::default() }, "3 nulls, which are errors unless"),
            (ColumnFacts { nulls: 1, text: true, ..Default::default() }, "{\"fill\": \"\"}"),
            (ColumnFacts { nulls: 2, listed: true, ..Default::default() }, "2 nulls or empty lists"),
            (ColumnFacts { problem: Some("column x: no".into()), ..Default::default() }, "--exclude 'x'"),
        ] {
            let advice = with(column);
            assert!(advice.len() == 1 && advice[0].contains(what), "{advice:?}");
        }
    }
}
