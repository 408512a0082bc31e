//! The key that signs tickets and those before it: keys rotate without a restart and without invalidating good tickets.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::secret::read_private;
use crate::error::{Error, Result};
use crate::flight::server::catalog::watched::Watched;
use crate::flight::ticket::TICKET_LIFE;

/// Fewest bytes of a key.
const MIN_KEY: usize = 32;
/// Most bytes of a key.
const MAX_KEY: u64 = 4096;
/// Prefix of the lines in a file of several keys.
const HEX: &str = "hex:";
/// Most keys in a file.
const MAX_KEYS: usize = 4;

type Bytes = Arc<[u8]>;

/// Keys that are valid at the same time.
struct Ring {
    /// At least one; the first signs.
    keys: Vec<Bytes>,
    /// Previous signing keys while their tickets are valid, the last one first.
    former: Vec<(Bytes, Instant)>,
}

impl Ring {
    /// Returns the former keys once `next` signs.
    fn followed_by(&self, next: &Bytes, now: Instant) -> Vec<(Bytes, Instant)> {
        let replaced = (Arc::clone(&self.keys[0]), now + TICKET_LIFE);
        let former = std::iter::once(&replaced).chain(&self.former);
        former.filter(|(key, until)| key != next && now < *until).take(MAX_KEYS - 1).cloned().collect()
    }
}

/// The key that signs tickets (HMAC-SHA-256) and those whose tickets are accepted. Replicas that accept each other's tickets have the
/// same keys. Clones share them.
#[derive(Clone)]
pub struct TicketKey(Watched<Ring>);

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(***)")
    }
}

impl TicketKey {
    /// Makes a fresh key of 32 bytes: its tickets end with this process.
    ///
    /// # Errors
    /// [`Error::Config`] where the system gives no random bytes.
    pub fn random() -> Result<Self> {
        let mut key = [0; MIN_KEY];
        std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut key)).map_err(|error| {
            Error::config("key_file", format!("/dev/urandom gives no random key ({error}); give a file of 32 bytes"))
        })?;
        Ok(Self(Watched::fixed(Ring { keys: vec![Arc::from(key)], former: Vec::new() })))
    }

    /// Reads the key from the file at `path`: either all of its bytes, or lines of `hex:` and hexadecimal digits, of which the first
    /// signs and all are accepted. A key has 32 to 4096 bytes. The file must be readable by its owner alone, and is checked again once
    /// a second: a replaced key of raw bytes is accepted for 15 more minutes, until its last ticket has expired, as one of the last
    /// three.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let watched = Watched::files("ticket key", vec![path.to_owned()], |paths, former: Option<&Ring>| {
            let (keys, told) = read(&paths[0])?;
            // A file of lines lists the accepted keys itself.
            let former = former.filter(|_| !told).map(|before| before.followed_by(&keys[0], Instant::now()));
            Ok(Ring { keys, former: former.unwrap_or_default() })
        })?;
        Ok(Self(watched))
    }

    /// Returns the bytes of the key that signs.
    pub fn bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.0.get().keys[0])
    }

    /// Returns the bytes of all keys whose tickets are accepted, the signing key first.
    pub fn taken(&self) -> Vec<Arc<[u8]>> {
        self.taken_at(Instant::now())
    }

    fn taken_at(&self, now: Instant) -> Vec<Arc<[u8]>> {
        let ring = self.0.get();
        let former = ring.former.iter().filter(|(_, until)| now < *until).map(|(key, _)| key);
        ring.keys.iter().chain(former).cloned().collect()
    }

    /// Reads the file now, changed or not; a wrong version changes nothing.
    pub fn reload(&self) {
        self.0.reload();
    }
}

/// Reads the keys of a file, and true if it lists them as lines.
fn read(path: &Path) -> Result<(Vec<Bytes>, bool)> {
    let bytes = read_private(path, "key_file", MAX_KEY * 2 * MAX_KEYS as u64)?;
    let wrong = |problem: String| Error::config("key_file", format!("file {}: {problem}", path.display()));
    let lines = std::str::from_utf8(&bytes).ok().filter(|text| text.starts_with(HEX));
    let Some(text) = lines else { return Ok((vec![checked(bytes).map_err(wrong)?], false)) };
    let key = |(number, line): (usize, &str)| {
        let digits = line.trim().strip_prefix(HEX);
        let key = digits.and_then(crate::flight::gang::wire::from_hex);
        let key = key.ok_or_else(|| format!("line {number} is not `hex:` and hexadecimal digits"));
        key.and_then(checked).map_err(wrong)
    };
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let keys = lines.map(key).collect::<Result<Vec<_>>>()?;
    if keys.len() > MAX_KEYS {
        return Err(wrong(format!("{} keys are too many, {MAX_KEYS} may be good at once", keys.len())));
    }
    Ok((keys, true))
}

/// Returns `bytes` as a key, or the reason why they are none.
fn checked(bytes: Vec<u8>) -> Result<Bytes, String> {
    if bytes.len() < MIN_KEY {
        let few = bytes.len();
        return Err(format!("{few} bytes are too few, {MIN_KEY} are needed; make one with `head -c 32 /dev/urandom`"));
    }
    if bytes.len() as u64 > MAX_KEY {
        return Err(format!("a key has more than {MAX_KEY} bytes"));
    }
    let mut seen = [false; 256];
    bytes.iter().for_each(|byte| seen[usize::from(*byte)] = true);
    if seen.iter().filter(|seen| **seen).count() < 8 {
        return Err("hardly any two bytes differ: this is no random key".to_owned());
    }
    Ok(Arc::from(bytes))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;
    use std::time::SystemTime;

    use super::*;
    use crate::flight::gang::wire::to_hex;
    use crate::flight::ticket::{self, Ticket};

    fn file(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("key")
    }

    fn write(path: &Path, bytes: &[u8]) {
        std::fs::write(path, bytes).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn keys_are_long_private_and_random() {
        let (one, other) = (TicketKey::random().unwrap(), TicketKey::random().unwrap());
        assert!(one.bytes().len() == 32 && one.bytes() != other.bytes());
        assert_eq!(format!("{one:?}"), "TicketKey(***)");
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        let hex = |bytes: &[u8]| format!("hex:{}\n", to_hex(bytes)).into_bytes();
        for (bytes, what) in [
            (vec![1; 31], "too few"),
            (vec![1; 64], "no random key"),
            (vec![7; 40_000], "more than"),
            ((0..5000).map(|at| at as u8).collect(), "more than 4096"),
            (b"hex:xy".to_vec(), "line 1 is not"),
            ([hex(&one.bytes()), b"more\n".to_vec()].concat(), "line 2 is not"),
            (hex(&[1; 31]), "too few"),
            (hex(&one.bytes()).repeat(5), "5 keys are too many"),
        ] {
            write(&path, &bytes);
            let error = TicketKey::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(what) && !error.contains(&to_hex(&one.bytes())), "{error}");
        }
        write(&path, &one.bytes());
        assert_eq!(TicketKey::from_file(&path).unwrap().bytes(), one.bytes());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(TicketKey::from_file(&path).is_err());
    }

    #[test]
    fn two_keys_are_good_at_once_and_the_newest_signs() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory);
        let keys: Vec<Bytes> = (0..4).map(|_| TicketKey::random().unwrap().bytes()).collect();
        write(&path, &keys[0]);
        let key = TicketKey::from_file(&path).unwrap();
        let ticket = Ticket::sample();
        let good = |key: &TicketKey, signed: &[u8]| Ticket::verify_any(signed, &key.taken(), SystemTime::UNIX_EPOCH);
        let old = ticket.sign(&key.bytes());
        write(&path, &keys[1]);
        key.clone().reload();
        assert_eq!(key.bytes(), keys[1]);
        let new = ticket.sign(&key.bytes());
        assert_eq!((good(&key, &old), good(&key, &new)), (Ok(ticket.clone()), Ok(ticket.clone())));
        // Reading the same key again is no rotation.
        key.reload();
        assert!(good(&key, &old).is_ok());
        let later = Instant::now() + TICKET_LIFE;
        assert_eq!(key.taken_at(later), keys[1..2], "no ticket of the former key is good any more");
        write(&path, b"broken");
        key.reload();
        assert_eq!((key.bytes(), good(&key, &old).is_ok()), (Arc::clone(&keys[1]), true));
        write(&path, &keys[2]);
        key.reload();
        assert!(good(&key, &old).is_ok() && good(&key, &new).is_ok(), "two rotations within the life of a ticket");
        // A key that comes back is no former one; of more than three, the last are good.
        for keys in [[&keys[1], &keys[2]], [&keys[3], &TicketKey::random().unwrap().bytes()]].concat() {
            write(&path, keys);
            key.reload();
        }
        assert_eq!(key.taken().len(), MAX_KEYS);
        assert_eq!(good(&key, &old), Err(ticket::Denied::Forged), "the oldest of five");
        assert!(good(&key, &new).is_ok());
        write(&path, &keys[2]);
        key.reload();
        // Lines: a replica accepts what another one signs with a key that does not sign here yet, and nothing else.
        let lines: String = [&keys[2], &keys[3]].iter().map(|key| format!("hex:{}\n", to_hex(key))).collect();
        write(&path, lines.as_bytes());
        key.reload();
        assert_eq!((key.bytes(), key.taken()), (Arc::clone(&keys[2]), keys[2..].to_vec()));
        write(&path, format!("hex:{}", to_hex(&keys[3])).as_bytes());
        key.reload();
        assert_eq!(key.taken(), keys[3..], "a key that leaked is taken away at once");
    }
}
