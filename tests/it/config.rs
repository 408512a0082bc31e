//! `bowstring config`: what a server would run with, and whether it would start.

use serde_json::json;

use crate::cli::{Ran, command, ran, run, small, text};

/// A configuration at a path that stays as long as the directory.
fn file(content: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("serve.toml");
    std::fs::write(&path, content).unwrap();
    let path = text(&path).to_owned();
    (directory, path)
}

fn check(content: &str, more: &[&str]) -> Ran {
    let (_directory, path) = file(content);
    run(&[&["config", "check", &path], more].concat())
}

#[test]
fn values_come_from_the_file_then_variables_then_flags() {
    let content = "[server]\nlisten = \"127.0.0.1:1\"\nthreads = 2\nrefresh = 5\n[datasets.photos]\nurl = \"a\"\nstorage_options = { token = \"s3cr3t\" }\n";
    let (_directory, path) = file(content);
    let mut shown = command(&["config", "show", "more=https://me:s3cr3t@host/b", "--threads", "4", "--config", &path]);
    shown.env("BOWSTRING_THREADS", "3").env("BOWSTRING_REFRESH", "7").env("BOWSTRING_INSECURE", "0");
    let shown = ran(shown);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    for line in [
        format!("listen = \"127.0.0.1:1\"  # {path}, line 2"),
        "threads = 4  # --threads".to_owned(),
        "refresh = 7.0  # BOWSTRING_REFRESH".to_owned(),
        "drain_grace = 30.0  # default".to_owned(),
        format!("storage_options = {{ token = \"***\" }}  # {path}, line 7"),
        "urls = [\"https://host/b\"]  # command line".to_owned(),
        "[datasets.photos.limits]".to_owned(),
    ] {
        assert!(shown.stdout.lines().any(|found| found == line), "{line} is not in\n{}", shown.stdout);
    }
    assert!(!shown.stdout.contains("s3cr3t"), "{}", shown.stdout);
    // What is shown is a configuration.
    let again = check(&shown.stdout, &[]);
    assert_eq!(again.code, 0, "{}\n{}", again.stderr, shown.stdout);
    let (_directory, path) = file(content);
    let document = run(&["config", "show", "--config", &path, "--json"]).stdout;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["server"]["threads"], json!({"value": 2, "source": format!("{path}, line 3")}));
    assert_eq!(document["server.limits"]["connections"], json!({"value": 4096, "source": "default"}));
    // `~` is the home wherever a path is named.
    let mut shown = command(&["config", "show", "more=~/more", "--put=~/put", "--journal=~/journal"]);
    shown.args(["--tokens=~/tokens", "--client-ca=~/client_ca"]);
    let content = "[server]\nkey_file = \"~/key_file\"\nadmin_tokens = \"~/admin_tokens\"\naudit_log = \"~/audit_log\"\n\
                   tls = { cert = \"~/cert\", key = \"~/key\" }\n\
                   [datasets.x]\nurl = \"~/x\"\ncache = \"~/cache\"\n[datasets.y]\nurls = [\"a\", \"~/y\"]\nseed = 3\n";
    let (directory, path) = file(content);
    shown.args(["--config", &path]).env("HOME", "/home/of/anna");
    let shown = ran(shown).stdout;
    for place in
        ["put", "journal", "tokens", "client_ca", "key_file", "admin_tokens", "audit_log", "cert", "key", "cache"]
    {
        assert!(shown.contains(&format!("\n{place} = \"/home/of/anna/{place}\"")), "{place}: {shown}");
    }
    for urls in ["\"/home/of/anna/more\"", "\"/home/of/anna/x\"", "\"a\", \"/home/of/anna/y\""] {
        assert!(shown.contains(&format!("\nurls = [{urls}]")), "{urls}: {shown}");
    }
    assert!(shown.contains("\nseed = 3"), "{shown}");
    std::fs::write(directory.path().join("m.toml"), "[mounts.m]\nurl = \"s3://bucket/m\"\n").unwrap();
    let mut shown = command(&["config", "show"]);
    shown.env("HOME", directory.path()).env("BOWSTRING_MOUNTS", "~/m.toml");
    assert!(ran(shown).stdout.contains("s3://bucket/m"));
    // Without a file, all of it is the default.
    assert!(run(&["config", "show"]).stdout.contains("listen = \"127.0.0.1:8815\"  # default"));
}

#[test]
fn a_file_is_refused_for_what_a_server_refuses_it_for() {
    let dataset = "[datasets.x]\nurl = \"/nowhere/at/all.parquet\"\n";
    for (content, problem) in [
        ("[server]\nlisen = \"x\"\n", "serve.toml, line 2: server.lisen: unknown key `lisen`; did you mean `listen`?"),
        ("[server]\nthreads = \"two\"\n", "line 2: server.threads"),
        ("[server]\nthreads = 5000\n", "threads: 5000 is not a whole number from 1 to 4096"),
        ("[server]\ngang_lease = 0\n", "gang_lease: 0 is not from 0.1 to 86400 seconds"),
        ("[server]\nreplicas = [\"http://a:1\"]\n", "replicas"),
        ("[server.limits]\nframe_bytes = 1\n", "frame_bytes"),
        ("[server.spaces]\na = [\"t\"]\nb = [\"t\"]\n", "in another space too"),
        ("[server]\nlisten = \"0.0.0.0:1\"\n", "can be reached from other machines"),
        ("[server]\nlisten = \"localhost\"\n", "\"localhost\" is not an address and port"),
        ("[server]\nadmin = \"localhost\"\n", "admin"),
        ("[server]\nput = \"\"\n", "put: is empty"),
        ("[server]\nlisten = \"127.0.0.1:9000\"\nadmin = \"9000\"\n", "admin: 9000 is taken by listen, 127.0.0.1:9000"),
        ("[server.quotas.tenants.\"anna \"]\nstreams = 1\n", "\"anna \" is no name of a tenant"),
        ("[datasets.y]\nurl = \"a\"\nbach_size = 3\n", "did you mean `batch_size`?"),
    ] {
        let ran = check(&format!("{content}{dataset}"), &[]);
        assert!(ran.code == 2 && ran.stderr.contains(problem), "{content}: {}", ran.stderr);
    }
    assert!(check("", &[]).stderr.contains("there is nothing to serve"));
    let missing = run(&["config", "check", "/nowhere/serve.toml"]);
    assert!(missing.code == 2 && missing.stderr.contains("cannot be read"), "{}", missing.stderr);
    // A flag completes the file, as it does for the server.
    let open = format!("[server]\nlisten = \"0.0.0.0:1\"\n{dataset}");
    assert_eq!(check(&open, &["--insecure"]).code, 0);
    assert_eq!(check(&format!("[server]\nadmin = \"9090\"\n{dataset}"), &[]).code, 0, "a port alone");
    let with = |variable: &str, value: &str| {
        let (_directory, path) = file(&open);
        let mut checked = command(&["config", "check", &path]);
        checked.env(variable, value);
        ran(checked)
    };
    for (insecure, code) in [("1", 0), ("yes", 0), ("", 2), ("0", 2)] {
        assert_eq!(with("BOWSTRING_INSECURE", insecure).code, code, "{insecure}");
    }
    let told = with("BOWSTRING_SEED", "3").stderr;
    assert!(told.contains("BOWSTRING_SEED is an option of loaders, which a server does not take"), "{told}");
}

#[test]
fn datasets_and_files_are_opened_only_where_it_is_asked_for() {
    let content = "[server]\ntokens = \"/nowhere/tokens\"\n[datasets.x]\nurl = \"/nowhere/at/all.parquet\"\n";
    let ran = check(content, &[]);
    assert!(ran.code == 0 && ran.stdout.ends_with("a server would start with 1 dataset\n"), "{ran:?}");
    let ran = check(content, &["--open"]);
    assert!(ran.code == 2 && ran.stderr.contains("/nowhere/tokens"), "{ran:?}");
    let ran = check("[datasets.x]\nurl = \"/nowhere/at/all.parquet\"\n", &["--open"]);
    assert!(ran.code != 0 && ran.stderr.contains("/nowhere/at"), "{ran:?}");
    let ran = check("[server]\nput = \"Cargo.toml/x\"\n", &["--open"]);
    assert!(ran.code == 2 && ran.stderr.contains("Cargo.toml is a file"), "{ran:?}");
    let data = small();
    let with = |audit: &std::path::Path| {
        let (audit, data) = (text(audit), text(data.path()));
        let content = format!("[server]\naudit_log = \"{audit}\"\n[datasets.x]\nurl = \"{data}/*.parquet\"\n");
        check(&content, &["--open", "--json"])
    };
    for audit in [data.path().join("missing/audit.log"), data.path().to_owned()] {
        let ran = with(&audit);
        assert!(ran.code == 2 && ran.stderr.contains("audit_log"), "{ran:?}");
    }
    let audit = data.path().join("audit.log");
    let ran = with(&audit);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!((&document["datasets"], &document["opened"]), (&json!(["x"]), &json!(true)));
    assert!(!audit.exists(), "a check writes nothing");
}

#[test]
fn columns_of_filters_and_windows_are_tried_without_rows() {
    let data = small();
    let with = |option: &str| {
        let url = text(data.path());
        let content =
            format!("[datasets.good]\nurl = \"{url}/*.parquet\"\n[datasets.d]\nurl = \"{url}/*.parquet\"\n{option}\n");
        check(&content, &["--open"])
    };
    let ngram = |timestamp: &str, field: &str| {
        let fields = format!("fields = {{ \"0\" = [\"{field}\"], \"1\" = [\"{field}\"] }}");
        format!("ngram = {{ {fields}, timestamp_field = \"{timestamp}\", delta_threshold = 1.0 }}")
    };
    for option in ["filter = \"id > 1\"".to_owned(), ngram("id", "id")] {
        let ran = with(&option);
        assert_eq!(ran.code, 0, "{option}: {}", ran.stderr);
    }
    for option in ["filter = \"nope > 1\"".to_owned(), ngram("nope", "id"), ngram("id", "nope")] {
        let ran = with(&option);
        assert!(
            ran.code == 2 && ran.stderr.contains("dataset d: ") && ran.stderr.contains("nope"),
            "{option}: {ran:?}"
        );
    }
}

#[test]
fn mounts_are_shown_without_secrets_and_checked() {
    let data = small();
    let mounts = format!(
        "[mounts.\"data/small\"]\nurl = \"{}\"\n[mounts.far]\nurl = \"s3://bucket/x\"\nstorage_options = {{ aws_secret_access_key = \"s3cr3t\" }}\n",
        text(data.path())
    );
    let content = format!("{mounts}[datasets.x]\nurl = \"bow://data/small\"\n");
    let checked = check(&content, &["--open"]);
    assert!(
        checked.code == 0 && checked.stdout.ends_with("would start with 1 dataset and 2 mounts, opened\n"),
        "{checked:?}"
    );
    let (_directory, path) = file(&content);
    let shown = run(&["config", "show", "--config", &path]);
    for line in [
        "[mounts.\"data/small\"]".to_owned(),
        format!("url = \"s3://bucket/x\"  # {path}, line 4"),
        format!("storage_options = {{ aws_secret_access_key = \"***\" }}  # {path}, line 5"),
    ] {
        assert!(shown.stdout.lines().any(|found| found == line), "{line} is not in\n{}", shown.stdout);
    }
    assert!(!shown.stdout.contains("s3cr3t"), "{}", shown.stdout);
    // A file of mounts alone, and one that the environment names.
    let checked = check(&mounts, &[]);
    assert!(checked.code == 0 && checked.stdout.ends_with("serve.toml: 2 mounts\n"), "{checked:?}");
    let (_directory, path) = file(&mounts);
    let mut shown = command(&["config", "show"]);
    shown.env("BOWSTRING_MOUNTS", &path);
    let shown = ran(shown).stdout;
    assert!(shown.contains(&format!("url = \"s3://bucket/x\"  # BOWSTRING_MOUNTS={path}")), "{shown}");
    for (content, problem) in [
        ("[mounts.x]\nulr = \"s3cr3t\"\n", "serve.toml, line 2: unknown key `ulr`; did you mean `url`?"),
        (
            "[mounts.x]\nurl = \"/x\"\nstorage_options = { aws_regoin = \"s3cr3t\" }\n",
            "line 3: mounts.x.storage_options",
        ),
        ("[mounts.x]\nurl = \"/x\"\n[mounts.\"x/y\"]\nurl = \"/y\"\n", "x/y is inside the mount x"),
    ] {
        let checked = check(&format!("{content}[datasets.y]\nurl = \"a\"\n"), &[]);
        assert!(
            checked.code == 2 && checked.stderr.contains(problem) && !checked.stderr.contains("s3cr3t"),
            "{content}: {}",
            checked.stderr
        );
    }
    let schema: serde_json::Value = serde_json::from_str(&run(&["config", "schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["mounts"]["additionalProperties"]["required"], json!(["url"]));
}

#[test]
fn what_a_server_does_not_start_with_is_not_shown() {
    let refused = run(&["config", "show", "--drain-grace=-1"]);
    assert!(refused.code == 2 && refused.stderr.contains("drain_grace"), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
}

#[test]
fn the_schema_is_json_in_any_case() {
    let printed = run(&["config", "schema"]);
    assert_eq!((printed.code, &printed.stdout), (0, &run(&["config", "schema", "--json"]).stdout));
    let schema: serde_json::Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(schema["properties"]["server"]["$ref"], "#/$defs/ServerOptions");
    assert!(schema["properties"]["datasets"]["additionalProperties"]["properties"]["seed"].is_object());
}
