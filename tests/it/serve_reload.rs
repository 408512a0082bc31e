//! `bowstring serve` at its start, and what it takes while it runs: other tokens, other keys, no broken data.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bowstring::Loader;
use bowstring::pipeline::LoaderOptions;

use crate::serve_shell::{PHOTOS, Server, command, write};
use crate::support;

#[test]
fn what_cannot_be_opened_is_told_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let scattered = directory.path().join("scattered");
    std::fs::create_dir(&scattered).unwrap();
    support::write(&scattered, &[vec![8; 2]], 1);
    std::fs::write(scattered.join("NOTES"), "this is no Parquet").unwrap();
    let scattered = format!("bad={}", scattered.display());
    let missing = format!("x={}", directory.path().join("nope.parquet").display());
    for (dataset, file) in [(&scattered, "NOTES"), (&missing, "nope.parquet")] {
        // Port 0 and a good dataset beside: nothing else is wrong.
        let output = command(&["--listen", "127.0.0.1:0", "--print-address", PHOTOS, dataset]).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code().is_some_and(|code| (2..=4).contains(&code)), "{dataset}: {log}");
        assert!(log.contains(file), "{dataset}: {log}");
        assert_eq!(output.stdout, b"", "{dataset}: nothing was served");
    }
}

/// Whether whoever has `token` is served.
fn is_served(server: &Server, token: &str) -> bool {
    let mut options = LoaderOptions::new(format!("{}/numbers", server.listen), 4);
    options.storage_options.insert("token".to_owned(), token.to_owned());
    match Loader::open(options) {
        Ok(mut loader) => loader.next().unwrap().is_some(),
        Err(error) => {
            assert!(error.chain().contains("token"), "{}", error.chain());
            false
        }
    }
}

#[test]
fn a_hangup_reads_its_files_again_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let numbers = directory.path().join("numbers");
    std::fs::create_dir(&numbers).unwrap();
    support::write(&numbers, &[vec![8; 2]], 1);
    let (old, new) = ("the-token-of-yesterday", "the-token-of-today-xy");
    let tokens = write(directory.path(), "tokens", &format!("anna:{old}\n"));
    let key = write(directory.path(), "key", "hex:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n");
    let numbers = format!("numbers={}", numbers.display());
    let server = Server::start(&["-v", "--tokens", &tokens, "--key-file", &key, &numbers]);
    assert_eq!((is_served(&server, old), is_served(&server, new)), (true, false));
    // In place, and with the time that it had: only the signal tells.
    let of = |path: &str| std::fs::metadata(path).unwrap().modified().unwrap();
    let before = of(&tokens);
    std::fs::write(&tokens, format!("anna:{new}\n\n")).unwrap();
    std::fs::File::options().write(true).open(&tokens).unwrap().set_modified(before).unwrap();
    write(directory.path(), "key", "hex:ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n");
    server.signal("-HUP");
    let start = std::time::Instant::now();
    while !is_served(&server, new) {
        assert!(start.elapsed() < crate::serve_shell::LONGEST, "the new token is not taken");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(!is_served(&server, old), "what is not in the file is no token");
    // What is wrong changes nothing.
    std::fs::set_permissions(Path::new(&tokens), std::fs::Permissions::from_mode(0o644)).unwrap();
    server.signal("-HUP");
    while !server.log().contains("what was there before stays") {
        assert!(start.elapsed() < crate::serve_shell::LONGEST, "{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(is_served(&server, new));
    server.signal("-TERM");
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("told to read its files again") && !log.contains(new), "{log}");
}
