//! Credentials that expire, and those of profiles and clouds: which providers are called, how often, and what reaches the store.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bowstring::dataset::OpenOptions;
use bowstring::pipeline::LoaderOptions;
use bowstring::store::{CredentialSource, Credentials, FileOptions, FileSystem};
use bowstring::{Error, Loader};

use super::answering::answer;
use super::http::Server;
use super::support::{open, read_all};
use crate::support::{ids, write};

/// Starts a bucket with 240 rows in three files.
fn bucket() -> Server {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &vec![vec![20; 4]; 3], 2);
    server.upload(folder.path(), "bucket/data");
    server
}

const URL: &str = "s3://bucket/data";

/// Options without keys.
fn options(server: &Server) -> std::collections::BTreeMap<String, String> {
    let mut options = server.storage_options();
    options.retain(|key, _| !key.contains("key"));
    options
}

/// Provides the keys `key0`, `key1`, ..., valid for `life`, and counts the calls.
fn counting(life: Option<Duration>) -> (CredentialSource, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let source = CredentialSource::of_function("my_keys", move || {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        let pairs = [("access_key_id", format!("key{number}")), ("secret_access_key", "sEcReT".to_owned())];
        let expires = life.and_then(|life| SystemTime::now().checked_add(life));
        Ok(Credentials::new(pairs.map(|(key, value)| (key.to_owned(), value)), expires))
    });
    (source, asked)
}

fn loader(server: &Server, source: &CredentialSource) -> LoaderOptions {
    LoaderOptions {
        storage_options: options(server),
        credential_provider: Some(source.clone()),
        shuffle: false,
        prefetch: 1,
        lanes: Some(1),
        ..LoaderOptions::new(URL, 4)
    }
}

#[test]
fn an_epoch_outlives_its_credentials_and_asks_once_for_others() {
    let server = bucket();
    let (source, asked) = counting(None);
    let mut opened = Loader::open(loader(&server, &source)).unwrap();
    // An epoch this small is read at once, so each one is preceded by a refusal.
    let refusals = [
        ("403 Forbidden", "InvalidAccessKeyId"),
        ("400 Bad Request", "ExpiredToken"),
        ("401 Unauthorized", "Unauthorized"),
    ];
    for (key, (status, code)) in (1..).zip(refusals) {
        server.let_in(&format!("key{key}"), status, code);
        let mut rows = Vec::new();
        while let Some(batch) = opened.next().unwrap() {
            rows.extend(ids(&batch));
        }
        assert_eq!(rows, (0..240).collect::<Vec<_>>(), "{code}");
        assert_eq!(asked.load(Ordering::SeqCst), key + 1, "once to begin, and once for each refusal: {code}");
        // Refusals in quick succession would count as a missing permission.
        std::thread::sleep(Duration::from_millis(1100));
    }
    let told = format!("{:?} {:?} {:?}", opened.state(), loader(&server, &source), source);
    assert!(!told.contains("sEcReT") && told.contains("my_keys"), "{told}");
}

#[test]
fn a_look_at_a_file_that_is_refused_without_a_reason_renews_them() {
    let server = bucket();
    let (source, asked) = counting(None);
    let options =
        FileOptions { storage_options: options(&server), credential_provider: Some(source), ..FileOptions::default() };
    let files = FileSystem::new(options).unwrap();
    let url = format!("{URL}/part-000.parquet");
    assert!(!files.entry(&url).unwrap().is_directory());
    // The answer to a HEAD has no body, and so no code.
    server.let_in("key1", "400 Bad Request", "ExpiredToken");
    assert!(!files.entry(&url).unwrap().is_directory());
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    server.let_in("nobody's", "400 Bad Request", "ExpiredToken");
    let told = files.entry(&url).unwrap_err().chain();
    assert!(told.contains("the credentials may have expired") && !told.contains("sEcReT"), "{told}");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "refusals in quick succession renew nothing");
}

#[test]
fn credentials_are_renewed_before_they_expire_and_not_by_each_request() {
    let server = bucket();
    let (source, asked) = counting(Some(Duration::from_secs(2)));
    let mut opened = Loader::open(loader(&server, &source)).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        let mut rows = 0;
        while let Some(batch) = opened.next().unwrap() {
            rows += ids(&batch).len();
        }
        assert_eq!(rows, 240);
        std::thread::sleep(Duration::from_millis(1300));
    }
    let asked = asked.load(Ordering::SeqCst);
    assert!((2..=5).contains(&asked), "{asked} in about four seconds");
}

#[test]
fn a_permanent_refusal_is_reported_after_one_more_try() {
    let server = bucket();
    server.let_in("nobody's", "403 Forbidden", "AccessDenied");
    let (source, asked) = counting(None);
    let with = |source: &CredentialSource| OpenOptions {
        storage_options: options(&server),
        credential_provider: Some(source.clone()),
        ..OpenOptions::default()
    };
    let error = open(&[URL], with(&source)).unwrap_err();
    assert!(matches!(error, Error::Store { .. }) && !error.chain().contains("sEcReT"), "{}", error.chain());
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let failing = CredentialSource::of_function("my_vault", || Err("the vault is closed".into()));
    let error = open(&[URL], with(&failing)).unwrap_err();
    let told = error.chain();
    assert!(
        matches!(error, Error::Store { .. }) && told.contains("my_vault") && told.contains("the vault is closed"),
        "{told}"
    );
    let odd = CredentialSource::of_function("odd", || {
        Ok(Credentials::new([("acess_key_id".to_owned(), "sEcReT".to_owned())], None))
    });
    let error = open(&[URL], with(&odd)).unwrap_err();
    assert!(matches!(error, Error::Config { option: "credential_provider", .. }), "{error}");
    assert!(error.to_string().contains("access_key_id") && !error.chain().contains("sEcReT"), "{error}");
    let beside = OpenOptions { storage_options: server.storage_options(), ..with(&source) };
    let error = open(&[URL], beside).unwrap_err();
    assert!(error.to_string().contains("either credentials or what provides them"), "{error}");
    for url in [server.url("bucket/data/part-000.parquet"), "grpc://127.0.0.1:1/x".to_owned()] {
        let error = Loader::open(LoaderOptions {
            storage_options: Default::default(),
            ..LoaderOptions { urls: vec![url], ..loader(&server, &source) }
        });
        assert!(matches!(error.unwrap_err(), Error::Config { option: "credential_provider", .. }));
    }
}

#[test]
fn the_hub_takes_a_token_from_a_provider_and_asks_again_once() {
    use super::hub_server::{HubServer, TOKEN};
    let server = HubServer::start();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[vec![9]], 1);
    server.commit(folder.path(), "main");
    server.close("");
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let source = CredentialSource::of_function("my_token", move || {
        let token = if counted.fetch_add(1, Ordering::SeqCst) == 0 { "hf_old" } else { TOKEN };
        Ok(Credentials::new([("token".to_owned(), token.to_owned())], None))
    });
    let mut storage_options = server.options(None);
    storage_options.remove("hf_token");
    let opened = OpenOptions { storage_options, credential_provider: Some(source), ..OpenOptions::default() };
    assert_eq!(read_all(&open(&["hf://datasets/o/n"], opened).unwrap()).unwrap().num_rows(), 9);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// Returns the output of the command line for `url`, with these variables and no others of stores.
fn inspect(url: &str, options: &str, home: &Path, variables: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowstring"));
    command.args(["inspect", url, "--storage-options", options]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().into_owned();
        if ["AWS_", "AZURE_", "GOOGLE_", "HF_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), told)
}

const ROLE: &str = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>roleKey</AccessKeyId>\
                    <SecretAccessKey>sEcReT</SecretAccessKey><SessionToken>t</SessionToken>\
                    <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";

#[cfg(unix)]
#[test]
fn profiles_give_keys_regions_and_roles() {
    let server = bucket();
    let home = tempfile::tempdir().unwrap();
    let aws = home.path().join(".aws");
    fs::create_dir_all(aws.join("sso/cache")).unwrap();
    // SHA-1 of "corp".
    let login = aws.join("sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json");
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&told);
    let sts = answer(move |request| {
        let who = request.header("authorization").unwrap_or("nobody").to_owned();
        let token = request.header("x-amz-sso_bearer_token").unwrap_or_default();
        log.lock().unwrap().push(format!("{} {} {} {token}", request.path, request.body, who));
        if request.path.starts_with("/federation/") {
            let body = r#"{"roleCredentials": {"accessKeyId": "ssoKey", "secretAccessKey": "sEcReT", "sessionToken": "t", "expiration": 4070908800000}}"#;
            return Some(("200 OK", String::new(), body.as_bytes().to_vec()));
        }
        if request.body.contains("arn%3Arefused") {
            let body = b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>".to_vec();
            return Some(("403 Forbidden", String::new(), body));
        }
        Some(("200 OK", String::new(), ROLE.as_bytes().to_vec()))
    });
    let sts = format!("http://{sts}");
    let token = home.path().join("token");
    fs::write(&token, "web\n").unwrap();
    let printed = r#"{"Version": 1, "AccessKeyId": "processKey", "SecretAccessKey": "sEcReT"}"#;
    fs::write(home.path().join("printed"), printed).unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let (printed, token) = (at("printed"), at("token"));
    fs::write(
        aws.join("config"),
        format!(
            "[default]\nregion = eu-north-1\n[profile run]\ncredential_process = cat \"{printed}\"\n[profile fails]\ncredential_process = false\n\
             [profile role]\nrole_arn = arn:role\nsource_profile = default\nregion = ap-south-1\n\
             [profile refused]\nrole_arn = arn:refused\nsource_profile = default\n\
             [profile web]\nrole_arn = arn:web\nweb_identity_token_file = {token}\n\
             [profile login]\nsso_session = corp\nsso_account_id = 12\nsso_role_name = Reader\n\
             [sso-session corp]\nsso_region = us-east-1\nsso_start_url = https://start\n"
        ),
    )
    .unwrap();
    fs::write(aws.join("credentials"), "[default]\naws_access_key_id = fileKey\naws_secret_access_key = sEcReT\n")
        .unwrap();
    let endpoint =
        format!("aws_allow_http=true,aws_endpoint={},aws_endpoint_url_sts={sts}", server.url("").trim_end_matches('/'));
    let tried = |profile: &str| {
        server.signers();
        let variables = [("AWS_PROFILE", profile), ("AWS_ENDPOINT_URL_SSO", &sts)];
        let variables = if profile.is_empty() { &variables[1..] } else { &variables[..] };
        let (done, said) = inspect(URL, &endpoint, home.path(), variables);
        assert!(!said.contains("sEcReT"), "{profile}: {said}");
        let mut signers = server.signers();
        signers.dedup();
        (done, said, signers)
    };
    let good = |profile: &str, signer: &str| {
        let (done, said, signers) = tried(profile);
        assert!(done, "{profile}: {said}");
        assert_eq!(signers, [signer], "{profile}");
    };
    good("", "fileKey eu-north-1");
    good("default", "fileKey eu-north-1");
    good("run", "processKey us-east-1");
    good("role", "roleKey ap-south-1");
    let asked = std::mem::take(&mut *told.lock().unwrap());
    let role = asked.first().unwrap();
    assert!(role.contains("Action=AssumeRole&") && role.contains("RoleArn=arn%3Arole"), "{role}");
    assert!(role.contains("Credential=fileKey/") && role.contains("/ap-south-1/sts/"), "{role}");
    good("web", "roleKey us-east-1");
    let web = told.lock().unwrap().pop().unwrap();
    assert!(
        web.contains("AssumeRoleWithWebIdentity") && web.contains("WebIdentityToken=web ") && web.contains("nobody"),
        "{web}"
    );
    let failed = |profile: &str, words: &[&str]| {
        let (done, said, _) = tried(profile);
        assert!(!done && words.iter().all(|word| said.contains(word)), "{profile}: {said}");
    };
    failed("login", &["aws sso login --profile login"]);
    fs::write(&login, r#"{"accessToken": "sEcReT", "expiresAt": "2020-01-01T00:00:00Z"}"#).unwrap();
    failed("login", &["the login is over", "aws sso login --profile login"]);
    fs::write(&login, r#"{"accessToken": "lOgIn", "expiresAt": "2099-01-01T00:00:00Z"}"#).unwrap();
    good("login", "ssoKey us-east-1");
    let portal = told.lock().unwrap().pop().unwrap();
    assert!(portal.contains("role_name=Reader&account_id=12") && portal.ends_with("lOgIn"), "{portal}");
    failed("refused", &["profile refused of AWS", "AccessDenied"]);
    failed("fails", &["profile fails of AWS", "credential_process false ended"]);
    failed("rolle", &["profile rolle of AWS not found", "there is role"]);
    // An option takes precedence over the variable.
    server.signers();
    let options = format!("{endpoint},aws_profile=run");
    let (done, said) = inspect(URL, &options, home.path(), &[("AWS_PROFILE", "nowhere"), ("AWS_ACCESS_KEY_ID", "x")]);
    assert!(done, "{said}");
    assert!(server.signers().iter().all(|signer| signer == "processKey us-east-1"));
}

#[test]
fn credentials_found_by_object_store_are_found_here_too() {
    let server = bucket();
    let home = tempfile::tempdir().unwrap();
    let endpoint = format!("aws_allow_http=true,aws_endpoint={}", server.url("").trim_end_matches('/'));
    let signers = |options: &str, variables: &[(&str, &str)]| {
        server.signers();
        let (done, said) = inspect(URL, options, home.path(), variables);
        assert!(done, "{said}");
        let mut signers = server.signers();
        signers.dedup();
        signers
    };
    // Keys of the environment, no credentials, a container. A web identity is requested over https only.
    let keys = [("AWS_ACCESS_KEY_ID", "envKey"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "eu-west-3")];
    assert_eq!(signers(&endpoint, &keys), ["envKey eu-west-3"]);
    assert_eq!(signers(&format!("{endpoint},aws_skip_signature=true"), &[]), ["nobody"]);
    let token = home.path().join("token");
    fs::write(&token, "web").unwrap();
    let token = token.to_str().unwrap();
    let body =
        r#"{"AccessKeyId": "podKey", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}"#;
    let pod = answer(move |_| Some(("200 OK", String::new(), body.as_bytes().to_vec())));
    let pod = format!("http://{pod}/x");
    let pod = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", pod.as_str()), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)];
    assert_eq!(signers(&endpoint, &pod), ["podKey us-east-1"]);
    // The bucket in the path or in the host; in the latter case the endpoint includes it.
    server.requests();
    signers(&endpoint, &keys);
    assert!(server.requests().iter().all(|line| line.contains(" /bucket")));
    let hosted = format!("{endpoint}/bucket,aws_virtual_hosted_style_request=true");
    signers(&hosted, &keys);
    assert!(server.requests().iter().all(|line| !line.contains("/bucket/bucket")), "the endpoint names the bucket");
}

#[test]
fn settings_of_google_and_azure_reach_their_stores() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[vec![7]], 1);
    let bytes = fs::read(folder.path().join("part-000.parquet")).unwrap();
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (shared, body) = (Arc::clone(&log), bytes);
    let address = answer(move |request| {
        let who = request.header("authorization").unwrap_or("nobody");
        shared.lock().unwrap().push(format!("{} {} {who} {}", request.method, request.path, request.body));
        if request.path.contains("/oauth2/") {
            let token = r#"{"access_token": "workload", "expires_in": 3600}"#;
            return Some(("200 OK", String::new(), token.as_bytes().to_vec()));
        }
        let headers = "etag: \"a\"\r\nlast-modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n".to_owned();
        Some(super::answering::ranged(body.clone(), request.header("range"), headers))
    });
    let home = format!("http://{address}");
    let asked = |url: &str, options: &str, variables: &[(&str, &str)]| {
        log.lock().unwrap().clear();
        let (done, said) = inspect(url, options, folder.path(), variables);
        assert!(done, "{url}: {said}");
        log.lock().unwrap().join("\n")
    };
    let google = format!("google_base_url={home},google_bearer_token=gToken");
    let lines = asked("gs://bucket/data/x.parquet", &google, &[]);
    assert!(lines.contains("/bucket/data%2Fx%2Eparquet Bearer gToken"), "{lines}");
    let public = format!("google_base_url={home},google_skip_signature=true");
    let lines = asked("gs://bucket/data/x.parquet", &public, &[]);
    assert!(lines.contains("nobody") && !lines.contains("Bearer"), "{lines}");
    let missing = folder.path().join("adc.json");
    let variables = [("GOOGLE_APPLICATION_CREDENTIALS", missing.to_str().unwrap())];
    let (done, said) = inspect("gs://bucket/x.parquet", "", folder.path(), &variables);
    assert!(!done && said.contains("adc.json"), "what the variable names is looked at: {said}");
    let token = folder.path().join("federated");
    fs::write(&token, "fEdErAtEd").unwrap();
    let identity = [
        ("AZURE_CLIENT_ID", "client"),
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_FEDERATED_TOKEN_FILE", token.to_str().unwrap()),
        ("AZURE_AUTHORITY_HOST", &home),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
    ];
    let azure = format!("azure_storage_endpoint={home},allow_http=true");
    let lines = asked("az://container/data/x.parquet", &azure, &identity);
    assert!(lines.contains("/tenant/oauth2/v2.0/token") && lines.contains("fEdErAtEd"), "{lines}");
    assert!(lines.contains("/container/data/x.parquet Bearer workload"), "{lines}");
}
