//! HTTP connections of object stores: as `object_store` makes them from its options, except for redirects and the choice of addresses.
//!
//! `reqwest` follows a redirect to another host with all headers but `Authorization`, the session token of S3 among them, and names the
//! address it comes from, with the signature of Azure in it. `object_store` has no option against that.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use object_store::{ClientConfigKey as Key, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, NoProxy, Proxy};

use super::web::is_true;

/// Redirects in a row, as many as `reqwest` follows by default.
const MOST_REDIRECTS: usize = 10;
/// What servers see in their logs, unless an option says otherwise.
const USER_AGENT: &str = concat!("bowstring/", env!("CARGO_PKG_VERSION"));

/// Gives an option its value.
type Set<T> = fn(ClientBuilder, T) -> ClientBuilder;

/// The redirects that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redirects {
    /// All: requests carry no secret.
    Anywhere,
    /// Those to the same host.
    Within,
}

impl Redirects {
    fn policy(self) -> Policy {
        match self {
            Self::Anywhere => Policy::limited(MOST_REDIRECTS),
            Self::Within => Policy::custom(|attempt| {
                let stays = attempt.previous().iter().all(|from| from.origin() == attempt.url().origin());
                // Otherwise the redirect is the answer, which is an error.
                if stays && attempt.previous().len() <= MOST_REDIRECTS { attempt.follow() } else { attempt.stop() }
            }),
        }
    }
}

/// A client with `options`.
///
/// # Errors
/// An option that is no value of its kind, and what the system refuses.
pub(super) fn client(options: &ClientOptions, redirects: Redirects) -> object_store::Result<reqwest::Client> {
    let failed = |error: reqwest::Error| generic(error.without_url());
    let mut builder = ClientBuilder::new()
        .redirect(redirects.policy())
        .referer(false)
        .user_agent(options.get_config_value(&Key::UserAgent).unwrap_or_else(|| USER_AGENT.to_owned()))
        // Compression would change lengths.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .https_only(!is_on(options, Key::AllowHttp)?)
        .danger_accept_invalid_certs(is_on(options, Key::AllowInvalidCertificates)?)
        .http2_keep_alive_while_idle(is_on(options, Key::Http2KeepAliveWhileIdle)?);
    if is_on(options, Key::NoSystemCertificates)? {
        builder = builder.tls_certs_only([]);
    }
    if let Some(url) = options.get_config_value(&Key::ProxyUrl) {
        let excluded = options.get_config_value(&Key::ProxyExcludes).and_then(|hosts| NoProxy::from_string(&hosts));
        builder = builder.proxy(Proxy::all(url).map_err(failed)?.no_proxy(excluded));
        if let Some(pem) = options.get_config_value(&Key::ProxyCaCertificate) {
            builder = builder.tls_certs_merge([Certificate::from_pem(pem.as_bytes()).map_err(failed)?]);
        }
    }
    let durations: [(Key, Set<Duration>); 6] = [
        (Key::Timeout, ClientBuilder::timeout),
        (Key::ConnectTimeout, ClientBuilder::connect_timeout),
        (Key::ReadTimeout, ClientBuilder::read_timeout),
        (Key::PoolIdleTimeout, |builder, time| builder.pool_idle_timeout(time)),
        (Key::Http2KeepAliveInterval, |builder, time| builder.http2_keep_alive_interval(time)),
        (Key::Http2KeepAliveTimeout, ClientBuilder::http2_keep_alive_timeout),
    ];
    for (key, set) in durations {
        if let Some(text) = options.get_config_value(&key) {
            builder = set(builder, humantime::parse_duration(&text).map_err(generic)?);
        }
    }
    if let Some(most) = number(options, Key::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(most);
    }
    if let Some(bytes) = number(options, Key::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(Some(bytes));
    }
    if is_on(options, Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if is_on(options, Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    if is_on(options, Key::RandomizeAddresses)? {
        builder = builder.dns_resolver(Arc::new(InTurn::default()));
    }
    builder.build().map_err(failed)
}

fn is_on(options: &ClientOptions, key: Key) -> object_store::Result<bool> {
    options.get_config_value(&key).map_or(Ok(false), |text| match is_true(&text) {
        true => Ok(true),
        false if ["0", "off", "no", "n", "false"].iter().any(|word| text.eq_ignore_ascii_case(word)) => Ok(false),
        false => Err(generic(format!("{} is not true or false", key.as_ref()))),
    })
}

fn number<T: FromStr>(options: &ClientOptions, key: Key) -> object_store::Result<Option<T>> {
    let parsed = |text: String| text.parse().map_err(|_| generic(format!("{} is no number", key.as_ref())));
    options.get_config_value(&key).map(parsed).transpose()
}

fn generic(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP client", source: error.into() }
}

/// Resolves a name to its addresses, beginning with another one each time: a store behind many addresses gets connections to all of them.
#[derive(Debug, Default)]
struct InTurn(Arc<AtomicUsize>);

impl Resolve for InTurn {
    fn resolve(&self, name: Name) -> Resolving {
        let turn = self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || (name.as_str(), 0).to_socket_addrs().map(Vec::from_iter));
            let mut addresses: Vec<SocketAddr> = found.await??;
            let first = turn % addresses.len().max(1);
            addresses.rotate_left(first);
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A server that answers its one request with `head`, and tells what it heard; `None` if it is asked nothing.
    fn server(listener: TcpListener, head: String) -> JoinHandle<Option<String>> {
        thread::spawn(move || {
            listener.set_nonblocking(true).unwrap();
            for _ in 0..40 {
                if let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nonblocking(false).unwrap();
                    let mut heard = vec![0; 4096];
                    let length = stream.read(&mut heard).unwrap();
                    stream
                        .write_all(format!("{head}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").as_bytes())
                        .unwrap();
                    return Some(String::from_utf8_lossy(&heard[..length]).to_lowercase());
                }
                thread::sleep(Duration::from_millis(25));
            }
            None
        })
    }

    /// What the second of two servers hears of a request to the first, which sends it there, and the status that comes back.
    async fn redirected(redirects: Redirects) -> (Option<String>, u16) {
        let (one, two) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (first, second) = (one.local_addr().unwrap(), two.local_addr().unwrap());
        let first_server = server(one, format!("HTTP/1.1 307 Moved\r\nLocation: http://{second}/x"));
        let second_server = server(two, "HTTP/1.1 204 No Content".to_owned());
        let client = client(&ClientOptions::new().with_allow_http(true), redirects).unwrap();
        let asked = client.get(format!("http://{first}/x?sig=secret")).header("x-amz-security-token", "token");
        let status = asked.send().await.unwrap().status().as_u16();
        assert!(first_server.join().unwrap().unwrap().contains("token"));
        (second_server.join().unwrap(), status)
    }

    #[tokio::test]
    async fn no_secret_goes_where_a_redirect_leads() {
        assert_eq!(redirected(Redirects::Within).await, (None, 307));
        let (heard, status) = redirected(Redirects::Anywhere).await;
        assert_eq!(status, 204);
        assert!(!heard.unwrap().contains("sig=secret"), "no address it came from");
    }

    #[test]
    fn options_reach_the_client() {
        let with =
            |key: Key, value: &str| client(&ClientOptions::new().with_config(key, value), Redirects::Within).is_ok();
        for (key, value) in [
            (Key::Timeout, "30s"),
            (Key::ConnectTimeout, "5 seconds"),
            (Key::PoolMaxIdlePerHost, "7"),
            (Key::ProxyUrl, "http://proxy:3128"),
            (Key::AllowInvalidCertificates, "true"),
            (Key::NoSystemCertificates, "true"),
            (Key::RandomizeAddresses, "false"),
            (Key::UserAgent, "me"),
        ] {
            assert!(with(key, value), "{key:?}");
        }
        assert!(!with(Key::ProxyUrl, "not an address"));
    }

    #[tokio::test]
    async fn addresses_take_turns() {
        let resolver = InTurn::default();
        for _ in 0..2 {
            let found: Vec<_> = resolver.resolve("localhost".parse().unwrap()).await.unwrap().collect();
            assert!(found.iter().any(|address| address.ip().is_loopback()));
        }
        assert_eq!(resolver.0.load(Ordering::Relaxed), 2);
    }
}
