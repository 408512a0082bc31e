//! Reads of a file at a position. The place at which the file stands does not count, so that threads may share one.

use std::fs::File;
use std::io;

#[cfg(unix)]
fn once(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

#[cfg(windows)]
fn once(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, at)
}

/// Fills `bytes` with what `file` has from `at` on. Returns how many there are: fewer at its end.
pub(super) fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while let Some(left) = bytes.get_mut(read..).filter(|left| !left.is_empty()) {
        match once(file, left, at.saturating_add(read as u64)) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Fills `bytes` with what `file` has from `at` on; an error if it ends before.
pub(super) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    if read_at(file, bytes, at)? < bytes.len() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before what is read of it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_wherever_the_file_stands() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        let mut bytes = [0; 4];
        assert_eq!((read_at(&file, &mut bytes, 3).unwrap(), &bytes), (4, b"3456"));
        assert_eq!((read_at(&file, &mut bytes, 8).unwrap(), &bytes[..2]), (2, &b"89"[..]));
        assert_eq!((read_at(&file, &mut bytes, 100).unwrap(), read_at(&file, &mut [], 0).unwrap()), (0, 0));
        read_exact_at(&file, &mut bytes, 6).unwrap();
        assert_eq!(&bytes, b"6789");
        assert_eq!(read_exact_at(&file, &mut bytes, 7).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
