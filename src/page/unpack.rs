//! Bit-packed numbers, 64 at a time.

use super::unpack_avx2;

/// Numbers in a block.
pub(super) const BLOCK: usize = 64;

/// Unpacks 64 numbers of `width` bits each, least significant bit first, from `8 * width` bytes; false if there are fewer
/// bytes, or `width` is over 32. Faster if some more bytes follow.
pub(super) fn unpack(bytes: &[u8], width: u8, output: &mut [u32; BLOCK]) -> bool {
    if unpack_avx2::unpack(bytes, width, output.as_chunks_mut().0) {
        return true;
    }
    macro_rules! widths {
        ($($width:literal)*) => {
            match width {
                0 => {
                    output.fill(0);
                    true
                }
                $($width => block::<$width>(bytes, output),)*
                _ => false,
            }
        };
    }
    widths!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
}

/// Unpacks one block in a constant order of words and shifts: branch-free code of its own for each width.
fn block<const WIDTH: usize>(bytes: &[u8], output: &mut [u32; BLOCK]) -> bool {
    let Some(bytes) = bytes.get(..8 * WIDTH) else { return false };
    let mut words = [0_u64; WIDTH];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    macro_rules! numbers {
        ($($at:literal)*) => { $(
            output[$at] = number::<WIDTH>(&words, $at);
        )* };
    }
    numbers!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    numbers!(32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63);
    true
}

#[inline(always)]
fn number<const WIDTH: usize>(words: &[u64; WIDTH], at: usize) -> u32 {
    let (word, shift) = (at * WIDTH / 64, at * WIDTH % 64);
    let low = words[word] >> shift;
    // The next word has the rest of a number that straddles two words.
    let high = if shift + WIDTH > 64 { words[word + 1] << (64 - shift) } else { 0 };
    ((low | high) & ((1_u64 << WIDTH) - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_comes_back() {
        for width in 0..=32_u8 {
            let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
            let numbers: Vec<u32> =
                (0..BLOCK as u32).map(|at| at.wrapping_mul(0x9e37_79b9).rotate_left(at) & mask).collect();
            let mut bytes = vec![0_u8; 8 * usize::from(width)];
            for (at, number) in numbers.iter().enumerate() {
                for bit in (0..usize::from(width)).filter(|bit| number >> bit & 1 == 1) {
                    let bit = at * usize::from(width) + bit;
                    bytes[bit / 8] |= 1 << (bit % 8);
                }
            }
            let mut output = [7; BLOCK];
            assert!(unpack(&bytes, width, &mut output), "{width}");
            assert_eq!(output.as_slice(), numbers, "{width}");
            assert_eq!(unpack(&bytes[..bytes.len().saturating_sub(1)], width, &mut output), width == 0);
            // Whatever follows is not looked at, however much it is.
            for more in 1..=32 {
                let (longer, mut output) = ([bytes.clone(), vec![0xff; more]].concat(), [7; BLOCK]);
                assert!(unpack(&longer, width, &mut output), "{width} and {more} bytes");
                assert_eq!(output.as_slice(), numbers, "{width} and {more} bytes");
            }
        }
        assert!(!unpack(&[0; 400], 33, &mut [0; BLOCK]));
    }
}
