//! Elements in the order of a tensor: C order, little endian.

/// Elements on one side of a tile: a tile of 8-byte elements reads and writes 16 KiB, which stays in the nearest cache.
const TILE: usize = 32;

/// Copies `from` to `to`, reversing the bytes of each element of `size` bytes: 2, 4 or 8.
pub(super) fn copy_swapped(from: &[u8], to: &mut [u8], size: usize) {
    match size {
        2 => copy_each::<2>(from, to),
        4 => copy_each::<4>(from, to),
        8 => copy_each::<8>(from, to),
        _ => to.copy_from_slice(from),
    }
}

fn copy_each<const SIZE: usize>(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.as_chunks_mut::<SIZE>().0.iter_mut().zip(from.as_chunks::<SIZE>().0) {
        *to = *from;
        to.reverse();
    }
}

/// Reverses the bytes of each element of `size` bytes in place.
pub(super) fn swap(bytes: &mut [u8], size: usize) {
    match size {
        2 => swap_each::<2>(bytes),
        4 => swap_each::<4>(bytes),
        8 => swap_each::<8>(bytes),
        _ => {}
    }
}

fn swap_each<const SIZE: usize>(bytes: &mut [u8]) {
    for element in bytes.as_chunks_mut::<SIZE>().0 {
        element.reverse();
    }
}

/// Returns true if Fortran order differs from C order for `shape`.
pub(super) fn differs(shape: &[usize]) -> bool {
    !shape.contains(&0) && shape.iter().filter(|axis| **axis > 1).count() > 1
}

/// Writes the array `from` of `shape`, whose first axis varies fastest, to `to`, where the last does. Elements have 1,
/// 2, 4 or 8 bytes; both slices hold all of them.
pub(super) fn transpose(from: &[u8], to: &mut [u8], shape: &[usize], size: usize) {
    match size {
        1 => transpose_each::<1>(from, to, shape),
        2 => transpose_each::<2>(from, to, shape),
        4 => transpose_each::<4>(from, to, shape),
        8 => transpose_each::<8>(from, to, shape),
        _ => {}
    }
}

fn transpose_each<const SIZE: usize>(from: &[u8], to: &mut [u8], shape: &[usize]) {
    let (from, to) = (from.as_chunks::<SIZE>().0, to.as_chunks_mut::<SIZE>().0);
    // Axes of length 1 change nothing.
    let shape: Vec<usize> = shape.iter().copied().filter(|axis| *axis != 1).collect();
    let [first, middle @ .., last] = &shape[..] else {
        to.copy_from_slice(from);
        return;
    };
    let (first, last) = (*first, *last);
    // Each step of the first axis moves by 1 in `from` and by `across` in `to`; each of the last by `along` in `from` and by 1 in `to`.
    let across = middle.iter().product::<usize>() * last;
    let along = middle.iter().product::<usize>() * first;
    // The strides of each middle axis, in both.
    let (mut source, mut target) = (first, across);
    let strides: Vec<(usize, usize, usize)> = middle
        .iter()
        .map(|axis| {
            target /= axis;
            let strides = (*axis, source, target);
            source *= axis;
            strides
        })
        .collect();
    for right in (0..last).step_by(TILE) {
        let columns = right..last.min(right + TILE);
        for top in (0..first).step_by(TILE) {
            let rows = top..first.min(top + TILE);
            let mut index = vec![0; strides.len()];
            let (mut read, mut write) = (0, 0);
            loop {
                for row in rows.clone() {
                    let line = &mut to[write + row * across..][columns.clone()];
                    for (column, element) in columns.clone().zip(line) {
                        *element = from[read + row + column * along];
                    }
                }
                // The next place of the middle axes, the first of them fastest: it is the nearest one in `from`.
                let mut axis = 0;
                while let Some((len, source, target)) = strides.get(axis) {
                    index[axis] += 1;
                    (read, write) = (read + source, write + target);
                    if index[axis] < *len {
                        break;
                    }
                    (read, write) = (read - len * source, write - len * target);
                    index[axis] = 0;
                    axis += 1;
                }
                if axis == strides.len() {
                    break;
                }
            }
        }
    }
}

/// The place of each element in an array of Fortran order, taken in C order.
pub(super) fn places(shape: &[usize], fortran: bool) -> impl Iterator<Item = usize> {
    let count = shape.iter().product();
    let mut strides = vec![1_usize; shape.len()];
    for axis in 1..shape.len() {
        strides[axis] = strides[axis - 1].saturating_mul(shape[axis - 1]);
    }
    let shape = shape.to_vec();
    let mut index = vec![0; shape.len()];
    let mut place = 0;
    (0..count).map(move |at| {
        if !fortran {
            return at;
        }
        let own = place;
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            place += strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            place -= strides[axis] * shape[axis];
            index[axis] = 0;
        }
        own
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_finds_its_place() {
        for shape in [
            &[][..],
            &[7],
            &[2, 3],
            &[33, 65],
            &[3, 5, 4],
            &[40, 3, 70],
            &[2, 1, 3, 4, 5],
            &[1, 9, 1],
            &[70, 2, 2, 2, 33],
        ] {
            let count: usize = shape.iter().product();
            let places: Vec<usize> = places(shape, true).collect();
            let from: Vec<u8> = (0..count as u32).flat_map(u32::to_le_bytes).collect();
            let mut to = vec![0; from.len()];
            transpose(&from, &mut to, shape, 4);
            let to: Vec<usize> = to.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize).collect();
            assert_eq!(to, places, "{shape:?}");
            // By the definition: the index of the k-th element in C order, put in Fortran order.
            for (k, place) in places.iter().enumerate() {
                let (mut rest, mut expected) = (k, 0);
                let mut index = vec![0; shape.len()];
                for axis in (0..shape.len()).rev() {
                    (index[axis], rest) = (rest % shape[axis], rest / shape[axis]);
                }
                for axis in (0..shape.len()).rev() {
                    expected = expected * shape[axis] + index[axis];
                }
                assert_eq!(*place, expected, "{shape:?} {k}");
            }
        }
    }
}
