//! NumPy's dtypes and scalars as they are pickled: a type string, and the bytes of one element.

use super::arena::{Cell, Id};
use super::globals::Global;
use super::pickle::Pickle;
use crate::error::Result;

/// A plain value, whether Python's own or NumPy's.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
}

/// The type string of a dtype without its byte order, and whether it is big-endian.
struct Spec {
    kind: char,
    /// Bytes of an element, or characters of a text.
    size: usize,
    big: bool,
}

impl Pickle<'_> {
    /// The name of the scalar class of dtype object `id`, e.g. `uint8`; `None` if it is not a dtype object.
    pub(super) fn dtype_name(&self, id: Id) -> Result<Option<&'static str>> {
        let Some(object) = self.arena.object(id).filter(|object| object.class == Global::Dtype) else {
            return Ok(None);
        };
        let spec = self.spec(object.arguments, object.state)?;
        let name = match (spec.kind, spec.size) {
            ('b', _) => "bool_",
            ('i', 1) => "int8",
            ('i', 2) => "int16",
            ('i', 4) => "int32",
            ('i', 8) => "int64",
            ('u', 1) => "uint8",
            ('u', 2) => "uint16",
            ('u', 4) => "uint32",
            ('u', 8) => "uint64",
            ('f', 2) => "float16",
            ('f', 4) => "float32",
            ('f', 8) => "float64",
            ('c', 8) => "complex64",
            ('c', 16) => "complex128",
            ('M', _) => "datetime64",
            ('m', _) => "timedelta64",
            ('U', _) => "str_",
            ('S', _) => "bytes_",
            ('O', _) => "object_",
            _ => return Err(self.budget.corrupt(format_args!("there is no dtype {}{}", spec.kind, spec.size))),
        };
        Ok(Some(name))
    }

    fn spec(&self, arguments: Id, state: Option<Id>) -> Result<Spec> {
        let text =
            self.arena.tuple(arguments).and_then(|arguments| arguments.first()).and_then(|&id| self.arena.name(id));
        let text = text.ok_or_else(|| self.budget.corrupt("a dtype has no type string"))?;
        let rest = text.trim_start_matches(['<', '>', '|', '=']);
        let parsed = rest.chars().next().and_then(|kind| {
            let digits = rest.get(kind.len_utf8()..)?;
            let size = match (digits.is_empty(), kind) {
                (true, 'U' | 'S' | 'M' | 'm' | 'O') => 0,
                // Beyond 20 digits no number fits, whatever they are; a message must not carry them.
                _ => Some(digits).filter(|digits| digits.len() <= 20)?.parse().ok()?,
            };
            Some((kind, size))
        });
        let short: String = text.chars().take(20).collect();
        let (kind, size) = parsed.ok_or_else(|| self.budget.corrupt(format_args!("there is no dtype {short:?}")))?;
        // The state is (version, byte order, subtype, names, fields, ...).
        let state = state.and_then(|state| self.arena.tuple(state)).unwrap_or_default();
        let order = state.get(1).and_then(|&id| self.arena.name(id));
        if state.get(2..5).is_some_and(|parts| parts.iter().any(|&id| !matches!(self.arena.cell(id), Cell::None))) {
            return Err(self.budget.unsupported("a dtype with fields or a shape", ""));
        }
        Ok(Spec { kind, size, big: order.is_some_and(|order| order == ">") || text.starts_with('>') })
    }

    /// The plain value of cell `id`; `None` if it is something else.
    ///
    /// # Errors
    /// A scalar of NumPy that is damaged or of a type that stands for no plain value; or there is no budget for its bytes.
    pub(super) fn plain(&mut self, id: Id) -> Result<Option<Plain>> {
        let value = match self.arena.cell(id) {
            Cell::None => Plain::Null,
            Cell::Bool(value) => Plain::Bool(value),
            Cell::Int(value) => Plain::Int(value),
            Cell::Float(value) => Plain::Float(value),
            Cell::Text(span) => {
                self.budget.charge(span.length.into())?;
                Plain::Text(String::from_utf8_lossy(self.arena.span(span)).into_owned())
            }
            Cell::Bytes(span) => {
                self.budget.charge(span.length.into())?;
                Plain::Bytes(self.arena.span(span).to_vec())
            }
            Cell::Str2(span) => {
                self.budget.charge(span.length.into())?;
                let bytes = self.arena.span(span).to_vec();
                String::from_utf8(bytes).map_or_else(|error| Plain::Bytes(error.into_bytes()), Plain::Text)
            }
            Cell::Object(_) => return self.scalar(id),
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    fn scalar(&mut self, id: Id) -> Result<Option<Plain>> {
        let Some(object) = self.arena.object(id).filter(|object| object.class == Global::NumpyScalar) else {
            return Ok(None);
        };
        let &[dtype, data] = self.arena.tuple(object.arguments).unwrap_or_default() else { return Ok(None) };
        let Some(dtype) = self.arena.object(dtype) else { return Ok(None) };
        let spec = self.spec(dtype.arguments, dtype.state)?;
        let Some(stored) = self.arena.bytes(data) else {
            return Err(self.budget.unsupported("a scalar of NumPy whose data is not bytes", ""));
        };
        let length = stored.len();
        self.budget.charge(length as u64)?;
        let stored = self.arena.bytes(data).unwrap_or_default();
        let expected = match spec.kind {
            'U' => spec.size.checked_mul(4),
            _ => Some(spec.size),
        };
        if expected != Some(length) {
            let Spec { kind, size, .. } = spec;
            return Err(self.budget.corrupt(format_args!("{length} bytes for a scalar of dtype {kind}{size}")));
        }
        // The number, whatever its width, as 64 bits; its sign is extended below.
        let bits = || {
            let fold = |bits: u64, &byte: &u8| bits << 8 | u64::from(byte);
            if spec.big { stored.iter().fold(0, fold) } else { stored.iter().rev().fold(0, fold) }
        };
        let value = match (spec.kind, length) {
            ('b', 1) => Plain::Bool(bits() != 0),
            ('i', 1) => Plain::Int((bits() as i8).into()),
            ('i', 2) => Plain::Int((bits() as i16).into()),
            ('i', 4) => Plain::Int((bits() as i32).into()),
            ('i', 8) => Plain::Int(bits() as i64),
            ('u', 1 | 2 | 4 | 8) => i64::try_from(bits()).map_or_else(|_| Plain::Uint(bits()), Plain::Int),
            ('f', 2) => Plain::Float(half::f16::from_bits(bits() as u16).to_f64()),
            ('f', 4) => Plain::Float(f32::from_bits(bits() as u32).into()),
            ('f', 8) => Plain::Float(f64::from_bits(bits())),
            ('S', _) => Plain::Bytes(trimmed(stored).to_vec()),
            ('U', _) => {
                let chars = stored.chunks_exact(4).map(|unit| {
                    let unit = unit.try_into().unwrap_or_default();
                    char::from_u32(if spec.big { u32::from_be_bytes(unit) } else { u32::from_le_bytes(unit) })
                });
                let text: Option<String> = chars.collect();
                let text = text.ok_or_else(|| self.budget.corrupt("a text of NumPy has a character beyond Unicode"))?;
                Plain::Text(text.trim_end_matches('\0').to_owned())
            }
            _ => {
                let Spec { kind, size, .. } = spec;
                let what = format!("a scalar of dtype {kind}{size}");
                return Err(self.budget.unsupported(what, ""));
            }
        };
        Ok(Some(value))
    }
}

/// NumPy pads with zeros and takes them for padding.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.get(..end).unwrap_or_default()
}
