//! What has to be at an address for an object to take its place there. A store that is told so refuses a request that it handles late, such as
//! one of a process that was killed since, instead of putting an old object in place of a newer one.

use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, Result, UpdateVersion};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    /// Whatever is there.
    Whatever,
    /// Nothing is there.
    Nothing,
    /// This version is there.
    Version(UpdateVersion),
}

/// What an answer to a put under a condition means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Something else is there now.
    Overtaken,
    /// The store, or this way to it, knows no conditions.
    Unknown,
    /// It has failed for another reason.
    Other,
}

impl Condition {
    /// That `found` is still there, if the store whose addresses begin with `prefix` can tell it from others; Google Cloud Storage takes the
    /// number of a version.
    pub(super) fn of(prefix: &str, found: Option<ObjectMeta>) -> Self {
        let Some(ObjectMeta { e_tag, version, .. }) = found else { return Self::Nothing };
        let is_strong = e_tag.as_deref().is_some_and(|tag| !tag.starts_with("W/"));
        let is_told = if prefix.starts_with("gs://") { version.is_some() } else { is_strong };
        if is_told { Self::Version(UpdateVersion { e_tag, version }) } else { Self::Whatever }
    }

    /// That what is at `path` of `store` now is still there. Whoever may write there and not look gets no condition.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn now(store: &dyn ObjectStore, prefix: &str, path: &Path) -> Result<Self> {
        match store.head(path).await {
            Ok(found) => Ok(Self::of(prefix, Some(found))),
            Err(Error::NotFound { .. }) => Ok(Self::of(prefix, None)),
            Err(Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) => Ok(Self::Whatever),
            Err(error) => Err(error),
        }
    }

    /// It, for a put of one request.
    pub(super) fn mode(&self) -> PutMode {
        match self {
            Self::Whatever => PutMode::Overwrite,
            Self::Nothing => PutMode::Create,
            Self::Version(version) => PutMode::Update(version.clone()),
        }
    }

    /// It, as a header that S3 knows: name and value.
    #[cfg(feature = "cloud")]
    pub(super) fn header(&self) -> Option<(reqwest::header::HeaderName, reqwest::header::HeaderValue)> {
        match self {
            Self::Whatever => None,
            Self::Nothing => Some((reqwest::header::IF_NONE_MATCH, reqwest::header::HeaderValue::from_static("*"))),
            Self::Version(version) => {
                let value = reqwest::header::HeaderValue::from_str(version.e_tag.as_deref()?).ok()?;
                Some((reqwest::header::IF_MATCH, value))
            }
        }
    }
}

impl Refusal {
    /// What `error` means for a put under a condition.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => Self::Overtaken,
            Error::NotImplemented { .. } | Error::NotSupported { .. } => Self::Unknown,
            other => Self::told(other),
        }
    }

    #[cfg(feature = "cloud")]
    fn told(error: &Error) -> Self {
        use std::error::Error as StdError;

        let causes = || std::iter::successors(Some(error as &(dyn StdError + 'static)), |error| (**error).source());
        let is_unknown = causes().any(|cause| cause.is::<super::client::Unconditional>());
        // S3's answer to an upload that is to replace an object which somebody has removed.
        let is_removed = super::answer::answers(error).any(|answer| answer.contains("<Code>NoSuchKey<"));
        match (is_unknown, is_removed) {
            (true, _) => Self::Unknown,
            (false, true) => Self::Overtaken,
            (false, false) => Self::Other,
        }
    }

    #[cfg(not(feature = "cloud"))]
    fn told(_: &Error) -> Self {
        Self::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(e_tag: Option<&str>, version: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            location: Path::from("x"),
            last_modified: Default::default(),
            size: 1,
            e_tag: e_tag.map(str::to_owned),
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn a_version_is_a_condition_where_the_store_can_tell_it() {
        let (s3, google) = ("s3://b/", "gs://b/");
        let is_version =
            |place, e_tag, version| matches!(Condition::of(place, Some(found(e_tag, version))), Condition::Version(_));
        assert_eq!(Condition::of(s3, None), Condition::Nothing);
        assert!(is_version(s3, Some("\"a\""), None) && is_version(google, Some("\"a\""), Some("7")));
        assert!(!is_version(s3, Some("W/\"a\""), None) && !is_version(s3, None, Some("7")));
        assert!(!is_version(google, Some("\"a\""), None));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let source = || "why".into();
        let path = || "x".to_owned();
        assert_eq!(Refusal::of(&Error::Precondition { path: path(), source: source() }), Refusal::Overtaken);
        assert_eq!(Refusal::of(&Error::AlreadyExists { path: path(), source: source() }), Refusal::Overtaken);
        assert_eq!(Refusal::of(&Error::NotSupported { source: source() }), Refusal::Unknown);
        let generic = |text: &str| Error::Generic { store: "S3", source: text.into() };
        assert_eq!(Refusal::of(&generic("why")), Refusal::Other);
        #[cfg(feature = "cloud")]
        {
            let answer = "Server returned non-2xx status code: 404 Not Found: <Error><Code>";
            let missing = |code| Error::NotFound { path: path(), source: format!("{answer}{code}</Code>").into() };
            assert_eq!(Refusal::of(&missing("NoSuchKey")), Refusal::Overtaken);
            assert_eq!(Refusal::of(&missing("NoSuchUpload")), Refusal::Other);
            let refused = object_store::client::HttpError::new(
                object_store::client::HttpErrorKind::Unknown,
                super::super::client::Unconditional,
            );
            assert_eq!(Refusal::of(&Error::Generic { store: "S3", source: refused.into() }), Refusal::Unknown);
        }
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn headers_are_those_of_the_web() {
        let header = |condition: Condition| {
            condition.header().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        };
        assert_eq!(header(Condition::Whatever), None);
        assert_eq!(header(Condition::Nothing).unwrap(), "if-none-match: *");
        let version = UpdateVersion { e_tag: Some("\"a\"".to_owned()), version: None };
        assert_eq!(header(Condition::Version(version)).unwrap(), "if-match: \"a\"");
    }
}
