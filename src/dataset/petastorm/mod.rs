#![allow(missing_docs, unreachable_pub)]
use crate::error::{Place, Result};
use crate::schema::Stored;
use std::collections::BTreeMap;
pub const UNISCHEMA_KEY: &str = "a";
pub const ROW_GROUPS_KEY: &str = "b";
pub const INDEXES_KEY: &str = "c";
#[derive(Debug, Clone)]
pub struct RowGroupIndex;
#[derive(Debug, Clone)]
pub struct Unischema {
    pub fields: Vec<UnischemaField>,
}
#[derive(Debug, Clone)]
pub struct UnischemaField {
    pub name: String,
}
impl UnischemaField {
    pub fn stored(&self) -> Result<Option<Stored>> {
        Ok(None)
    }
}
impl Unischema {
    pub fn from_pickle(_: &[u8], _: &Place) -> Result<Self> {
        Ok(Self { fields: vec![] })
    }
}
pub fn indexes(_: &[u8], _: &Place) -> Result<Vec<RowGroupIndex>> {
    Ok(vec![])
}
pub fn row_group_counts(_: &[u8], _: &Place) -> Result<BTreeMap<String, usize>> {
    Ok(BTreeMap::new())
}
pub fn key_values(_: &[u8], _: &Place) -> Result<Vec<(String, Vec<u8>)>> {
    Ok(vec![])
}
