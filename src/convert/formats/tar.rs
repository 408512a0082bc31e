//! Tar files, read sequentially: nothing is extracted, and no name is used as a path.
//!
//! Only regular files are members, but for those that webdataset skips, such as `__index__/info.json`. Links, devices and sparse files are refused, as are names that lead outside, and long names and
//! extended headers of more than a megabyte. The crate `tar` reads long names and extended headers whole before they can be refused,
//! and its errors have no offset.

use std::path::Path;
use std::sync::Arc;

use crate::convert::limits::Limits;
use crate::convert::read::files::Found;
use crate::convert::read::input::Input;
use crate::error::{Error, Place, Result};

const BLOCK: u64 = 512;

/// Most bytes of a long name or an extended header.
const MAX_HEADER: u64 = 1 << 20;

/// Most bytes reserved for a member before they are read.
const TRUSTED: usize = 1 << 20;

/// Most consecutive extended headers.
const MAX_EXTENDED: usize = 16;

/// A file in a tar file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, relative, with `/`, without `..`.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Offset of its header.
    pub offset: u64,
}

/// Returns true for the name of a member that is no part of a sample to webdataset: its first part is enclosed in `__`.
pub(crate) fn is_skipped(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or(name);
    first.strip_prefix("__").is_some_and(|rest| rest.ends_with("__"))
}

/// Reads the members of one tar file, plain or compressed with gzip or zstd.
#[derive(Debug)]
pub struct TarReader {
    input: Input,
    limits: Limits,
    /// Unread bytes of the current member, and the padding of its last block.
    left: u64,
    padding: u64,
    ended: bool,
}

impl TarReader {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// `NotFound`, `Store`.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        Self::of(&Found::of(path)?, limits)
    }

    pub(crate) fn of(found: &Found, limits: &Limits) -> Result<Self> {
        Ok(Self { input: Input::open(found, false)?, limits: limits.clone(), left: 0, padding: 0, ended: false })
    }

    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    /// Returns the next file; `None` at the end. Unread bytes of the previous one are skipped.
    ///
    /// # Errors
    /// `Corrupt` with the offset for a damaged header, a truncated member, a name that leads outside, a link, a device or a sparse
    /// file; `Limit` for headers that are too long.
    pub fn entry(&mut self) -> Result<Option<Entry>> {
        let (mut name, mut size) = (None::<String>, None::<u64>);
        let mut extended = 0;
        while !self.ended {
            let rest = self.left + self.padding;
            if self.input.skip(rest)? < rest {
                return Err(self.input.corrupt(self.input.offset(), "it ends within a member"));
            }
            (self.left, self.padding) = (0, 0);
            let offset = self.input.offset();
            let mut block = [0; BLOCK as usize];
            match self.input.fill(&mut block)? as u64 {
                BLOCK => {}
                0 => return Err(self.input.corrupt(offset, "it ends without its end mark: it may be cut short")),
                _ => return Err(self.input.corrupt(offset, "it ends within a header")),
            }
            if block.iter().all(|byte| *byte == 0) {
                self.ended = true;
                self.trailing()?;
                break;
            }
            let header = Header::new(&block).map_err(|what| self.input.corrupt(offset, what))?;
            let kind = header.kind;
            let bytes = size.take_if(|_| !matches!(kind, b'x' | b'g' | b'L' | b'K')).unwrap_or(header.size);
            self.left = bytes;
            self.padding = (BLOCK - bytes % BLOCK) % BLOCK;
            if self.left.checked_add(self.padding).is_none() {
                return Err(self.input.corrupt(offset, "a member claims more bytes than there are numbers"));
            }
            match kind {
                b'L' | b'x' | b'g' | b'K' => {
                    extended += 1;
                    if extended > MAX_EXTENDED {
                        return Err(self.input.corrupt(offset, "too many extended headers follow each other"));
                    }
                    let content = self.header_content(bytes, offset)?;
                    if kind == b'L' {
                        let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
                        name = Some(self.text(content.get(..end).unwrap_or_default(), offset)?);
                    } else if kind == b'x' {
                        let pax = pax(&content).map_err(|what| self.input.corrupt(offset, what))?;
                        for (key, value) in pax {
                            match key {
                                b"path" => name = Some(self.text(value, offset)?),
                                b"size" => {
                                    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                                    let number =
                                        number.ok_or_else(|| self.input.corrupt(offset, "a size is not a number"))?;
                                    size = Some(number);
                                }
                                key if key.starts_with(b"GNU.sparse") => {
                                    return Err(self.refused(offset, "a sparse file"));
                                }
                                _ => {}
                            }
                        }
                    }
                }
                b'0' | 0 | b'7' => {
                    let name = match name.take() {
                        Some(name) => name,
                        None => self.text(&header.name, offset)?,
                    };
                    // Old archives mark directories only by a trailing slash.
                    if name.ends_with('/') && bytes == 0 {
                        continue;
                    }
                    let is_skipped = is_skipped(&name);
                    let name = self.safe(&name, offset)?;
                    if is_skipped {
                        continue;
                    }
                    return Ok(Some(Entry { name, size: bytes, offset }));
                }
                b'5' => name = None,
                b'1' => return Err(self.refused(offset, "a hard link")),
                b'2' => return Err(self.refused(offset, "a symbolic link")),
                b'S' => return Err(self.refused(offset, "a sparse file")),
                b'3' | b'4' | b'6' => return Err(self.refused(offset, "a device")),
                other => return Err(self.refused(offset, &format!("a member of kind {:?}", char::from(other)))),
            }
        }
        Ok(None)
    }

    /// Appends the bytes of the current member to `out`.
    ///
    /// # Errors
    /// `Limit` if they are too many, before any is read; `Corrupt` if it is truncated.
    pub fn read(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let at = self.input.offset();
        self.limits.record(self.input.name(), || format!("byte {at}: a member"), self.left)?;
        let left = std::mem::take(&mut self.left);
        // The declared size reserves no more than this.
        out.reserve_exact(usize::try_from(left).unwrap_or(usize::MAX).min(TRUSTED));
        if self.input.append(left, out)? < left {
            return Err(self.input.corrupt(at, format!("it ends within a member of {left} bytes")));
        }
        Ok(())
    }

    /// Checks that only zeros follow the end mark: a second archive would be lost.
    fn trailing(&mut self) -> Result<()> {
        loop {
            let at = self.input.offset();
            let buffer = self.input.peek()?;
            if buffer.is_empty() {
                return Ok(());
            }
            if buffer.iter().any(|byte| *byte != 0) {
                return Err(self
                    .input
                    .corrupt(at, "data follows the end mark; archives joined by cat are not one archive"));
            }
            let len = buffer.len();
            self.input.consume(len);
        }
    }

    fn header_content(&mut self, bytes: u64, offset: u64) -> Result<Vec<u8>> {
        if bytes > MAX_HEADER {
            let what = format!("byte {offset}: a long name or extended header");
            return Err(Error::limit(what, bytes, MAX_HEADER, "the size of headers")
                .at(Place::file(Arc::clone(self.input.name()))));
        }
        let mut content = Vec::new();
        if self.input.append(bytes, &mut content)? < bytes {
            return Err(self.input.corrupt(offset, "it ends within an extended header"));
        }
        self.left = 0;
        Ok(content)
    }

    fn text(&self, bytes: &[u8], offset: u64) -> Result<String> {
        let text = std::str::from_utf8(bytes).map_err(|_| self.input.corrupt(offset, "a name is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn refused(&self, offset: u64, what: &str) -> Error {
        self.input.corrupt(offset, format!("it holds {what}, which no sample is"))
    }

    /// Returns the name if it stays within the archive.
    fn safe(&self, name: &str, offset: u64) -> Result<String> {
        let short = name.strip_prefix("./").unwrap_or(name);
        let bad = short.is_empty()
            || short.starts_with('/')
            || short.contains(['\0', '\\'])
            || short.split('/').any(|part| matches!(part, "" | "." | ".."));
        if bad {
            let shown: String = name.chars().take(80).collect();
            return Err(self.input.corrupt(offset, format!("the name {shown:?} leads elsewhere")));
        }
        Ok(short.to_owned())
    }
}

/// A checked header block.
struct Header {
    name: Vec<u8>,
    size: u64,
    kind: u8,
}

impl Header {
    fn new(block: &[u8; BLOCK as usize]) -> Result<Self, String> {
        let claimed = octal(&block[148..156]).ok_or("the checksum of a header is not a number")?;
        let sum = |signed: bool| -> i64 {
            let value = |byte: u8| if signed { i64::from(byte as i8) } else { i64::from(byte) };
            let field = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { value(*byte) };
            block.iter().enumerate().map(field).sum()
        };
        // Some old writers summed signed bytes.
        if i64::try_from(claimed).is_ok_and(|claimed| claimed != sum(false) && claimed != sum(true)) {
            return Err("the checksum of a header is wrong".to_owned());
        }
        let size = number(&block[124..136]).ok_or("the size of a member is not a number")?;
        let cut = |bytes: &[u8]| -> Vec<u8> { bytes.iter().copied().take_while(|byte| *byte != 0).collect() };
        let mut name = cut(&block[..100]);
        // GNU's old format has times where ustar has the prefix of the name.
        if block[257..263] == *b"ustar\0" {
            let prefix = cut(&block[345..500]);
            if !prefix.is_empty() {
                name = [&prefix[..], b"/", &name].concat();
            }
        }
        Ok(Self { name, size, kind: block[156] })
    }
}

/// Parses octal digits up to a zero byte.
fn octal(field: &[u8]) -> Option<u64> {
    let text = field.split(|byte| matches!(byte, 0)).next()?.trim_ascii();
    if text.is_empty() {
        return Some(0);
    }
    text.iter().try_fold(0_u64, |sum, byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// Parses octal digits, or base 256 if the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        Some((0x80, rest)) => {
            rest.iter().try_fold(0_u64, |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)))
        }
        Some((first, _)) if *first > 0x80 => None,
        _ => octal(field),
    }
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Parses the records `LENGTH KEY=VALUE\n` of an extended header.
fn pax(content: &[u8]) -> Result<Pairs<'_>, &'static str> {
    const WRONG: &str = "an extended header is damaged";
    let mut pairs = Vec::new();
    let mut rest = content;
    while !rest.is_empty() && rest[0] != 0 {
        let space = rest.iter().take(20).position(|byte| *byte == b' ').ok_or(WRONG)?;
        let len: usize = std::str::from_utf8(&rest[..space]).ok().and_then(|text| text.parse().ok()).ok_or(WRONG)?;
        let record = rest.get(space + 1..len).and_then(|record| record.strip_suffix(b"\n")).ok_or(WRONG)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(WRONG)?;
        pairs.push((&record[..equals], &record[equals + 1..]));
        rest = &rest[len..];
    }
    Ok(pairs)
}

/// Appends a member to a tar file: its header, with a long name if needed, its content, and padding.
pub(crate) fn write_member(name: &str, content: &[u8], out: &mut Vec<u8>) {
    if name.len() > 100 {
        // GNU's long name, which every reader supports.
        let mut long = name.as_bytes().to_vec();
        long.push(0);
        member("././@LongLink", b'L', &long, out);
    }
    member(name, b'0', content, out);
}

fn member(name: &str, kind: u8, content: &[u8], out: &mut Vec<u8>) {
    let mut block = [0_u8; BLOCK as usize];
    let mut put = |at: usize, text: &[u8]| {
        if let Some(field) = block.get_mut(at..at + text.len()) {
            field.copy_from_slice(text);
        }
    };
    put(0, name.as_bytes().get(..name.len().min(100)).unwrap_or_default());
    put(100, b"0000444\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    let size = content.len() as u64;
    if size < 1 << 33 {
        put(124, format!("{size:011o}\0").as_bytes());
    } else {
        put(124, &[0x80, 0, 0, 0]);
        put(128, &size.to_be_bytes());
    }
    // No time: the same rows always give the same bytes.
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar  \0");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    if let Some(field) = block.get_mut(148..156) {
        field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    out.extend_from_slice(&block);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
}

/// The end mark.
pub(crate) const END: [u8; 2 * BLOCK as usize] = [0; 2 * BLOCK as usize];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.tar");
        std::fs::write(&path, bytes).unwrap();
        let mut reader = TarReader::open(&path, &Limits::default())?;
        let mut found = Vec::new();
        while let Some(entry) = reader.entry()? {
            let mut content = Vec::new();
            reader.read(&mut content)?;
            found.push((entry.name, content));
        }
        Ok(found)
    }

    /// Makes a member with a modified header.
    fn odd(name: &str, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut out = Vec::new();
        member(name, b'0', b"abc", &mut out);
        change(&mut out);
        out[148..156].copy_from_slice(b"        ");
        let sum: u64 = out[..512].iter().map(|byte| u64::from(*byte)).sum();
        out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&END);
        out
    }

    #[test]
    fn members_come_back_with_long_names_too() {
        let long = format!("{}/x.jpg", "d".repeat(300));
        let mut out = Vec::new();
        write_member("a.txt", b"hello", &mut out);
        write_member(&long, &[7; 1000], &mut out);
        write_member("empty.bin", b"", &mut out);
        out.extend_from_slice(&END);
        let expected =
            [("a.txt".to_owned(), b"hello".to_vec()), (long, vec![7; 1000]), ("empty.bin".to_owned(), Vec::new())];
        assert_eq!(read(&out).unwrap(), expected);
        for cut in [100, 512, 515, 1024, out.len() - 1024] {
            assert!(read(&out[..cut]).is_err(), "{cut}");
        }
        let joined = [&out[..], &out[..]].concat();
        assert!(read(&joined).unwrap_err().to_string().contains("end mark"));
    }

    #[test]
    fn what_webdataset_skips_is_no_member() {
        // webdataset matches names with `__[^/]*__($|/)` as they are stored.
        let skipped = ["__index__/info.json", "__a__/b/c.txt", "____/x.txt", "__a.b__/x.txt", "__meta__", "__a.b__"];
        let given =
            ["__a/x.txt", "a__/x.txt", "b/__a__/x.txt", "___/x.txt", "__a__.txt", "./__a__/x.txt", "__a__b/x.txt"];
        let mut out = Vec::new();
        for name in skipped.iter().chain(&given) {
            write_member(name, name.as_bytes(), &mut out);
        }
        out.extend_from_slice(&END);
        let found = read(&out).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, given.map(|name| name.trim_start_matches("./")));
        assert!(found.iter().all(|(name, content)| content.ends_with(name.as_bytes())), "the bytes of another one");
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for name in ["../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "a//x.jpg", "a\\x.jpg", "."] {
            assert!(read(&odd(name, |_| ())).unwrap_err().to_string().contains("leads elsewhere"), "{name}");
        }
        for kind in [b'1', b'2', b'S', b'3', b'4', b'6', b'?'] {
            let error = read(&odd("a.jpg", |block| block[156] = kind)).unwrap_err().to_string();
            assert!(error.contains("which no sample is") && error.contains("byte 0"), "{error}");
        }
        let huge = odd("a.jpg", |block| block[124..136].copy_from_slice(b"77777777777\0"));
        assert!(matches!(read(&huge), Err(Error::Limit { .. })));
        let larger = odd("a.jpg", |block| {
            block[124..136].copy_from_slice(&[0x80, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255])
        });
        assert!(read(&larger).is_err());
        let name = odd("x", |block| {
            block[156] = b'L';
            block[124..136].copy_from_slice(b"00100000000\0");
        });
        assert!(matches!(read(&name), Err(Error::Limit { .. })));
        let mut flipped = odd("a.jpg", |_| ());
        flipped[3] ^= 1;
        assert!(read(&flipped).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn extended_headers_are_read_within_reason() {
        let with = |content: &[u8]| {
            let mut out = Vec::new();
            member("pax", b'x', content, &mut out);
            member("short.txt", b'0', b"abc", &mut out);
            out.extend_from_slice(&END);
            read(&out)
        };
        assert_eq!(with(b"18 path=other.txt\n").unwrap()[0].0, "other.txt");
        assert!(with(b"17 path=../x.txt\n").unwrap_err().to_string().contains("elsewhere"));
        assert!(with(b"22 GNU.sparse.major=1\n").unwrap_err().to_string().contains("sparse"));
        for damaged in [&b"99 path=x\n"[..], b"x path=y\n", b"3 a\n", b"0 a=b\n", b"18 path=other.txtX"] {
            assert!(with(damaged).is_err(), "{damaged:?}");
        }
    }
}
