//! The checksums of a whole object, which lie beside its file: the file itself has the object's bytes and no others.
//!
//! ```text
//!   magic, object, size, proof, checksum of all this and of the list │ checksums, one for each 64 KiB
//! ```
//! A file of many gigabytes is not read again by everybody who opens it. The proof says that it was read and found good, and stands for the
//! file as it was then: its inode, its time, and the start of the machine since. Any write to the file changes its time, and a power cut is
//! followed by another start.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;

use super::block::Block;
use super::directory::readable;
use super::file::{self, Bad, HEAD, PIECE};
use super::ledger::boot;

const MAGIC: [u8; 8] = *b"BOWWHOL1";
const PROOF: std::ops::Range<usize> = 32..48;

/// Pieces that are read at once for a check.
const PIECES_AT_ONCE: usize = 64;

/// What the checksums beside a file say of it.
#[derive(Debug)]
pub(super) enum Beside {
    /// It was found good, and has not been written since.
    Proven,
    /// It has to be checked.
    Unproven(Vec<u8>),
}

/// The checksums `sums` of `file`, which is `block` and was found good, as they lie beside it.
pub(super) fn proven(file: &File, block: &Block, sums: &[u8]) -> io::Result<Vec<u8>> {
    Ok(whole(block, proof(file)?, sums))
}

fn whole(block: &Block, proof: [u8; 16], sums: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(HEAD + sums.len());
    all.extend_from_slice(&MAGIC);
    all.extend_from_slice(&block.object.0);
    all.extend_from_slice(&block.end.to_le_bytes());
    all.extend_from_slice(&proof);
    let sum = XxHash3_64::oneshot(&[&all, sums].concat());
    all.extend_from_slice(&sum.to_le_bytes());
    all.extend_from_slice(sums);
    all
}

/// Reads what `beside` says of `file`, which is `block`.
pub(super) fn read(beside: &mut File, file: &File, block: &Block) -> Result<Beside, Bad> {
    if file.metadata()?.len() != block.end {
        return Err(Bad::Damaged("it has another length"));
    }
    let length = beside.metadata()?.len();
    if length != HEAD as u64 + 8 * file::pieces(block.end) {
        return Err(Bad::Damaged("its checksums are not all there"));
    }
    let mut all = vec![0; usize::try_from(length).map_err(|_| Bad::Damaged("it is too large"))?];
    beside.seek(SeekFrom::Start(0))?;
    beside.read_exact(&mut all)?;
    let said: [u8; 16] = all.get(PROOF).and_then(|said| said.try_into().ok()).unwrap_or_default();
    let sums = all.get(HEAD..).unwrap_or_default();
    if all.get(..HEAD) != whole(block, said, sums).get(..HEAD) {
        return Err(Bad::Damaged("its checksums are those of another one, or damaged"));
    }
    Ok(if said == proof(file)? { Beside::Proven } else { Beside::Unproven(sums.to_vec()) })
}

/// Compares `file` with its checksums.
pub(super) fn compare(file: &File, sums: &[u8]) -> Result<(), Bad> {
    let (mut file, mut sums) = (file, sums.chunks_exact(8));
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = vec![0; PIECES_AT_ONCE * PIECE as usize];
    loop {
        let mut length = 0;
        while let Some(left) = bytes.get_mut(length..).filter(|left| !left.is_empty()) {
            match file.read(left)? {
                0 => break,
                read => length += read,
            }
        }
        for piece in bytes.get(..length).unwrap_or_default().chunks(PIECE as usize) {
            if sums.next() != Some(&XxHash3_64::oneshot(piece).to_le_bytes()[..]) {
                return Err(Bad::Damaged("a checksum does not agree"));
            }
        }
        if length < bytes.len() {
            break;
        }
    }
    if sums.next().is_some() { Err(Bad::Damaged("it is cut off")) } else { Ok(()) }
}

/// Reads all of `file`, which is `block` with these checksums beside it.
pub(super) fn check(file: &File, block: &Block, beside: &Path) -> Result<(), Bad> {
    compare(file, &sums(file, block, beside)?)
}

/// The checksums of `file`, which is `block`, that lie `beside` it.
pub(super) fn sums(file: &File, block: &Block, beside: &Path) -> Result<Vec<u8>, Bad> {
    let mut opened = match readable(beside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Bad::Damaged("it has no checksums")),
        opened => opened?,
    };
    match read(&mut opened, file, block)? {
        Beside::Unproven(sums) => Ok(sums),
        Beside::Proven => {
            opened.seek(SeekFrom::Start(HEAD as u64))?;
            let mut sums = Vec::new();
            opened.read_to_end(&mut sums)?;
            Ok(sums)
        }
    }
}

/// Says in `beside` that `file` was found good just now.
pub(super) fn prove(beside: &mut File, file: &File, block: &Block, sums: &[u8]) -> io::Result<()> {
    let all = proven(file, block, sums)?;
    beside.seek(SeekFrom::Start(0))?;
    beside.write_all(all.get(..HEAD).unwrap_or_default())
}

/// A digest that changes with each write to `file`, and each start of the machine.
fn proof(file: &File) -> io::Result<[u8; 16]> {
    let found = file.metadata()?;
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&found);
    #[cfg(not(unix))]
    let inode = 0_u64;
    let modified = found.modified()?.duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_nanos();
    let mut all = boot().to_vec();
    all.extend_from_slice(&inode.to_le_bytes());
    all.extend_from_slice(&modified.to_le_bytes());
    let mut proof = [0; 16];
    proof.iter_mut().zip(Sha256::digest(&all)).for_each(|(to, from)| *to = from);
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use super::super::block::ObjectKey;
    use super::*;

    fn content(length: u64) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn a_file_is_proven_until_it_is_written_to_and_damage_is_seen() {
        let root = tempfile::tempdir().unwrap();
        for length in [0, 1, PIECE, PIECE + 1, 65 * PIECE + 17] {
            let (path, beside) = (root.path().join("file"), root.path().join("file.sums"));
            let (block, bytes) = (Block::whole(ObjectKey([1; 16]), length), content(length));
            std::fs::write(&path, &bytes).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let sums = file::sums(&bytes);
            std::fs::write(&beside, proven(&file, &block, &sums).unwrap()).unwrap();
            let mut opened = File::options().read(true).write(true).open(&beside).unwrap();
            assert_eq!(
                file::size(length),
                file.metadata().unwrap().len() + opened.metadata().unwrap().len(),
                "what the ledger counts"
            );
            assert!(matches!(read(&mut opened, &file, &block), Ok(Beside::Proven)));
            check(&file, &block, &beside).unwrap();
            let other = Block::whole(ObjectKey([2; 16]), length);
            assert!(matches!(read(&mut opened, &file, &other), Err(Bad::Damaged(_))));
            if length == 0 {
                continue;
            }
            file.set_modified(UNIX_EPOCH).unwrap();
            let Ok(Beside::Unproven(found)) = read(&mut opened, &file, &block) else { panic!("it was touched") };
            compare(&file, &found).unwrap();
            prove(&mut opened, &file, &block, &found).unwrap();
            assert!(matches!(read(&mut opened, &file, &block), Ok(Beside::Proven)));
            for at in [0, length / 2, length - 1] {
                let mut wrong = bytes.clone();
                wrong[at as usize] ^= 1;
                std::fs::write(&path, &wrong).unwrap();
                assert!(matches!(check(&file, &block, &beside), Err(Bad::Damaged(_))), "byte {at}");
            }
            std::fs::write(&path, &bytes).unwrap();
            let mut wrong = std::fs::read(&beside).unwrap();
            for at in (0..wrong.len()).step_by(7) {
                wrong[at] ^= 1;
                std::fs::write(&beside, &wrong).unwrap();
                assert!(matches!(check(&file, &block, &beside), Err(Bad::Damaged(_))), "byte {at} of the checksums");
                wrong[at] ^= 1;
            }
            std::fs::remove_file(&beside).unwrap();
            assert!(matches!(check(&file, &block, &beside), Err(Bad::Damaged(_))));
        }
    }
}
