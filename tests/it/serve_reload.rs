//! `bowstring serve` at its start, and changes that it accepts while it runs: other tokens, other keys, no broken data.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bowstring::Loader;
use bowstring::pipeline::LoaderOptions;

use crate::serve_shell::{Authority, PHOTOS, Server, command, write};
use crate::support;

#[test]
fn datasets_that_cannot_be_opened_are_reported_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let scattered = directory.path().join("scattered");
    std::fs::create_dir(&scattered).unwrap();
    support::write(&scattered, &[vec![8; 2]], 1);
    std::fs::write(scattered.join("NOTES"), "this is no Parquet").unwrap();
    let scattered = format!("bad={}", scattered.display());
    let missing = format!("x={}", directory.path().join("nope.parquet").display());
    for (dataset, file) in [(&scattered, "NOTES"), (&missing, "nope.parquet")] {
        // Port 0 and a valid dataset beside it: nothing else is wrong.
        let output = command(&["--listen", "127.0.0.1:0", "--print-address", PHOTOS, dataset]).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code().is_some_and(|code| (2..=4).contains(&code)), "{dataset}: {log}");
        assert!(log.contains(file), "{dataset}: {log}");
        assert_eq!(output.stdout, b"", "{dataset}: nothing was served");
    }
}

/// Returns true if a client with `token` is served.
fn is_served(server: &Server, token: &str) -> bool {
    let mut options = LoaderOptions::new(format!("{}/numbers", server.listen), 4);
    options.storage_options.insert("token".to_owned(), token.to_owned());
    // The token may be replaced between the two.
    match Loader::open(options).and_then(|mut loader| loader.next()) {
        Ok(batch) => batch.is_some(),
        Err(error) => {
            assert!(error.chain().contains("token"), "{}", error.chain());
            false
        }
    }
}

#[test]
fn a_hangup_rereads_tokens_and_keys_and_ends_nothing() {
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
    // In place, and with the old time: only the signal announces it.
    let of = |path: &str| std::fs::metadata(path).unwrap().modified().unwrap();
    let before = of(&tokens);
    std::fs::write(&tokens, format!("anna:{new}\n\n")).unwrap();
    std::fs::File::options().write(true).open(&tokens).unwrap().set_modified(before).unwrap();
    write(directory.path(), "key", "hex:ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n");
    server.signal("-HUP");
    support::until("the new token is taken", || is_served(&server, new));
    assert!(!is_served(&server, old), "what is not in the file is no token");
    // A faulty file changes nothing.
    std::fs::set_permissions(Path::new(&tokens), std::fs::Permissions::from_mode(0o644)).unwrap();
    server.signal("-HUP");
    support::until_told(|| server.log(), || server.log().contains("what was there before stays"));
    assert!(is_served(&server, new));
    server.signal("-TERM");
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("told to read its files again") && !log.contains(new), "{log}");
}

#[test]
fn a_loader_continues_with_a_token_replaced_in_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let numbers = directory.path().join("numbers");
    std::fs::create_dir(&numbers).unwrap();
    support::write(&numbers, &[vec![8; 2]], 1);
    let (old, new) = ("the-token-of-yesterday", "the-token-of-today-xy");
    let tokens = write(directory.path(), "tokens", &format!("anna:{old}\n"));
    let own = write(directory.path(), "own", old);
    let server = Server::start(&["--tokens", &tokens, &format!("numbers={}", numbers.display())]);
    let mut options = LoaderOptions { timeout: 10.0, ..LoaderOptions::new(format!("{}/numbers", server.listen), 4) };
    options.storage_options.insert("token_file".to_owned(), own.clone());
    let mut loader = Loader::open(options).unwrap();
    let mut epoch = || -> Result<usize, String> {
        let mut rows = 0;
        while let Some(batch) = loader.next().map_err(|error| error.chain())? {
            rows += support::ids(&batch).len();
        }
        Ok(rows)
    };
    assert_eq!(epoch(), Ok(16));
    // As an operator does it: both are good for a while, in which the client is told the new one.
    write(directory.path(), "tokens", &format!("anna:{old}\nanna:{new}\n"));
    support::until("the new token is taken", || is_served(&server, new));
    std::fs::write(&own, new).unwrap();
    write(directory.path(), "tokens", &format!("anna:{new}\n"));
    support::until("the old token is refused", || !is_served(&server, old));
    // The client looks once a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!((epoch(), epoch()), (Ok(16), Ok(16)));
    server.signal("-TERM");
    assert_eq!(server.ended().0, Some(0));
}

#[test]
fn a_hangup_rereads_the_catalogue_and_running_streams_continue() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |name: &str, rows: usize| {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        support::write(&path, &[vec![rows; 2]], 1);
        path
    };
    let (one, two) = (folder("one", 500), folder("two", 8));
    let config = directory.path().join("serve.toml");
    let table = |name: &str, path: &Path| format!("[datasets.{name}]\nurl = {path:?}\n");
    // The batch size, without which lanes are none, is the client's.
    std::fs::write(&config, format!("{}{}lanes = 4\n", table("first", &one), table("laned", &one))).unwrap();
    let server = Server::start(&["-v", "--config", config.to_str().unwrap(), &format!("always={}", two.display())]);
    let open = |name: &str| {
        Loader::open(LoaderOptions { prefetch: 1, ..LoaderOptions::new(format!("{}/{name}", server.listen), 4) })
    };
    let rows = |name: &str| open(name).map(|loader| loader.rows()).map_err(|error| error.chain());
    let until = |what: &str, done: &dyn Fn() -> bool| {
        support::until_told(|| format!("{what}: {}", server.log()), done);
    };
    let told = |text: &str| server.log().matches(text).count();
    let mut running = open("first").unwrap();
    let mut ids = support::ids(&running.next().unwrap().unwrap());
    assert_eq!((rows("first"), rows("laned"), rows("always")), (Ok(1000), Ok(1000), Ok(16)));

    // Datasets that cannot be opened, or files that cannot be read, change nothing.
    let missing = directory.path().join("nope.parquet");
    for (number, wrong) in [table("third", &missing), "[datasets.x]\nurl = 3\n".to_owned()].into_iter().enumerate() {
        std::fs::write(&config, wrong).unwrap();
        server.signal("-HUP");
        until("an error", &|| told("the catalogue is wrong; what was there before stays") == number + 1);
        assert_eq!((rows("first"), rows("always")), (Ok(1000), Ok(16)));
        assert!(rows("third").unwrap_err().contains("third"));
    }
    assert!(server.log().contains("nope.parquet") && server.log().contains("serve.toml, line 2"), "{}", server.log());

    // Other datasets, one of them under an old name, and more rows in the files of another.
    support::write(&two, &[vec![9; 3]], 1);
    std::fs::write(&config, format!("[server]\nthreads = 1\n{}", table("second", &one))).unwrap();
    server.signal("-HUP");
    until("the new catalogue", &|| told("the catalogue was read again") == 1);
    assert_eq!(rows("second"), Ok(1000));
    // At once, and not after the minute of `refresh`.
    until("the new files", &|| rows("always") == Ok(27));
    let gone = rows("first").unwrap_err();
    assert!(gone.contains("first") && gone.contains("always, second"), "{gone}");
    assert!(server.log().contains("restart it for that"), "{}", server.log());
    while let Some(batch) = running.next().unwrap() {
        ids.extend(support::ids(&batch));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..1000).collect::<Vec<_>>(), "a stream that runs goes on");
    server.signal("-TERM");
    assert_eq!(server.ended().0, Some(0));
}

#[test]
fn a_certificate_is_renewed_in_the_middle_of_an_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let numbers = directory.path().join("numbers");
    std::fs::create_dir(&numbers).unwrap();
    support::write(&numbers, &[vec![500; 20]], 4);
    let (one, two) = (Authority::new(directory.path(), "one"), Authority::new(directory.path(), "two"));
    let numbers = format!("numbers={}", numbers.display());
    let (cert, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let renew = |cert_of: &str, key_of: &str| {
        std::fs::copy(key_of, &key).unwrap();
        std::fs::copy(cert_of, &cert).unwrap();
    };
    renew(&one.server.0, &one.server.1);
    let (cert_path, key_path) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let server = Server::start(&["-v", "--tls-cert", cert_path, "--tls-key", key_path, &numbers]);
    let open = |authority: &Authority, timeout: f64| {
        let mut options = LoaderOptions { timeout, prefetch: 1, ..LoaderOptions::new("", 10) };
        options.urls = vec![format!("{}/numbers", server.listen)];
        options.storage_options.insert("ca".to_owned(), authority.ca.clone());
        options.storage_options.insert("server_name".to_owned(), "localhost".to_owned());
        // Through TLS all the way.
        options.storage_options.insert("transport".to_owned(), "tcp".to_owned());
        Loader::open(options)
    };
    let comes = |authority: &Authority| open(authority, 1.0).is_ok_and(|mut loader| loader.next().is_ok());
    let until = |what: &str, done: &dyn Fn() -> bool| {
        support::until_told(|| format!("{what}: {}", server.log()), done);
    };
    let mut loader = open(&one, 30.0).unwrap();
    let mut ids = support::ids(&loader.next().unwrap().unwrap());
    assert!(!comes(&two));
    renew(&two.server.0, &two.server.1);
    until("new connections have the new certificate", &|| comes(&two));
    assert!(!comes(&one), "new connections do not have the old one");
    // A faulty certificate leaves the old one: a key of another certificate, half a file, none.
    for broken in [&one.server.1, &one.server.0] {
        renew(&two.server.0, broken);
        let warnings = server.log().matches("what was there before stays").count();
        server.signal("-HUP");
        until("a warning", &|| server.log().matches("what was there before stays").count() > warnings);
        until("what was there before", &|| comes(&two));
    }
    std::fs::remove_file(&cert).unwrap();
    until("what was there before", &|| comes(&two));
    while let Some(batch) = loader.next().unwrap() {
        ids.extend(support::ids(&batch));
    }
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(0..10_000), "{} rows", ids.len());
    server.signal("-TERM");
    assert_eq!(server.ended().0, Some(0));
}
