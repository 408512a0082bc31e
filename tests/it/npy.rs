//! Arrays of NumPy in cells: against NumPy's reading of them; false headers, archives and sizes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use bowstring::codec::npy::{Header, Limits, Npy, NpyDecoder, Unit, header, write_npy, write_npz};
use bowstring::error::{Error, Kind, Result};
use bowstring::schema::{Codec, DType, Element, Stored};
use serde::Deserialize;

use crate::support::{HANG, Random};

#[derive(Deserialize)]
struct Fixtures {
    cells: BTreeMap<String, (usize, usize)>,
    read: BTreeMap<String, Expected>,
    refused: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Expected {
    dtype: String,
    shape: Vec<usize>,
    values: Option<String>,
    strings: Option<Vec<String>>,
}

fn fixtures() -> (Fixtures, BTreeMap<String, Vec<u8>>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/npy");
    let all = fs::read(directory.join("cells.bin")).unwrap();
    let fixtures: Fixtures = serde_json::from_slice(&fs::read(directory.join("expected.json")).unwrap()).unwrap();
    let cells = fixtures.cells.iter().map(|(name, (start, len))| (name.clone(), all[*start..start + len].to_vec()));
    let cells = cells.collect();
    (fixtures, cells)
}

fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        (bits, held) = (bits << 6 | u32::from(value(c)), held + 6);
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

fn codec(name: &str) -> Codec {
    if name.ends_with(".npz") { Codec::Npz } else { Codec::Npy }
}

fn element(descr: &str) -> Element {
    let element = Npy::parse(descr).unwrap();
    match element.dtype() {
        _ if descr.contains('m') => Element::Timedelta,
        _ if element.unit.is_some() => Element::Time,
        Some(dtype) => Element::Number(dtype),
        None if descr.contains('U') => Element::Text,
        None => Element::Bytes,
    }
}

fn decoder(codec: Codec, element: Element, shape: Vec<Option<usize>>) -> NpyDecoder {
    NpyDecoder::new(&Stored { codec, element, shape }).unwrap()
}

/// Makes a decoder of bytes: 1 axis, any length.
fn bytes_of(codec: Codec) -> NpyDecoder {
    decoder(codec, Element::Number(DType::Uint8), vec![None])
}

/// Returns shape and values; the row starts with other content.
fn decode(decoder: &NpyDecoder, cell: &[u8]) -> Result<(Vec<usize>, Vec<u8>)> {
    let Header { shape, element, .. } = decoder.header(cell)?;
    let mut row = vec![0xA5; shape.iter().product::<usize>() * element.size];
    decoder.decode_into(cell, &mut row)?;
    Ok((shape, row))
}

fn strings(decoder: &NpyDecoder, cell: &[u8]) -> Result<(Vec<usize>, Vec<Vec<u8>>)> {
    let strings = decoder.strings(cell)?;
    let all: Vec<Vec<u8>> = strings.iter().map(<[u8]>::to_vec).collect();
    assert_eq!((strings.len(), strings.is_empty()), (all.len(), all.is_empty()));
    Ok((strings.shape, all))
}

/// True if the error is one that a cell may cause.
fn is_typed(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Limit { .. })
}

#[test]
fn every_cell_equals_numpys_reading() {
    let (fixtures, cells) = fixtures();
    for (name, expected) in &fixtures.read {
        let (cell, shape) = (&cells[name], &expected.shape);
        // The first axis varies, if there is one.
        let declared = shape.iter().enumerate().map(|(axis, len)| (axis > 0).then_some(*len)).collect();
        let decoder = decoder(codec(name), element(&expected.dtype), declared);
        assert_eq!(decoder.shape(cell).unwrap(), *shape, "{name}");
        match (&expected.values, &expected.strings) {
            (Some(values), None) => assert_eq!(decode(&decoder, cell).unwrap().1, base64(values), "{name}"),
            (None, Some(texts)) => {
                let texts = texts.iter().map(|text| base64(text)).collect();
                assert_eq!(strings(&decoder, cell).unwrap(), (shape.clone(), texts), "{name}");
            }
            _ => panic!("{name} has neither values nor strings"),
        }
        let element = Npy::parse(&expected.dtype).unwrap();
        assert_eq!(decoder.unit(cell).unwrap(), element.unit, "{name}");
    }
    assert_eq!(fixtures.read.len(), 831);
}

#[test]
fn cells_other_than_plain_arrays_are_refused_by_name() {
    let (fixtures, cells) = fixtures();
    for (name, word) in &fixtures.refused {
        let element = if name == "surrogate.npy" { Element::Text } else { Element::Number(DType::Int32) };
        let decoder = decoder(codec(name), element, vec![None]);
        let error = match name.as_str() {
            "surrogate.npy" => decoder.strings(&cells[name]).unwrap_err(),
            _ => decoder.shape(&cells[name]).unwrap_err(),
        };
        assert!(is_typed(&error), "{name}: {error:?}");
        assert!(error.to_string().contains(word), "{name}: {error}");
    }
    assert_eq!(fixtures.refused.len(), 9);
}

#[test]
fn written_cells_are_read_back_and_equal_numpys() {
    let (fixtures, cells) = fixtures();
    let mut same = 0;
    for (name, expected) in fixtures.read.iter().filter(|(name, _)| name.ends_with("_little_2x3_c.npy")) {
        let Some(values) = &expected.values else { continue };
        let (element, data) = (Npy::parse(&expected.dtype).unwrap(), base64(values));
        let decoder = |codec| decoder(codec, self::element(&expected.dtype), vec![Some(2), Some(3)]);
        let (mut npy, mut npz) = (Vec::new(), b"something before".to_vec());
        write_npy(&element, &expected.shape, &data, &mut npy).unwrap();
        write_npz(&element, &expected.shape, &data, &mut npz).unwrap();
        assert_eq!(npy.len() % 64, data.len() % 64, "{name}");
        assert_eq!(npy, cells[name], "{name}");
        assert_eq!(decode(&decoder(Codec::Npy), &npy).unwrap(), (vec![2, 3], data.clone()), "{name}");
        assert_eq!(decode(&decoder(Codec::Npz), &npz[16..]).unwrap(), (vec![2, 3], data), "{name}");
        same += 1;
    }
    assert_eq!(same, 19, "numbers and times");
    for (shape, data) in [(&[][..], &[1][..]), (&[0, 3], &[]), (&[3], &[1, 2, 3])] {
        let (mut npy, mut npz) = (Vec::new(), Vec::new());
        let element = Npy::number(DType::Uint8);
        write_npy(&element, shape, data, &mut npy).unwrap();
        write_npz(&element, shape, data, &mut npz).unwrap();
        for (codec, cell) in [(Codec::Npy, npy), (Codec::Npz, npz)] {
            let decoder = decoder(codec, Element::Number(DType::Uint8), shape.iter().copied().map(Some).collect());
            assert_eq!(decode(&decoder, &cell).unwrap(), (shape.to_vec(), data.to_vec()));
        }
        assert!(matches!(write_npy(&element, shape, &[0; 9], &mut Vec::new()), Err(Error::Mismatch { .. })));
    }
    let too_many = write_npy(&Npy::number(DType::Uint8), &[1; 33], &[1], &mut Vec::new());
    assert!(matches!(too_many, Err(Error::Unsupported { .. })));
}

#[test]
fn a_cell_that_is_not_as_declared_is_an_error_that_names_both() {
    let mut cell = Vec::new();
    write_npy(&Npy::number(DType::Int32), &[2, 3], &[7; 24], &mut cell).unwrap();
    for (element, shape, says) in [
        (Element::Number(DType::Uint32), vec![Some(2), Some(3)], "<i4 where uint32"),
        (Element::Number(DType::Float32), vec![None, None], "<i4 where float32"),
        (Element::Time, vec![None, None], "<i4 where datetime64"),
        (Element::Timedelta, vec![None, None], "<i4 where timedelta64"),
        (Element::Text, vec![None, None], "<i4 where str_"),
        (Element::Number(DType::Int32), vec![Some(2), Some(4)], "[2, 3] where [2, 4]"),
        (Element::Number(DType::Int32), vec![None], "[2, 3] where [None]"),
        (Element::Number(DType::Int32), vec![], "[2, 3] where []"),
    ] {
        let error = decoder(Codec::Npy, element, shape).shape(&cell).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.kind(), Kind::Data, "{error}");
    }
    let plain = decoder(Codec::Npy, Element::Number(DType::Int32), vec![None, Some(3)]);
    assert!(matches!(plain.decode_into(&cell, &mut [0; 23]), Err(Error::Mismatch { .. })));
    assert!(matches!(plain.strings(&cell), Err(Error::Config { .. })));
    let text = decoder(Codec::Npy, Element::Text, vec![]);
    assert!(matches!(text.decode_into(&cell, &mut []), Err(Error::Config { .. })));
    for (codec, shape) in [(Codec::Png, vec![]), (Codec::Npy, vec![None; 33]), (Codec::Npy, vec![Some(1 << 40); 2])] {
        let stored = Stored { codec, element: Element::Text, shape };
        assert!(matches!(NpyDecoder::new(&stored), Err(Error::Config { .. })), "{stored:?}");
    }
}

#[test]
fn bfloat16_and_booleans() {
    // ml_dtypes writes two bytes per element and no type.
    let mut cell = Vec::new();
    write_npy(&Npy::number(DType::Bfloat16), &[2], &[1, 2, 3, 4], &mut cell).unwrap();
    assert!(cell.windows(5).any(|part| part == b"'<V2'"));
    let decoder = |dtype| decoder(Codec::Npy, Element::Number(dtype), vec![None]);
    assert_eq!(decode(&decoder(DType::Bfloat16), &cell).unwrap().1, [1, 2, 3, 4]);
    assert!(decoder(DType::Float16).shape(&cell).is_err());
    // A view of bytes as booleans may have any bytes, a tensor may not.
    let mut cell = Vec::new();
    write_npy(&Npy::number(DType::Bool), &[4], &[0, 1, 2, 255], &mut cell).unwrap();
    assert_eq!(decode(&decoder(DType::Bool), &cell).unwrap().1, [0, 1, 1, 1]);
}

#[test]
fn times_of_cells_with_other_units_are_converted_or_refused() {
    let unit = |name| Unit::named(name).unwrap();
    let cell = |name, times: &[i64]| {
        let bytes: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
        let mut cell = Vec::new();
        write_npy(&Npy::datetime(unit(name)), &[times.len()], &bytes, &mut cell).unwrap();
        cell
    };
    let decoder = decoder(Codec::Npy, Element::Time, vec![None]).with_unit(unit("ms"));
    let seconds = cell("s", &[-3, 0, i64::MIN, 5]);
    assert_eq!(decoder.unit(&seconds).unwrap(), Some(unit("ms")));
    let expected: Vec<u8> = [-3000, 0, i64::MIN, 5000].iter().flat_map(|time: &i64| time.to_le_bytes()).collect();
    assert_eq!(decode(&decoder, &seconds).unwrap().1, expected);
    assert_eq!(decode(&decoder, &cell("ms", &[9])).unwrap().1, 9_i64.to_le_bytes());
    assert!(decoder.shape(&cell("us", &[9])).unwrap_err().to_string().contains("us"));
    assert!(decoder.shape(&cell("months", &[9])).is_err());
    let error = decode(&decoder, &cell("s", &[i64::MAX / 2])).unwrap_err();
    assert!(error.to_string().contains("overflows"), "{error}");
}

fn npy(literal: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\0", &(literal.len() as u16).to_le_bytes()[..], literal.as_bytes(), data].concat()
}

#[test]
fn header_bombs() {
    let started = Instant::now();
    // The longest readable header of version 1; longer ones of version 2; lengths beyond the data.
    let deep = format!("{{'descr': {}", "[".repeat(60_000));
    assert!(matches!(header(&npy(&deep, &[])), Err(Error::Unsupported { .. })));
    let mut cells = vec![
        npy(&format!("{{'descr': '<u1', 'shape': ({}", "1,".repeat(30_000)), &[]),
        npy(&format!("{{'descr': '<u1', 'shape': ({},)}}", "9".repeat(60_000)), &[]),
        npy(&format!("{{'{}': 1}}", "a".repeat(60_000)), &[]),
        npy(&"{".repeat(60_000), &[]),
        npy(&" ".repeat(65_000), &[]),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", &[]),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,)}", &[]),
        npy("{'descr': '|S0', 'fortran_order': False, 'shape': (9223372036854775808,)}", &[]),
    ];
    for len in [u32::MAX, 1 << 31, 65_536, 100] {
        cells.push([b"\x93NUMPY\x02\0", &len.to_le_bytes()[..], b"{'descr': '<f8'"].concat());
    }
    let mut long = [b"\x93NUMPY\x02\0", &1_000_000_u32.to_le_bytes()[..]].concat();
    long.extend(std::iter::repeat_n(b' ', 1_000_000));
    cells.push(long);
    for cell in cells {
        let error = header(&cell).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().len() < 1000, "{} bytes of error", error.to_string().len());
    }
    // Empty strings take no bytes, so a header can claim any number of them.
    let strings = npy("{'descr': '|S0', 'fortran_order': False, 'shape': (1152921504606846976,)}", &[]);
    let decoder = decoder(Codec::Npy, Element::Bytes, vec![None]);
    assert!(matches!(decoder.strings(&strings), Err(Error::Limit { .. })));
    assert!(started.elapsed() < HANG, "{:?}", started.elapsed());
}

/// Makes an archive whose claims can be changed; returns both places of the sizes.
fn zip_of_zeros(len: usize) -> (Vec<u8>, [usize; 2]) {
    let mut archive = Vec::new();
    write_npz(&Npy::number(DType::Uint8), &[len], &vec![0; len], &mut archive).unwrap();
    let central = archive.windows(4).rposition(|part| part == b"PK\x01\x02").unwrap();
    (archive, [22, central + 24])
}

fn claim(archive: &[u8], places: [usize; 2], size: u32) -> Vec<u8> {
    let mut archive = archive.to_vec();
    for place in places {
        archive[place..][..4].copy_from_slice(&size.to_le_bytes());
    }
    archive
}

#[test]
fn zip_bombs() {
    let started = Instant::now();
    let len = 4 << 20;
    let (archive, places) = zip_of_zeros(len);
    assert!(archive.len() < len / 900, "{} bytes", archive.len());
    let small = bytes_of(Codec::Npz).with_limits(Limits { max_bytes: 1 << 20 });
    for result in [small.shape(&archive).map(drop), small.decode_into(&archive, &mut [])] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Limit { asked: 4_194_432, limit: 1_048_576, .. }), "{error:?}");
    }
    let decoder = bytes_of(Codec::Npz);
    assert_eq!(decode(&decoder, &archive).unwrap().1, vec![0; len]);
    // Claims of too little: the array does not fit, or the following bytes do not belong to it.
    for claimed in [0, 1, 100, 128, 4000, len, len + 127] {
        let error = decode(&decoder, &claim(&archive, places, claimed as u32)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{claimed}: {error}");
    }
    // Claims of too much, up to more than deflate can produce.
    for claimed in [len + 129, len + 5000, 1 << 30, u32::MAX as usize - 1] {
        let error = decode(&decoder, &claim(&archive, places, claimed as u32)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{claimed}: {error}");
    }
    // A header that claims more than the archive does: nothing of that size is allocated.
    let literal = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,)}";
    let stored = stored_zip(b"x.npy", &npy(literal, &[0; 100]));
    assert!(decoder.shape(&stored).unwrap_err().to_string().contains("100 bytes of data"));
    assert!(started.elapsed() < HANG, "{:?}", started.elapsed());
}

/// Makes a zip with one stored entry.
fn stored_zip(name: &[u8], data: &[u8]) -> Vec<u8> {
    let record = |start: &[u8], rest: usize| {
        let len = (data.len() as u32).to_le_bytes();
        let crc = crc32(data).to_le_bytes();
        let name_len = (name.len() as u16).to_le_bytes();
        [start, &[20, 0, 0, 0, 0, 0, 0, 0, 0, 0], &crc, &len, &len, &name_len, &[0; 2], &vec![0; rest], name].concat()
    };
    let mut archive = [record(b"PK\x03\x04", 0), data.to_vec()].concat();
    let start = archive.len() as u32;
    let central = record(b"PK\x01\x02\x14\0", 14);
    archive.extend_from_slice(&central);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    archive.extend_from_slice(&(central.len() as u32).to_le_bytes());
    archive.extend_from_slice(&start.to_le_bytes());
    archive.extend_from_slice(&[0; 2]);
    archive
}

/// The same with every number in the fields of zip64, as in archives of more than 4 GiB; `size` is its claim.
fn zip64(data: &[u8], size: u64) -> Vec<u8> {
    let plain = stored_zip(b"arr.npy", data);
    let start = 37 + data.len();
    let mut central = plain[start..start + 53].to_vec();
    central[20..28].fill(0xff);
    central[42..46].fill(0xff);
    central[30..32].copy_from_slice(&28_u16.to_le_bytes());
    central.extend_from_slice(&[1, 0, 24, 0]);
    for number in [size, data.len() as u64, 0] {
        central.extend_from_slice(&number.to_le_bytes());
    }
    let mut archive = [&plain[..start], &central, b"PK\x06\x06", &[0; 28]].concat();
    let end = archive.len() as u64 - 32;
    for number in [1, central.len() as u64, start as u64] {
        archive.extend_from_slice(&number.to_le_bytes());
    }
    archive.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    archive.extend_from_slice(&end.to_le_bytes());
    archive.extend_from_slice(&[1, 0, 0, 0]);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&[0xff; 12]);
    archive.extend_from_slice(&[0; 2]);
    archive
}

#[test]
fn archives_of_zip64() {
    let mut cell = Vec::new();
    write_npy(&Npy::number(DType::Uint8), &[3], &[1, 2, 3], &mut cell).unwrap();
    let (decoder, len) = (bytes_of(Codec::Npz), cell.len() as u64);
    let good = zip64(&cell, len);
    assert_eq!(decode(&decoder, &good).unwrap().1, [1, 2, 3]);
    for size in [0, len - 1, len + 1, 1 << 40, u64::MAX] {
        let error = decode(&decoder, &zip64(&cell, size)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{size}: {error}");
    }
    // Any of its numbers changed to the largest possible.
    for at in 37 + cell.len()..good.len() - 8 {
        let mut damaged = good.clone();
        damaged[at..at + 8].fill(0xff);
        if let Err(error) = decode(&decoder, &damaged) {
            assert!(is_typed(&error), "{at}: {error}");
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[test]
fn names_are_never_paths() {
    let mut cell = Vec::new();
    write_npy(&Npy::number(DType::Uint8), &[3], &[1, 2, 3], &mut cell).unwrap();
    let decoder = bytes_of(Codec::Npz);
    let long = [&[b'a'; 60_000][..], b".npy"].concat();
    for name in [b"arr_0.npy", &b"../x.npy"[..], b"/etc/passwd.npy", b"C:\\x.npy", b"a\0b.npy", b"\xff\xfe.npy", &long]
    {
        assert_eq!(decode(&decoder, &stored_zip(name, &cell)).unwrap().1, [1, 2, 3]);
    }
    for name in [&b""[..], b"../x", b"/etc/passwd", b"x.npy/"] {
        let error = decoder.shape(&stored_zip(name, &cell)).unwrap_err();
        assert!(error.to_string().contains("no array"), "{error}");
    }
}

#[test]
fn a_flipped_bit_in_an_archive_is_seen() {
    let mut cell = Vec::new();
    write_npy(&Npy::number(DType::Uint8), &[100], &[7; 100], &mut cell).unwrap();
    let archive = stored_zip(b"arr.npy", &cell);
    let data = archive.windows(100).position(|part| part == [7; 100]).unwrap();
    for bit in 0..800 {
        let mut damaged = archive.clone();
        damaged[data + bit / 8] ^= 1 << (bit % 8);
        let error = decode(&bytes_of(Codec::Npz), &damaged).unwrap_err();
        assert!(error.to_string().contains("checksum"), "{error}");
    }
}

#[test]
fn a_cell_cut_off_at_any_byte_is_an_error() {
    let (fixtures, cells) = fixtures();
    let mut cut = 0;
    for (name, expected) in &fixtures.read {
        let whole = ["2x3_c.npy", "2x3_f.npy", "2x3_c.npz", "2x3_f.npz", "2x3_stored.npz"];
        let kinds = ["f4_big", "M8[s]_little", "U7_little", "b1"];
        if !whole.iter().any(|end| name.ends_with(end)) || !kinds.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let decoder = decoder(codec(name), element(&expected.dtype), vec![None, None]);
        for len in 0..cells[name].len() {
            let cell = &cells[name][..len];
            let error = match decoder.shape(cell) {
                Err(error) => error,
                Ok(_) if expected.strings.is_some() => decoder.strings(cell).unwrap_err(),
                Ok(_) => decode(&decoder, cell).unwrap_err(),
            };
            assert!(is_typed(&error), "{name} at {len}: {error}");
            cut += 1;
        }
    }
    assert!(cut > 2000, "{cut}");
}

#[test]
fn random_damage_gives_typed_errors_or_values() {
    let rounds = if crate::support::soak() { 200_000 } else { 20_000 };
    let seed = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("seed {seed}: BOWSTRING_SEED={seed} cargo nextest run random_damage_gives_typed");
    let (fixtures, cells) = fixtures();
    let names: Vec<&String> = fixtures.read.keys().filter(|name| cells[*name].len() < 2000).collect();
    let limits = Limits { max_bytes: 1 << 20 };
    let mut random = Random(seed);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..rounds {
        let name = names[random.index(names.len())];
        let mut cell = cells[name].clone();
        for _ in 0..=random.index(4) {
            let at = random.index(cell.len());
            match random.index(5) {
                0 => cell[at] ^= 1 << random.index(8),
                1 => cell[at] = [0, 1, 0x7f, 0x80, 0xff][random.index(5)],
                2 => cell.truncate(at.max(1)),
                3 => cell.insert(at, b"0123456789,()[]'L <>|\n"[random.index(22)]),
                _ => {
                    let piece: Vec<u8> = cell[at..].iter().copied().take(random.index(40)).collect();
                    let to = random.index(cell.len());
                    cell.splice(to..to, piece);
                }
            }
        }
        let expected = &fixtures.read[name];
        let shape = vec![None; expected.shape.len()];
        let decoder = decoder(codec(name), element(&expected.dtype), shape).with_limits(limits);
        let outcome = match decoder.header(&cell) {
            Err(error) => Err(error),
            Ok(_) if expected.strings.is_some() => decoder.strings(&cell).map(drop),
            Ok(header) => {
                assert!(header.data.len() <= cell.len().max(1 << 20), "{name}: {header:?}");
                decode(&decoder, &cell).map(drop)
            }
        };
        match outcome {
            Ok(()) => read += 1,
            Err(error) => {
                assert!(is_typed(&error), "{name}: {error:?}");
                refused += 1;
            }
        }
    }
    println!("{read} read, {refused} refused");
    assert!(read > rounds / 100 && refused > rounds / 4, "{read} read, {refused} refused");
}
