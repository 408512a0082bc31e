//! A small HTTP server that answers by a function, on its own threads.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path with its query.
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A response: status line, further header lines that each end with `\r\n`, body.
pub(crate) type Answer = (&'static str, String, Vec<u8>);

/// A header line of answers whose body stops in the middle, and never goes on.
pub(crate) const STALLS: &str = "x-stalls: yes\r\n";

/// Answers with the result of `handler` until the process ends; `None` sends no answer at all. If the handler sends a
/// `content-length` larger than the body, the body is cut off. See also [`STALLS`].
pub(crate) fn answer(handler: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Arc::new(handler);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || drop(serve(stream, &*handler)));
        }
    });
    address
}

fn serve(mut stream: TcpStream, handler: &dyn Fn(&Request) -> Option<Answer>) -> std::io::Result<()> {
    // Headers and bodies are sent one by one: without this each answer would wait for the client to acknowledge the last one.
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
                None => break,
            };
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let request = Request { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() };
        let Some((status, extra, body)) = handler(&request) else {
            // Until the client closes the connection.
            reader.read_line(&mut String::new())?;
            return Ok(());
        };
        let announced = extra.contains("content-length: ");
        let length = if announced { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        stream.write_all(format!("HTTP/1.1 {status}\r\n{length}{extra}\r\n").as_bytes())?;
        if extra.contains(STALLS) {
            stream.write_all(&body[..body.len() / 2])?;
            reader.read_line(&mut String::new())?;
            return Ok(());
        }
        if request.method != "HEAD" {
            stream.write_all(&body)?;
            if announced {
                return Ok(());
            }
        }
    }
}

/// Returns the part of `bytes` that `range` requests, with `extra` header lines.
pub(crate) fn ranged(bytes: Vec<u8>, range: Option<&str>, mut extra: String) -> Answer {
    let size = bytes.len();
    let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")) else { return ("200 OK", extra, bytes) };
    let (start, end) = range.split_once('-').unwrap();
    let (start, end) = match (start.parse::<usize>(), end.parse::<usize>()) {
        (Ok(start), Ok(last)) => (start, (last + 1).min(size)),
        (Ok(start), Err(_)) => (start, size),
        (Err(_), Ok(length)) => (size.saturating_sub(length), size),
        (Err(_), Err(_)) => (0, size),
    };
    if start >= end {
        return ("416 Range Not Satisfiable", extra, Vec::new());
    }
    extra.push_str(&format!("content-range: bytes {start}-{}/{size}\r\n", end - 1));
    ("206 Partial Content", extra, bytes[start..end].to_vec())
}
