//! Names, and the objects that are made of them: where Python imports and calls, this looks at a closed list.

use super::arena::{Cell, Id, Object, Span};
use super::globals::Global;
use super::pickle::{ELEMENT, MAX_DEPTH, Machine, OBJECT};
use crate::error::{Error, Result};

/// The fields of a UnischemaField, in the order that every version has had.
const FIELD_NAMES: [&str; 5] = ["name", "numpy_dtype", "shape", "codec", "nullable"];

impl Machine<'_> {
    pub(super) fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let Some(global) = Global::find(module, name) else {
            return Err(self.refuse(format_args!("the global {}", clipped(&format!("{module}.{name}")))));
        };
        self.push(Cell::Class(global), 0)
    }

    fn object(&mut self, class: Global, arguments: Id) -> Result<()> {
        self.budget.charge(OBJECT)?;
        let object = self.arena.objects.len() as u32;
        self.arena.objects.push(Object { class, arguments, state: None });
        self.push(Cell::Object(object), self.arena.depth(arguments) + 1)
    }

    fn class(&self, id: Id) -> Option<Global> {
        match self.arena.cell(id) {
            Cell::Class(class) => Some(class),
            _ => None,
        }
    }

    fn refuse_call(&self, callable: Id, instruction: &str) -> Error {
        let what = self.arena.describe(callable);
        self.refuse(format_args!("the instruction {instruction} on {what} with these arguments"))
    }

    /// REDUCE calls in Python. Here each callable of the list has the few forms of arguments that a pickler writes.
    pub(super) fn reduce(&mut self) -> Result<()> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let refused = || self.refuse_call(callable, "REDUCE");
        let given = self.arena.tuple(arguments).ok_or_else(refused)?;
        let class = self.class(callable).ok_or_else(refused)?;
        match (class, given) {
            (Global::Reconstructor, &[class, base, state]) => {
                let class = self.class(class).ok_or_else(refused)?;
                match (class, self.class(base), self.arena.cell(state)) {
                    (Global::UnischemaField, Some(Global::Tuple), Cell::Tuple(Span { length: 5, .. })) => {
                        self.object(class, state)
                    }
                    (class, Some(Global::Object), Cell::None) if class.is_plain() => {
                        let none = self.tuple_of(&[]);
                        let arguments = self.make(none, 0)?;
                        self.object(class, arguments)
                    }
                    _ => Err(refused()),
                }
            }
            (Global::Restore, &[name, fields, values]) => {
                let named = self.arena.name(name).is_some_and(|name| name == "UnischemaField");
                let fields = self.arena.tuple(fields).filter(|fields| fields.len() == FIELD_NAMES.len());
                let same = fields.is_some_and(|fields| {
                    fields
                        .iter()
                        .zip(FIELD_NAMES)
                        .all(|(&id, name)| self.arena.name(id).is_some_and(|text| text == name))
                });
                let values_fit = self.arena.tuple(values).is_some_and(|values| values.len() == FIELD_NAMES.len());
                if !(named && same && values_fit) {
                    return Err(refused());
                }
                self.object(Global::UnischemaField, values)
            }
            (Global::Encode, &[text, encoding]) => {
                if !self.arena.name(encoding).is_some_and(|name| matches!(&*name, "latin1" | "latin-1")) {
                    return Err(refused());
                }
                let text = self.arena.text(text).ok_or_else(refused)?;
                // Charged before the copy: the same text may be encoded again and again.
                let length = text.len() as u64;
                let bytes: Option<Vec<u8>> = if length * 2 > self.budget.left {
                    return Err(self.budget.exceeded(self.budget.limit.saturating_add(length)));
                } else {
                    text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect()
                };
                let bytes = bytes.ok_or_else(refused)?;
                let span = self.keep(&bytes)?;
                self.push(Cell::Bytes(span), 0)
            }
            (Global::OrderedDict, &[]) => self.list_of(Cell::Dict, Vec::new()),
            (Global::OrderedDict, &[pairs]) => {
                let pairs = self.arena.elements(pairs).ok_or_else(refused)?.to_vec();
                self.budget.charge(pairs.len() as u64 * ELEMENT)?;
                let mut flat = Vec::with_capacity(pairs.len() * 2);
                for pair in pairs {
                    match self.arena.elements(pair) {
                        Some(&[key, value]) => flat.extend([key, value]),
                        _ => return Err(self.corrupt("an OrderedDict of something that is not a pair")),
                    }
                }
                self.list_of(Cell::Dict, flat)
            }
            (Global::DefaultDict, &[]) => self.list_of(Cell::Dict, Vec::new()),
            // The factory makes a set for each new key; nothing here asks for new keys.
            (Global::DefaultDict, &[factory]) if self.class(factory) == Some(Global::Set) => {
                self.list_of(Cell::Dict, Vec::new())
            }
            (Global::Set | Global::FrozenSet, &[]) => self.list_of(Cell::Set, Vec::new()),
            (Global::Set | Global::FrozenSet, &[elements]) => {
                let elements = self.arena.elements(elements).ok_or_else(refused)?;
                // The same list may be named again and again: charged before the copy.
                if elements.len() as u64 * ELEMENT > self.budget.left {
                    return Err(self.budget.exceeded(self.budget.limit.saturating_add(elements.len() as u64)));
                }
                let elements = elements.to_vec();
                self.list_of(Cell::Set, elements)
            }
            (Global::Dtype, &[spec] | &[spec, _, _]) if self.arena.name(spec).is_some() => {
                self.object(class, arguments)
            }
            (Global::NumpyScalar, &[dtype, _])
                if self.arena.object(dtype).is_some_and(|object| object.class == Global::Dtype) =>
            {
                self.object(class, arguments)
            }
            _ => Err(refused()),
        }
    }

    pub(super) fn new_object(&mut self) -> Result<()> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let count = self.arena.tuple(arguments).map(<[Id]>::len);
        match (self.class(callable), count) {
            (Some(class @ Global::UnischemaField), Some(3..=5)) => self.object(class, arguments),
            (Some(class), Some(0)) if class.is_plain() => self.object(class, arguments),
            _ => Err(self.refuse_call(callable, "NEWOBJ")),
        }
    }

    /// BUILD runs `__setstate__` in Python. Here an object keeps its state, once.
    pub(super) fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        let (Cell::Object(index), Some(object)) = (self.arena.cell(target), self.arena.object(target)) else {
            return Err(self.refuse_call(target, "BUILD"));
        };
        let fits = match (object.class, self.arena.cell(state)) {
            (Global::Dtype, Cell::Tuple(_)) => true,
            (class, Cell::Dict(_)) => class.is_plain(),
            _ => false,
        };
        if !fits || object.state.is_some() {
            return Err(self.refuse_call(target, "BUILD"));
        }
        let depth = self.arena.depth(target).max(self.arena.depth(state) + 1);
        if depth > MAX_DEPTH {
            return Err(self.too_deep());
        }
        if let Some(object) = self.arena.objects.get_mut(index as usize) {
            object.state = Some(state);
        }
        if let Some(known) = self.arena.depths.get_mut(target as usize) {
            *known = depth;
        }
        Ok(())
    }
}

/// A name for messages, not too long.
fn clipped(name: &str) -> String {
    let mut text: String = name.chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.len() < name.len() {
        text.push_str("...");
    }
    text
}
