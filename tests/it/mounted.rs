//! A directory of a store that is mounted: what programs see that know only files. Needs /dev/fuse, and the right to mount.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowstring::store::{FileOptions, FileSystem, MountSource, Mounted, Mounts};
use bowstring::{Error, Loader};

use crate::dataset::{Marks, PINNED, Server};
use crate::support::{self, Random};

/// Longer than the tests, so that only what they do makes the store answer anew.
const TRUSTED: Duration = Duration::from_secs(600);

/// Tries it, and says why nothing is tested if the kernel refuses: some machines have no /dev/fuse, others let nobody mount.
fn cannot_mount() -> bool {
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = FileSystem::new(FileOptions::default()).unwrap();
    match Mounted::new(files, data.path().to_str().unwrap(), place.path(), TRUSTED) {
        Ok(mounted) => mounted.end().unwrap(),
        Err(Error::Store { operation, source, .. }) if operation == "mount" => {
            println!("skipped: nothing can be mounted here: {source}");
            return true;
        }
        Err(error) => panic!("{}", error.chain()),
    }
    false
}

fn files(server: &Server) -> FileSystem {
    FileSystem::new(FileOptions { storage_options: server.storage_options(), ..FileOptions::default() }).unwrap()
}

fn content(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..size).map(|_| random.next() as u8).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The number of an error of the system.
fn number<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn programs_see_the_files_of_a_store() {
    if cannot_mount() {
        return;
    }
    let (server, place) = (Server::start(), tempfile::tempdir().unwrap());
    let large = content(5 * (1 << 20) + 77, 1);
    server.put("bucket/d/large.bin", large.clone(), Marks { etag: Some("\"1\""), modified: Some(1) });
    server.put("bucket/d/empty", Vec::new(), PINNED);
    server.put("bucket/d/below/deeper/a%20%2523.txt", b"odd".to_vec(), PINNED);
    let mounted = Mounted::new(files(&server), "s3://bucket/d", place.path(), TRUSTED).unwrap();

    assert_eq!(names(place.path()), ["below", "empty", "large.bin"]);
    assert_eq!(names(&place.path().join("below/deeper")), ["a %23.txt"]);
    assert_eq!(fs::read(place.path().join("below/deeper/a %23.txt")).unwrap(), b"odd");
    assert_eq!(fs::read(place.path().join("empty")).unwrap(), b"");
    let path = place.path().join("large.bin");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o7777), (large.len() as u64, 0o444));
    assert!(metadata.mtime() > 1_700_000_000, "the time of the store");
    assert!(fs::metadata(place.path().join("below")).unwrap().is_dir());
    assert!(fs::read(&path).unwrap() == large);

    // In any order, and by several at once.
    let seed = support::variable("MOUNTED_SEED").map_or(3, |seed| seed.parse().unwrap());
    println!("MOUNTED_SEED={seed} cargo test --test it mounted::");
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (path, large) = (&path, &large);
            scope.spawn(move || {
                let (mut random, mut file) = (Random(seed + reader), fs::File::open(path).unwrap());
                for _ in 0..40 {
                    let at = random.index(large.len());
                    let length = random.pick(&[1, 100, 4096, 70_000, 1 << 20]).min(large.len() - at);
                    let mut bytes = vec![0; length];
                    file.seek(SeekFrom::Start(at as u64)).unwrap();
                    file.read_exact(&mut bytes).unwrap();
                    assert!(bytes == large[at..at + length], "{length} bytes at {at}");
                }
            });
        }
    });

    // Nothing is written, and nothing that is not there is seen.
    assert_eq!(number(fs::write(place.path().join("new"), b"x")), libc::EROFS);
    assert_eq!(number(fs::OpenOptions::new().write(true).open(&path)), libc::EROFS);
    assert_eq!(number(fs::remove_file(&path)), libc::EROFS);
    assert_eq!(fs::read(place.path().join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::read(place.path().join("below/missing")).unwrap_err().kind(), ErrorKind::NotFound);
    mounted.end().unwrap();
    assert_eq!(names(place.path()), Vec::<String>::new(), "it is unmounted");
}

#[test]
fn an_empty_folder_of_a_store_is_an_empty_directory() {
    if cannot_mount() {
        return;
    }
    for trusted in [TRUSTED, Duration::ZERO] {
        let (server, place) = (Server::start(), tempfile::tempdir().unwrap());
        server.put("bucket/d/", Vec::new(), PINNED);
        server.put("bucket/full/", Vec::new(), PINNED);
        server.put("bucket/full/x.bin", b"x".to_vec(), PINNED);
        let mounted = Mounted::new(files(&server), "s3://bucket", place.path(), trusted).unwrap();
        let empty = place.path().join("d");
        assert_eq!(names(place.path()), ["d", "full"]);
        assert_eq!(names(&place.path().join("full")), ["x.bin"]);
        assert_eq!(names(&empty), Vec::<String>::new());
        assert!(fs::metadata(&empty).unwrap().is_dir());
        assert_eq!(fs::read(empty.join("x.bin")).unwrap_err().kind(), ErrorKind::NotFound);
        server.remove("bucket/d/");
        if trusted.is_zero() {
            assert_eq!(fs::read_dir(&empty).unwrap_err().kind(), ErrorKind::NotFound, "it has gone");
            assert_eq!(names(place.path()), ["full"]);
        }
        mounted.end().unwrap();
    }
}

#[test]
fn an_open_file_stays_the_version_that_was_opened() {
    if cannot_mount() {
        return;
    }
    let (server, place) = (Server::start(), tempfile::tempdir().unwrap());
    let versions = [content(3 << 20, 1), content((3 << 20) + 5, 2)];
    let marks = |etag| Marks { etag: Some(etag), modified: None };
    server.put("bucket/x.bin", versions[0].clone(), marks("\"1\""));
    let mounted = Mounted::new(files(&server), "s3://bucket", place.path(), Duration::ZERO).unwrap();
    let path = place.path().join("x.bin");
    let mut old = fs::File::open(&path).unwrap();
    let mut begin = [0; 1000];
    old.read_exact(&mut begin).unwrap();
    assert!(begin == versions[0][..1000]);
    server.put("bucket/x.bin", versions[1].clone(), marks("\"2\""));
    let mut rest = Vec::new();
    assert_eq!(number(old.read_to_end(&mut rest)), libc::ESTALE, "never a mixture");
    assert!(versions[0][1000..].starts_with(&rest));
    assert!(fs::read(&path).unwrap() == versions[1]);
    assert_eq!(fs::metadata(&path).unwrap().len(), versions[1].len() as u64);
    // What the kernel has of the new one is not taken for the old one.
    old.seek(SeekFrom::Start(2 << 20)).unwrap();
    match old.read_exact(&mut begin) {
        Ok(()) => assert!(begin == versions[0][2 << 20..(2 << 20) + 1000]),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
    }
    assert_eq!(old.metadata().unwrap().len(), versions[0].len() as u64);
    server.remove("bucket/x.bin");
    assert_eq!(old.metadata().unwrap().len(), versions[0].len() as u64);
    drop(old);
    assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
    mounted.end().unwrap();
}

#[test]
fn small_files_of_a_list_cost_one_request_each_and_are_what_is_there_when_they_are_opened() {
    if cannot_mount() {
        return;
    }
    let (server, place) = (Server::start(), tempfile::tempdir().unwrap());
    let marks = |etag| Marks { etag: Some(etag), modified: None };
    for number in 0..20 {
        server.put(&format!("bucket/d/{number:02}"), content(5000 + number, 1), marks("\"1\""));
    }
    let mounted = Mounted::new(files(&server), "s3://bucket/d", place.path(), TRUSTED).unwrap();
    assert_eq!(names(place.path()).len(), 20);
    server.requests();
    for number in 0..20 {
        assert!(fs::read(place.path().join(format!("{number:02}"))).unwrap() == content(5000 + number, 1));
    }
    let asked = server.requests();
    assert_eq!(asked.len(), 20, "{asked:?}");
    assert_eq!(names(place.path()).len(), 20);
    assert_eq!(server.requests(), Vec::<String>::new(), "a list is believed as well");
    // Replaced since it was listed, also by one of another size.
    for (number, size) in [(3, 5003), (4, 9000), (5, 3 << 20)] {
        let path = place.path().join(format!("{number:02}"));
        server.put(&format!("bucket/d/{number:02}"), content(size, 2), marks("\"2\""));
        assert!(fs::read(&path).unwrap() == content(size, 2), "{size} bytes");
        assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
    }
    server.remove("bucket/d/06");
    assert_eq!(fs::read(place.path().join("06")).unwrap_err().kind(), ErrorKind::NotFound);
    mounted.end().unwrap();
}

#[test]
fn the_namespace_of_mounts_is_one_directory() {
    if cannot_mount() {
        return;
    }
    let (server, here, place) = (Server::start(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    server.put("bucket/models/a%2520b.bin", b"remote".to_vec(), PINNED);
    fs::write(here.path().join("x#1.bin"), b"local").unwrap();
    let options: Vec<_> = server.storage_options().iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
    let text = format!(
        "[mounts.\"data/models\"]\nurl = \"s3://bucket/models\"\nstorage_options = {{ {} }}\n[mounts.here]\nurl = {:?}\n",
        options.join(", "),
        here.path(),
    );
    let mounts = Mounts::from_toml(&text, "mounts.toml").unwrap();
    let options = FileOptions { mounts: Some(MountSource::Given(Arc::new(mounts))), ..FileOptions::default() };
    let mounted = Mounted::new(FileSystem::new(options).unwrap(), "bow://", place.path(), TRUSTED).unwrap();
    assert_eq!(fs::read(place.path().join("here/x#1.bin")).unwrap(), b"local", "before anything was listed");
    assert_eq!(names(place.path()), ["data", "here"]);
    assert_eq!(names(&place.path().join("data")), ["models"]);
    assert_eq!(names(&place.path().join("data/models")), ["a%20b.bin"]);
    assert_eq!(fs::read(place.path().join("data/models/a%20b.bin")).unwrap(), b"remote");
    assert_eq!(names(&place.path().join("here")), ["x#1.bin"]);
    assert_eq!(fs::read(place.path().join("here/x#1.bin")).unwrap(), b"local");
    assert_eq!(fs::read(place.path().join("other/x")).unwrap_err().kind(), ErrorKind::NotFound);
    mounted.end().unwrap();
}

#[test]
fn a_store_that_does_not_answer_holds_up_no_other() {
    if cannot_mount() {
        return;
    }
    let (slow, good, place) = (Server::start(), Server::start(), tempfile::tempdir().unwrap());
    // Not fetched as they are opened.
    let (readers, bytes) = (36, content((1 << 20) + 1, 1));
    (0..readers).for_each(|number| slow.put(&format!("bucket/{number}"), bytes.clone(), PINNED));
    good.put("bucket/x.bin", content(3000, 1), PINNED);
    let mount = |name: &str, server: &Server| {
        let options: Vec<_> =
            server.storage_options().iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
        format!("[mounts.{name}]\nurl = \"s3://bucket\"\nstorage_options = {{ {} }}\n", options.join(", "))
    };
    let mounts = Mounts::from_toml(&(mount("slow", &slow) + &mount("good", &good)), "mounts.toml").unwrap();
    let options = FileOptions { mounts: Some(MountSource::Given(Arc::new(mounts))), ..FileOptions::default() };
    let mounted = Mounted::new(FileSystem::new(options).unwrap(), "bow://", place.path(), TRUSTED).unwrap();
    assert_eq!(names(&place.path().join("slow")).len(), readers);
    slow.requests();
    slow.delay(Duration::from_secs(10));
    std::thread::scope(|scope| {
        let wait: Vec<_> = (0..readers)
            .map(|number| {
                let (path, bytes) = (place.path().join(format!("slow/{number}")), &bytes);
                scope.spawn(move || {
                    let mut begin = [0; 100];
                    fs::File::open(path).unwrap().read_exact(&mut begin).unwrap();
                    assert!(begin == bytes[..100]);
                })
            })
            .collect();
        let mut asked = 0;
        support::until("more requests than the mount has threads", || {
            asked += slow.requests().iter().filter(|request| request.starts_with("GET")).count();
            asked > 20
        });
        let began = Instant::now();
        assert_eq!(fs::metadata(place.path().join("good/x.bin")).unwrap().len(), 3000);
        assert!(fs::read(place.path().join("good/x.bin")).unwrap() == content(3000, 1));
        assert_eq!(names(&place.path().join("good")), ["x.bin"]);
        assert_eq!(fs::metadata(place.path().join("slow/0")).unwrap().len(), (1 << 20) + 1, "what is known of it, too");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        wait.into_iter().for_each(|reader| reader.join().unwrap());
    });
    mounted.end().unwrap();
}

#[test]
fn a_link_back_to_a_mount_is_not_in_it() {
    if cannot_mount() {
        return;
    }
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(data.path().join("x.bin"), b"x").unwrap();
    symlink(place.path(), data.path().join("again")).unwrap();
    symlink(place.path().join("again/x.bin"), data.path().join("deeper")).unwrap();
    let files = FileSystem::new(FileOptions::default()).unwrap();
    let mounted = Mounted::new(files, data.path().to_str().unwrap(), place.path(), Duration::ZERO).unwrap();
    assert!(fs::metadata(place.path().join("again")).is_err());
    assert!(fs::read(place.path().join("again/x.bin")).is_err());
    assert!(fs::read(place.path().join("deeper")).is_err());
    assert_eq!(names(place.path()), ["x.bin"]);
    assert_eq!(fs::read(place.path().join("x.bin")).unwrap(), b"x");
    mounted.end().unwrap();
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let (server, place) = (Server::start(), tempfile::tempdir().unwrap());
    server.put("bucket/x.bin", b"x".to_vec(), PINNED);
    let mount = |url: &str, directory: &Path| Mounted::new(files(&server), url, directory, TRUSTED).unwrap_err();
    assert!(matches!(mount("s3://bucket/x.bin", place.path()), Error::Config { .. }));
    assert!(matches!(mount("s3://bucket/none", place.path()), Error::NotFound { .. }));
    assert!(matches!(mount("s3://bucket", &place.path().join("none")), Error::Store { .. }));
    fs::write(place.path().join("hidden"), b"").unwrap();
    let error = mount("s3://bucket", place.path());
    assert!(error.to_string().contains("is not empty"), "{error}");
    // Within what it shows, also by way of a link or of the namespace.
    let data = tempfile::tempdir().unwrap();
    let (below, link) = (data.path().join("a/b"), place.path().join("link"));
    fs::create_dir_all(&below).unwrap();
    symlink(&below, &link).unwrap();
    let text = format!("[mounts.data]\nurl = {:?}\n", data.path());
    let mounts = Arc::new(Mounts::from_toml(&text, "mounts.toml").unwrap());
    let here = data.path().to_str().unwrap();
    for (url, directory) in [(here, &below), (here, &link), ("/", &below), ("bow://", &below), ("bow://data/a", &link)]
    {
        let mounts = Some(MountSource::Given(Arc::clone(&mounts)));
        let files = FileSystem::new(FileOptions { mounts, ..FileOptions::default() }).unwrap();
        let error = Mounted::new(files, url, directory, TRUSTED).unwrap_err();
        let is_told = error.to_string().contains("without end");
        assert!(matches!(error, Error::Config { option: "DIR", .. }) && is_told, "{url}: {error}");
    }
}

/// The command, with its mount on a directory and the lines that it says; both are gone once this is dropped.
struct Mounting<'a>(Child, &'a Path, std::sync::mpsc::Receiver<String>);

impl Mounting<'_> {
    /// The next line that it says.
    fn line(&self) -> String {
        self.2.recv_timeout(support::HANG).unwrap()
    }

    fn terminate(&self) {
        support::signal(self.0.id(), "-TERM");
    }

    /// It ends well, in time.
    fn ends(&mut self) {
        support::until("the end of the command", || self.0.try_wait().unwrap().is_some());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {:?}", self.2.iter().collect::<Vec<_>>());
    }
}

impl Drop for Mounting<'_> {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            drop(Command::new("umount").arg("-l").arg(self.1).output());
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }
}

/// Mounts `data` on `place` by the command.
fn mounted<'a>(data: &Path, place: &'a Path) -> Mounting<'a> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bowstring"))
        .arg("mount")
        .args([data, place])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let outputs: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for output in outputs {
        let tell = tell.clone();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).for_each(|line| drop(tell.send(line)));
        });
    }
    let child = Mounting(child, place, told);
    let line = child.line();
    assert!(line.contains("is mounted on"), "{line}");
    child
}

#[test]
fn a_directory_is_free_after_a_signal_though_a_program_has_a_file_of_it() {
    if cannot_mount() {
        return;
    }
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bytes = content(3 << 20, 1);
    fs::write(data.path().join("x.bin"), &bytes).unwrap();
    for is_closed in [true, false] {
        let mut first = mounted(data.path(), place.path());
        let mut open = fs::File::open(place.path().join("x.bin")).unwrap();
        first.terminate();
        let line = first.line();
        assert!(line.contains("is unmounted; it is still in use"), "{line}");
        assert_eq!(names(place.path()), Vec::<String>::new(), "it is unmounted");
        let mut second = mounted(data.path(), place.path());
        let mut read = Vec::new();
        open.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        if is_closed {
            drop(open);
        } else {
            first.terminate();
        }
        first.ends();
        assert_eq!(names(place.path()), ["x.bin"], "the other one is there still");
        second.terminate();
        second.ends();
    }
    let mut killed = mounted(data.path(), place.path());
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let files = FileSystem::new(FileOptions::default()).unwrap();
    let refused = Mounted::new(files, data.path().to_str().unwrap(), place.path(), TRUSTED).unwrap_err();
    assert!(Command::new("umount").arg(place.path()).status().unwrap().success());
    assert!(matches!(refused, Error::Config { .. }) && refused.to_string().contains("umount"), "{refused}");
}

#[test]
fn a_signal_leaves_what_somebody_else_has_mounted_there_since() {
    if cannot_mount() {
        return;
    }
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(data.path().join("x.bin"), b"x").unwrap();
    let mut first = mounted(data.path(), place.path());
    let open = fs::File::open(place.path().join("x.bin")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(place.path()).status().unwrap().success());
    let mut second = mounted(data.path(), place.path());
    first.terminate();
    let line = first.line();
    assert!(line.contains("still in use"), "{line}");
    assert_eq!(names(place.path()), ["x.bin"], "the other one is there still");
    drop(open);
    first.ends();
    second.terminate();
    second.ends();
}

#[test]
fn the_command_mounts_until_a_signal_or_somebody_unmounts_it() {
    if cannot_mount() {
        return;
    }
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    support::write(data.path(), &[vec![50, 50]], 2);
    for by_signal in [true, false] {
        let mut child = mounted(data.path(), place.path());
        // A dataset there is as any other.
        let mut loader = Loader::open(support::options(place.path(), 10, 0, 1)).unwrap();
        let mut ids = support::drain(&mut loader).concat();
        ids.sort_unstable();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
        drop(loader);
        if by_signal {
            child.terminate();
        } else {
            assert!(Command::new("umount").arg(place.path()).status().unwrap().success());
        }
        child.ends();
        assert_eq!(names(place.path()), Vec::<String>::new(), "it is unmounted");
    }
}
