//! An image from untrusted bytes, with options chosen by its last bytes: an error, or a row that is written to its end.
#![no_main]

use bowstring::codec::Decode;
use bowstring::codec::image::{Crop, Decoder, Deferred, ImageDecoder, ImageOptions, Layout, Limits, Normalize, probe};
use bowstring::schema::DType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((cell, [choice, draw])) = data.split_last_chunk::<2>() else { return };
    let bit = |at: u32| choice >> at & 1 == 1;
    let float = bit(0);
    let options = ImageOptions {
        size: Some(24.into()),
        crop: match choice >> 1 & 3 {
            0 => Crop::None,
            1 => Crop::Center,
            _ => Crop::RANDOM_RESIZED,
        },
        flip: if bit(3) { 0.5 } else { 0.0 },
        normalize: (float && bit(4)).then(Normalize::imagenet),
        layout: if bit(5) { Layout::Chw } else { Layout::Hwc },
        dtype: if float { DType::Float16 } else { DType::Uint8 },
        draft: bit(6),
        orient: bit(7),
        limits: Limits { max_pixels: 1 << 20, max_side: 1 << 16, max_bytes: 64 << 20, ..Limits::default() },
        ..ImageOptions::default()
    };
    let decoder = ImageDecoder::new(&options).expect("the options are possible");
    let mut row = vec![0xa5; decoder.shape().iter().product::<usize>() * decoder.dtype().size()];
    let random = u64::from(*draw).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let decoded = decoder.decode_into(cell, random, &mut row);
    // An image that decodes has a readable header.
    assert!(decoded.is_err() || probe(cell).is_ok());

    // Deferred to a device and then decoded here: the same outcome, and the same pixels.
    let later = ImageOptions { decoder: Decoder::Deferred, encoded_room: 4096, ..options.clone() };
    let deferred = Deferred::new(&later).expect("the options are possible");
    let (mut held, mut pixels) = (vec![0xa5; deferred.row_bytes()], vec![0xa5; 24 * 24 * 3]);
    let outcome = deferred.decode_into(cell, random, &mut held).and_then(|()| deferred.pixels(&held, &mut pixels));
    assert_eq!(outcome.is_ok(), decoded.is_ok());
    assert!(float || options.layout == Layout::Chw || outcome.is_err() || pixels == row);
});
