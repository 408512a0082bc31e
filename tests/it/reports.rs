//! The reports of all verbs: `--json` gives documents with a version, `--quiet` leaves the text out and nothing else.

use bowstring::{Loader, LoaderOptions};
use serde_json::Value;

use crate::cli::{run, small, text};

/// Photos with labels.
const PHOTOS: &str = "fixtures/imagenet40.parquet";

/// Verbs that end by themselves, with arguments, in a directory with the dataset `data` and a certificate.
fn verbs(directory: &str, data: &str) -> Vec<Vec<String>> {
    let at = |name: &str| format!("{directory}/{name}");
    let mut verbs = vec![
        format!("inspect\n{data}"),
        format!("index\n{data}\n--output\n{}", at("index")),
        format!("plan\n{data}\n--batch-size=8"),
        format!("certify\n{data}\n--batch-size=8"),
        format!("audit\n{}", at("certificate.json")),
        format!("bench\n{data}\n--batch-size=8"),
        "demo\n--epochs=1".to_owned(),
        "doctor".to_owned(),
        "completions\nbash".to_owned(),
        format!("man\n{}", at("man")),
    ];
    if cfg!(feature = "convert") {
        verbs.push(format!("convert\n{data}\n{}\n--to=csv\n--columns=id\n--dry-run", at("out")));
        verbs.push(format!("convert\n{data}\n{}\n--to=csv\n--columns=id\n--overwrite", at("out")));
        verbs.push(format!("verify\n{data}\n{data}"));
    }
    if cfg!(feature = "flight") {
        verbs.push(format!("config\nshow\nphotos={PHOTOS}"));
        verbs.push(format!("config\ncheck\n{}", at("serve.toml")));
    }
    verbs.iter().map(|verb| verb.lines().map(str::to_owned).collect()).collect()
}

/// Runs `check` for every verb.
fn each(check: impl Fn(&[&str])) -> Vec<String> {
    let (data, room) = (small(), tempfile::tempdir().unwrap());
    let mut loader = Loader::open(LoaderOptions::new(data.path().display().to_string(), 50)).unwrap();
    while loader.next().unwrap().is_some() {}
    let certificate = serde_json::to_string(&loader.certificate()).unwrap();
    std::fs::write(room.path().join("certificate.json"), certificate).unwrap();
    std::fs::write(room.path().join("serve.toml"), format!("[datasets.photos]\nurl = \"{PHOTOS}\"\n")).unwrap();
    let verbs = verbs(text(room.path()), text(data.path()));
    for verb in &verbs {
        let words: Vec<&str> = verb.iter().map(String::as_str).collect();
        check(&words);
    }
    verbs.into_iter().filter_map(|mut verb| verb.drain(..1).next()).collect()
}

#[test]
fn every_document_has_its_version() {
    let mut tried = each(|verb| {
        let ran = run(&[verb, &["--json"]].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{verb:?}");
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(document["schema"], 1, "{verb:?}: {document}");
        // It is a number in front of the others, and takes the place of none.
        let parts = document.as_object().unwrap().len();
        assert!(parts > 1 && ran.stdout.matches("\n  \"schema\":").count() == 1, "{verb:?}: {}", ran.stdout);
    });
    // Those that serve, and those that need a server or a store, have tests of their own.
    tried.extend(["cache", "warm", "serve", "top", "mount", "help"].map(str::to_owned));
    let help = run(&["--help"]).stdout;
    let known = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    for verb in known.map_while(|line| line.split_whitespace().next()) {
        assert!(tried.iter().any(|tried| tried == verb), "{verb} is not tried");
    }
}

#[test]
fn nothing_is_said_that_need_not_be() {
    each(|verb| {
        for flag in ["--quiet", "-q"] {
            let ran = run(&[verb, &[flag]].concat());
            // A script is what was asked for.
            let is_script = verb[0] == "completions";
            assert_eq!((ran.code, ran.stdout.is_empty(), ran.stderr.as_str()), (0, !is_script, ""), "{verb:?}");
        }
    });
    let data = small();
    let ran = run(&["plan", text(data.path()), "--batch-size=8", "--quiet", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).unwrap()["steps"], 13, "a document is asked for by name");
    let page = data.path().join("page.html");
    let ran = run(&["plan", text(data.path()), "--batch-size=8", "--quiet", "--html", text(&page)]);
    assert!(ran.code == 0 && page.is_file() && ran.stdout.is_empty(), "{ran:?}");
    let wrong = run(&["--quiet", "inspect", "/nowhere/at all"]);
    assert!(wrong.code == 2 && wrong.stderr.starts_with("error: ") && wrong.stdout.is_empty(), "{wrong:?}");
}

#[cfg(feature = "convert")]
#[test]
fn a_verdict_is_an_exit_code() {
    let (one, other) = (small(), small());
    let file = std::fs::read_dir(other.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(PHOTOS, file).unwrap();
    let ran = run(&["-q", "verify", text(one.path()), text(other.path())]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "", ""));
    let out = one.path().join("out.csv");
    let streamed = run(&["-q", "convert", text(one.path()), "-", "--to=csv", "--columns=id"]);
    assert!(streamed.code == 0 && streamed.stdout.starts_with("id\n0\n") && streamed.stderr.is_empty(), "{out:?}");
}

#[test]
fn texts_and_undecoded_photos_count_as_delivered() {
    let ran = run(&["bench", PHOTOS, "--batch-size=8", "--json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let stored = std::fs::metadata(PHOTOS).unwrap().len() as f64;
    let delivered = report["bytes"].as_f64().unwrap();
    assert!(delivered > 0.9 * stored && delivered < 1.5 * stored, "{delivered} of {stored}: {report}");
    let copied = report["stats"]["copied_per_delivered"].as_f64().unwrap();
    assert!(copied > 0.5 && copied <= 2.0, "{copied}");
}
