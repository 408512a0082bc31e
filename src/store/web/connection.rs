//! A connection to a service of the web: times, proxy, certificates. The options of that name apply to it as they do to stores.

use std::time::Duration;

use url::Url;

use super::options::{Options, is_true};
use crate::error::{Result, Source};
use crate::store::secret::Secret;

/// Name of this program in requests.
const USER_AGENT: &str = concat!("bowstring/", env!("CARGO_PKG_VERSION"));

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Connection {
    /// Maximum wait for the start of a response, and for each further part.
    pub(in crate::store) timeout: Duration,
    pub(in crate::store) connect_timeout: Duration,
    /// Longest time of a request and all of its answer, if there is one.
    whole: Option<Duration>,
    proxy: Option<Secret>,
    user_agent: String,
    allow_invalid_certificates: bool,
}

impl Connection {
    /// Reads it from `options`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a wrong value.
    pub(in crate::store) fn new(options: Options<'_>) -> Result<Self> {
        Ok(Self {
            timeout: options.duration("timeout", 30)?,
            connect_timeout: options.duration("connect_timeout", 5)?,
            whole: None,
            proxy: options.get(&["proxy_url"]).map(Secret::new),
            user_agent: options.get(&["user_agent"]).unwrap_or(USER_AGENT).to_owned(),
            allow_invalid_certificates: options.get(&["allow_invalid_certificates"]).is_some_and(is_true),
        })
    }

    /// A connection without options, on which a request and its answer take no longer than `timeout`.
    pub(in crate::store) fn within(timeout: Duration) -> Self {
        let user_agent = USER_AGENT.to_owned();
        Self {
            timeout,
            connect_timeout: timeout,
            whole: Some(timeout),
            proxy: None,
            user_agent,
            allow_invalid_certificates: false,
        }
    }

    /// A client of HTTP.
    ///
    /// # Errors
    /// A proxy that is no address, and what the system refuses, without addresses.
    pub(in crate::store) fn client(&self) -> std::result::Result<reqwest::Client, Source> {
        let failed = |error: reqwest::Error| Source::from(error.without_url());
        let mut builder = reqwest::Client::builder()
            // A secret never goes to a host that an answer names.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.timeout)
            .user_agent(&self.user_agent)
            .danger_accept_invalid_certs(self.allow_invalid_certificates);
        if let Some(whole) = self.whole {
            builder = builder.timeout(whole);
        }
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(reqwest::Proxy::all(proxy.reveal()).map_err(failed)?);
        }
        builder.build().map_err(failed)
    }
}

/// The address of a service in `text`: of the web, with nothing but host, port and path. No slash at its end.
pub(in crate::store) fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text.trim_end_matches('/')).ok()?;
    let plain =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && plain).then_some(url)
}

/// `url` with `parts` appended to its path.
pub(in crate::store) fn below(url: &Url, parts: &[&str]) -> Url {
    let mut url = url.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(parts);
    }
    url
}

/// Whether `host` is this machine.
pub(in crate::store) fn is_near(host: Option<&str>) -> bool {
    matches!(host, Some("localhost" | "127.0.0.1" | "[::1]" | "::1"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_never_pauses_for_long_ends_in_time_as_well() {
        const LENGTH: usize = 60;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n").unwrap();
            // 3 s in all.
            (0..LENGTH).all(|_| {
                thread::sleep(Duration::from_millis(50));
                stream.write_all(b"x").is_ok()
            })
        });
        let client = Connection::within(Duration::from_millis(500)).client().unwrap();
        let answer = client.get(&url).send().await.unwrap();
        assert!(answer.bytes().await.unwrap_err().is_timeout());
        server.join().unwrap();
    }
}
