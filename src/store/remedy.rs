//! What to do about a store that was asked without credentials, or with some that have expired. The text of its own error is about the last
//! place in which `object_store` looked for some: the metadata service of a cloud's machine, which is not there on any other; or it is
//! empty.

use std::error::Error;
use std::fmt;

use super::answer::is_unexplained;
use crate::error::Source;

/// Parts of the addresses of metadata services: of S3, of its containers, of GCS, of Azure.
const SERVICES: [&str; 5] =
    ["/latest/api/token", "/latest/meta-data/", "169.254.170.", "/computeMetadata/", "/metadata/identity/"];

/// A store's error, below what to do about it.
#[derive(Debug)]
struct Advised {
    remedy: &'static str,
    source: object_store::Error,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.remedy)
    }
}

impl Error for Advised {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Returns the `error` of the store of `url` as the cause of one of ours, with what to do where that is known.
pub(super) fn advised(url: &str, error: object_store::Error) -> Source {
    match remedy(url, &error) {
        Some(remedy) => Box::new(Advised { remedy, source: error }),
        None => error.into(),
    }
}

fn remedy(url: &str, error: &object_store::Error) -> Option<&'static str> {
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    if is_unexplained(error) && !is_web {
        return Some(
            "the store refuses the request and gives no reason: the credentials may have expired, or be those of another region",
        );
    }
    let text = error.to_string();
    if text.contains("Account must be specified") {
        return Some("give the account: azure_storage_account_name in storage_options, or AZURE_STORAGE_ACCOUNT_NAME");
    }
    if !SERVICES.iter().any(|service| text.contains(service)) {
        return None;
    }
    Some(match url.split_once("://")?.0 {
        "s3" | "s3a" => {
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or for public data the \
             storage option aws_skip_signature=true"
        }
        "gs" => {
            "no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS, or for public data the storage option \
             google_skip_signature=true"
        }
        "az" | "azure" | "abfs" | "abfss" | "adl" => {
            "no credentials were found: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or for public data the storage \
             option azure_skip_signature=true"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_credentials_says_which_to_set() {
        let asked = |path: &str| object_store::Error::Generic {
            store: "S3",
            source: format!("Error performing PUT http://169.254.169.254/{path}").into(),
        };
        for (url, path, wanted) in [
            ("s3://bucket/x", "latest/api/token", "AWS_ACCESS_KEY_ID"),
            ("gs://bucket/x", "computeMetadata/v1/instance/service-accounts", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("abfss://c@a.dfs.core.windows.net/x", "metadata/identity/oauth2/token", "AZURE_STORAGE_ACCOUNT_KEY"),
        ] {
            let told = advised(url, asked(path));
            assert!(told.to_string().contains(wanted), "{told}");
            assert!(told.source().is_some_and(|cause| cause.to_string().contains("169.254.169.254")));
        }
        assert!(!advised("https://host/x", asked("latest/api/token")).to_string().contains("credentials"));
    }

    #[test]
    fn a_refusal_without_a_reason_says_that_the_credentials_may_have_expired() {
        let answered = |answer: &str| object_store::Error::Generic {
            store: "S3",
            source: format!("Server returned non-2xx status code: {answer}").into(),
        };
        let told = advised("s3://bucket/x", answered("400 Bad Request: "));
        assert!(told.to_string().contains("the credentials may have expired"), "{told}");
        for (url, answer) in [("https://host/x", "400 Bad Request: "), ("s3://bucket/x", "400 Bad Request: <Error/>")] {
            assert!(!advised(url, answered(answer)).to_string().contains("credentials"), "{answer}");
        }
    }

    #[test]
    fn other_errors_are_left_as_they_are() {
        let error = object_store::Error::Generic { store: "S3", source: "connection refused".into() };
        let text = error.to_string();
        assert_eq!(advised("s3://bucket/x", error).to_string(), text);
    }
}
