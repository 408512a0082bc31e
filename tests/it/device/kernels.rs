//! The kernels, compiled as C and launched by the real calls: bit for bit equal to the host's reference.

#![expect(unsafe_code, reason = "the device's own contract: conversions by address")]

use bowstring::Error;
use bowstring::device::cuda::Cuda;
use bowstring::device::{Address, Conversion, Device, Lists};
use bowstring::schema::DType;

use super::fake::{Fake, build, child};
use super::held::{Dice, Held, fresh_seed, seed_of_parent, settled, upload};
use crate::support::soak;

#[test]
fn conversions_equal_the_host_reference() {
    let seed = fresh_seed();
    child("device::kernels::conversions", Some(&build(13_000)), &[("BOWSTRING_TEST_SEED", &seed)]);
}

pub(crate) fn conversions() {
    let mut dice = Dice(seed_of_parent());
    let fake = Fake::consumer();
    fake.reset(1, 0);
    let cuda = Cuda::new(0).unwrap();
    let rounds = if soak() { 400 } else { 60 };
    for round in 0..rounds {
        let (height, width) = (1 + dice.below(33) as u32, 1 + dice.below(33) as u32);
        let channels = [1, 3, 4][dice.below(3) as usize];
        let to = [DType::Float16, DType::Bfloat16, DType::Float32][dice.below(3) as usize];
        let images = dice.below(5);
        let mut real = || f32::from_bits((dice.next() as u32 & 0x807F_FFFF) | ((90 + dice.below(50) as u32) << 23));
        let (scale, bias) = (std::array::from_fn(|_| real()), std::array::from_fn(|_| real()));
        let pixels: Vec<u8> =
            (0..images * u64::from(height * width) * u64::from(channels)).map(|_| dice.next() as u8).collect();
        let rows: Vec<u8> = (0..images).map(|_| dice.below(3) as u8).collect();
        let what = |mask| Conversion::Normalise { images, height, width, channels, to, scale, bias, mask };
        // An odd offset in the slab, as for columns after others: the slow path of the kernel.
        let shift = [0, 0, 1, 2, 4][dice.below(5) as usize];
        compare(&cuda, &what, &pixels, (round % 2 == 0).then_some(&rows[..]), shift);
    }
    for _ in 0..rounds {
        let width = [1, 2, 4, 8][dice.below(4) as usize];
        let (item, length, count) = (1 + dice.below(3), 1 + dice.below(700), dice.below(40));
        pad(&cuda, &mut dice, width, item, length, count);
    }
    // More elements than the largest grid has threads: in one list, and in many.
    pad(&cuda, &mut dice, 1, 1, (1 << 22) + 300, 1);
    pad(&cuda, &mut dice, 1, 1, 200, (1 << 14) + 90);
    for from in DType::ALL {
        for to in DType::ALL.into_iter().filter(|to| Conversion::casts(from, *to)) {
            let bytes = interesting(from, &mut dice);
            let elements = (bytes.len() / from.size()) as u64;
            compare(&cuda, &|_| Conversion::Cast { from, to, elements }, &bytes, None, 0);
        }
    }
    // A conversion without a kernel is an error, and appends nothing.
    let lists = Lists { count: 1, items: 1, length: 1 };
    for width in [3, 16] {
        let bad = Conversion::Pad { lists, item: 1, width, fill: 0, left: false, offsets: 0 };
        // SAFETY: it is refused before any address is used.
        assert!(matches!(unsafe { cuda.convert(&bad, 0, 0) }, Err(Error::Device { .. })));
    }
    let bad = Conversion::Cast { from: DType::Float64, to: DType::Uint8, elements: 1 };
    // SAFETY: it is refused before any address is used.
    assert!(matches!(unsafe { cuda.convert(&bad, 0, 0) }, Err(Error::Device { .. })));
    drop(cuda);
    settled(&fake);
    fake.finish();
}

/// Pads `count` lists of random lengths, some too long, to `length` items of `item` elements; now and then an offset is wrong.
fn pad(cuda: &Cuda, dice: &mut Dice, width: u8, item: u64, length: u64, count: u64) {
    let (fill, left) = (dice.next(), dice.below(2) == 0);
    let mut ends = vec![0];
    (0..count).for_each(|_| ends.push(ends[ends.len() - 1] + dice.below(length + length / 4 + 2)));
    let items = ends[ends.len() - 1];
    if dice.below(4) == 0 {
        let (wrong, at) = (dice.next() >> dice.below(64), dice.below(count + 1) as usize);
        ends[at] = wrong;
    }
    let values: Vec<u8> = (0..items * item * u64::from(width)).map(|_| dice.next() as u8).collect();
    let offsets: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
    let lists = Lists { count, items, length };
    let what = |offsets: Option<Address>| Conversion::Pad { lists, item, width, fill, left, offsets: offsets.unwrap() };
    compare(cuda, &what, &values, Some(&offsets), [0, 8, 24][dice.below(3) as usize]);
    compare(cuda, &|_| Conversion::Lengths(lists), &offsets, None, 0);
}

/// Runs a conversion on the device with its input `shift` bytes into an allocation, and on the host.
fn compare(cuda: &Cuda, what: &dyn Fn(Option<Address>) -> Conversion, from: &[u8], mask: Option<&[u8]>, shift: usize) {
    let mut held = Held::new(cuda);
    let shifted: Vec<u8> = std::iter::repeat_n(0xEE, shift).chain(from.iter().copied()).chain([0]).collect();
    let source = upload(&mut held, &shifted).unwrap() + shift as u64;
    let mask_at = mask.filter(|mask| !mask.is_empty()).map(|mask| upload(&mut held, mask).unwrap());
    let conversion = what(mask_at);
    let len = conversion.to_bytes().unwrap();
    let target = held.memory(len + 4).unwrap();
    // SAFETY: both sides are allocations of this size, and nothing else uses them.
    unsafe { cuda.convert(&conversion, source, target).unwrap() };
    cuda.drain().unwrap();
    let mut found = vec![0; len + 4];
    // SAFETY: `target` has as many bytes.
    unsafe { cuda.read(target, &mut found).unwrap() };
    let mut expected = vec![0; len];
    conversion.on_host(from, &mut expected, mask);
    let size = match conversion {
        Conversion::Normalise { to, .. } | Conversion::Cast { to, .. } => to.size(),
        Conversion::Pad { width, .. } => width.into(),
        Conversion::Lengths(_) => 8,
    };
    if found[..len] != expected[..] {
        for (at, (found, expected)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
            assert_eq!(found, expected, "element {at} of {conversion:?}");
        }
    }
    assert_eq!(found[len..], [0xDD; 4], "nothing is written behind the end");
}

/// Values of `dtype` including all its special ones, and random ones.
fn interesting(dtype: DType, dice: &mut Dice) -> Vec<u8> {
    let mut bits: Vec<u64> =
        vec![0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, (1 << 24) + 1, (1 << 53) + 1, (1 << 62) + (1 << 38) + 1];
    let (exponent, fraction) = match dtype {
        DType::Float16 => (5, 10),
        DType::Bfloat16 => (8, 7),
        DType::Float32 => (8, 23),
        DType::Float64 => (11, 52),
        _ => (0, 0),
    };
    // Every exponent with fractions around the places where smaller types round, both signs: zeros, subnormals, infinities, NaN.
    for power in 0..(1_u64 << exponent) {
        for tail in [
            0,
            1,
            1 << 12,
            (1 << 12) - 1,
            (1 << 12) + 1,
            3 << 12,
            1 << 15,
            (1 << 15) + 1,
            1 << 28,
            (1 << 28) + 1,
            1 << 29,
        ] {
            for sign in [0, 1] {
                bits.push((sign << (exponent + fraction)) | (power << fraction) | (tail & ((1_u64 << fraction) - 1)));
            }
        }
    }
    bits.extend((0..500).map(|_| dice.next()));
    if dtype == DType::Bool {
        bits.iter_mut().for_each(|bits| *bits &= 1);
    }
    bits.iter().flat_map(|bits| bits.to_le_bytes()[..dtype.size()].to_vec()).collect()
}
