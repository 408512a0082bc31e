//! An array of NumPy from untrusted bytes, with a declaration chosen by its last byte: an error, or a complete row.
#![no_main]

use bowstring::codec::npy::{Limits, NpyDecoder};
use bowstring::schema::{Codec, DType, Element, Stored};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, cell)) = data.split_last() else { return };
    let choice = usize::from(*choice);
    let element = match choice >> 3 & 15 {
        number if number < DType::ALL.len() => Element::Number(DType::ALL[number]),
        13 if cell.len() % 2 == 1 => Element::Timedelta,
        13 => Element::Time,
        14 => Element::Text,
        _ => Element::Bytes,
    };
    let codec = if choice >> 7 == 1 { Codec::Npz } else { Codec::Npy };
    let limits = Limits { max_bytes: 1 << 20 };
    let stored = Stored { codec, element, shape: vec![None; choice & 7] };
    let decoder = NpyDecoder::new(&stored).expect("any shape").with_limits(limits);
    let Ok(header) = decoder.header(cell) else { return };
    assert!(header.data.len() <= cell.len().max(1 << 20));
    match header.element.dtype() {
        Some(_) => {
            let mut row = vec![0xa5; header.count() * header.element.size];
            let _ = decoder.decode_into(cell, &mut row);
        }
        None => {
            if let Ok(strings) = decoder.strings(cell) {
                assert_eq!(strings.iter().count(), header.count());
            }
        }
    }
});
