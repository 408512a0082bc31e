//! Tests of what addresses lead to.

use super::*;

#[tokio::test]
async fn a_whole_file_of_parquet_by_another_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let options = BTreeMap::new();
    std::fs::write(folder.path().join("a.parquet"), "PAR1 rows PAR1").unwrap();
    let urls = [root.to_owned()];
    std::fs::write(folder.path().join("a.parquet.1"), "PAR1 rows PAR1").unwrap();
    let count = || async { find(&urls, Access::from(&options), 10).await.map(|found| found.files.len()) };
    for name in ["b.parquet.gz", "b.parquet.snappy", "b.parquet.1"] {
        let path = folder.path().join(name);
        // Nobody's rows: the file has another content, or is not finished.
        for content in ["\x1f\u{8b} rows", "PAR1", "PAR1 rows of it"] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(count().await.unwrap(), 1, "{name} {content}");
        }
        std::fs::write(&path, "PAR1 rows PAR1").unwrap();
        let said = count().await.unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("rename"), "{said}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[tokio::test]
async fn a_pattern_of_a_store_is_decoded_before_its_first_wildcard_and_behind_it() {
    let store: Arc<dyn object_store::ObjectStore> = Arc::new(object_store::memory::InMemory::new());
    for key in ["p q/a b.parquet", "p q/a%20b.parquet", "p q/*.parquet", "p q/c/a b.parquet"] {
        store.put(&Path::parse(key).unwrap(), "x".into()).await.unwrap();
    }
    super::super::registered::register("memory://find-patterns/", &store);
    let options = BTreeMap::new();
    for (pattern, names) in [
        ("a%20*.parquet", vec!["a b.parquet"]),
        ("a *.parquet", vec!["a b.parquet"]),
        ("a%2520*.parquet", vec!["a%20b.parquet"]),
        ("%2A.par*", vec!["*.parquet"]),
        ("*/a%20b.parquet", vec!["c/a b.parquet"]),
    ] {
        let url = format!("memory://find-patterns/p%20q/{pattern}");
        let found = find(&[url], Access::from(&options), 10).await.unwrap();
        let found: Vec<_> = found.files.iter().map(|file| file.name.to_string()).collect();
        assert_eq!(found, names, "{pattern}");
    }
}

#[cfg(feature = "cloud")]
#[tokio::test]
async fn a_key_that_no_address_leads_to_is_named_if_it_may_be_data_and_left_out_if_not() {
    use std::io::{Read, Write};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let answer = |heard: &str| {
        if !heard.starts_with("GET") || !heard.contains("list-type=2") {
            return "HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned();
        }
        let keys = match heard.contains("prefix=hidden") {
            true => ["hidden/a.parquet", "hidden/_tmp//x.txt", "hidden/_tmp/&#x1;"],
            false => ["shown/a.parquet", "shown/b//c.parquet", "shown/_tmp/&#x1;"],
        };
        let objects = keys.map(|key| {
            let time = "2026-01-01T00:00:00.000Z";
            format!("<Contents><Key>{key}</Key><LastModified>{time}</LastModified><Size>12</Size></Contents>")
        });
        let objects = objects.concat();
        let page = format!("<ListBucketResult>{objects}<IsTruncated>false</IsTruncated></ListBucketResult>");
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{page}", page.len())
    };
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut heard = vec![0; 8192];
                let length = stream.read(&mut heard).unwrap_or_default();
                let _ = stream.write_all(answer(&String::from_utf8_lossy(&heard[..length])).as_bytes());
            });
        }
    });
    let options = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", "i"),
        ("aws_secret_access_key", "s"),
    ];
    let options: BTreeMap<String, String> =
        options.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let found = async |url: &str| find(&[url.to_owned()], Access::from(&options), 10).await;
    for url in ["s3://b/hidden", "s3://b/hidden/*.parquet", "s3://b/shown/*.parquet"] {
        let files = found(url).await.unwrap().files;
        assert_eq!(files.iter().map(|file| &*file.name).collect::<Vec<_>>(), ["a.parquet"], "{url}");
    }
    for url in ["s3://b/shown", "s3://b/shown/**/*.parquet"] {
        let error = found(url).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Unsupported { .. }) && said.contains("\"shown/b//c.parquet\""), "{said}");
    }
}

#[tokio::test]
async fn a_whole_file_by_the_name_of_one_being_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let options = BTreeMap::new();
    std::fs::create_dir(folder.path().join("x")).unwrap();
    std::fs::write(folder.path().join("a.parquet"), "PAR1 rows PAR1").unwrap();
    for (url, name) in [
        (root.to_owned(), "x.parquet#1"),
        (root.to_owned(), "x/b.parquet#12"),
        (format!("{root}/x*"), "x/b.parquet#12"),
    ] {
        let urls = [root.to_owned()];
        let path = folder.path().join(name);
        std::fs::write(&path, "PAR1 rows of it").unwrap();
        assert_eq!(find(&urls, Access::from(&options), 10).await.unwrap().files.len(), 1, "{name}");
        std::fs::write(&path, "PAR1 rows PAR1").unwrap();
        let said = find(&[url], Access::from(&options), 10).await.unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("rename"), "{said}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_a_list_leads_to_by_two_names_is_an_error_that_has_both() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["d/sub", "e", "more"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    for name in ["d/a.parquet", "d/b.parquet", "e/c.parquet"] {
        std::fs::write(at(name), "PAR1 rows PAR1").unwrap();
    }
    std::fs::hard_link(at("d/a.parquet"), at("hard.parquet")).unwrap();
    for (target, link) in [
        ("d/a.parquet", "l.parquet"),
        ("l.parquet", "k.parquet"),
        ("d", "link"),
        ("d/a.parquet", "more/x.parquet"),
        ("e", "more/e"),
    ] {
        symlink(at(target), at(link)).unwrap();
    }
    let options = BTreeMap::new();
    let found = async |names: &[&str]| {
        let urls: Vec<String> = names.iter().map(|name| at(name).to_str().unwrap().to_owned()).collect();
        find(&urls, Access::from(&options), 10).await
    };
    for names in [
        ["d", "l.parquet"],
        ["l.parquet", "d"],
        ["d/*.parquet", "l.parquet"],
        ["d/a.parquet", "l.parquet"],
        ["d/a.parquet", "link/a.parquet"],
        ["d", "link/b.parquet"],
        ["d", "link"],
        ["more", "d/a.parquet"],
        ["l.parquet", "more"],
        ["more/*.parquet", "d"],
        ["more", "e"],
        ["more/e/c.parquet", "e/c.parquet"],
    ] {
        let error = found(&names).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Config { .. }) && said.contains("is found twice"), "{names:?}: {said}");
        for name in names {
            assert!(said.contains(at(name).to_str().unwrap()), "{names:?}: {said}");
        }
    }
    // One name, however it is written, is meant twice, and a file has as many names as no link makes.
    for (names, expected) in [
        (["l.parquet", "l.parquet"], ["l.parquet", "l.parquet"]),
        (["link/a.parquet", "link/./a.parquet"], ["a.parquet", "a.parquet"]),
        (["d/a.parquet", "d/sub/../a.parquet"], ["a.parquet", "a.parquet"]),
        (["d/a.parquet", "hard.parquet"], ["d/a.parquet", "hard.parquet"]),
        (["l.parquet", "d/b.parquet"], ["d/b.parquet", "l.parquet"]),
        (["link/b.parquet", "more/x.parquet"], ["d/b.parquet", "more/x.parquet"]),
        // Two links to one file are two names where equal content is stored once.
        (["l.parquet", "k.parquet"], ["k.parquet", "l.parquet"]),
    ] {
        let listing = found(&names).await.unwrap();
        assert_eq!(listing.files.iter().map(|file| &*file.name).collect::<Vec<_>>(), expected, "{names:?}");
    }
}

#[tokio::test]
async fn a_listing_says_whether_its_files_are_in_the_order_of_their_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("d")).unwrap();
    for name in ["a.parquet", "d/b.parquet", "d/c.parquet", "e.parquet"] {
        std::fs::write(at(name), "").unwrap();
    }
    let options = BTreeMap::new();
    for (names, is_reordered) in [
        (&["d"][..], false),
        (&["a.parquet", "d", "e.parquet"], false),
        (&["a.parquet", "a.parquet", "d/*.parquet"], false),
        (&["d/c.parquet", "d/b.parquet"], true),
        (&["a.parquet", "e.parquet", "a.parquet"], true),
        (&["d", "a.parquet"], true),
    ] {
        let urls: Vec<String> = names.iter().map(|name| at(name)).collect();
        let listing = find(&urls, Access::from(&options), 10).await.unwrap();
        assert_eq!(listing.is_reordered, is_reordered, "{names:?}");
    }
}
