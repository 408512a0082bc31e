//! What the options of columns make of the columns, where the schema does not show it. Adapters deliver such columns in a way of their
//! own, and must know them where the options are a server's too.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec::{ColumnOptions, column_is_meant};
use crate::schema::{Schema, Type};

/// Names of delivered columns, by what the options made of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ColumnKinds {
    /// Packs: matrices of several columns, whose masks of nulls have a value for each element.
    pub packs: Vec<Arc<str>>,
    /// Columns that the option `arrow` names: their consumers want Arrow's arrays, and no strings of their own.
    pub arrow: Vec<Arc<str>>,
}

impl ColumnKinds {
    /// Names those columns of `schema`, which loaders with `options` deliver.
    pub(crate) fn of(options: &ColumnOptions, schema: &Schema) -> Self {
        let names = |is_meant: &dyn Fn(&str, &Type) -> bool| {
            let fields = schema.fields().iter().filter(|field| is_meant(&field.name, &field.ty));
            fields.map(|field| Arc::clone(&field.name)).collect()
        };
        Self {
            packs: names(&|name, _| options.pack.iter().any(|pack| pack.name == name)),
            arrow: names(&|name, ty| {
                matches!(ty, Type::Arrow(_)) && options.arrow.iter().any(|pattern| column_is_meant(pattern, name))
            }),
        }
    }

    /// Bytes of the names.
    #[cfg(feature = "flight")]
    pub(crate) fn bytes(&self) -> usize {
        self.packs.iter().chain(&self.arrow).map(|name| name.len()).sum()
    }
}
