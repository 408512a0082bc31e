//! A connection to a metastore for one call. It blocks: an answer says nowhere how long it is, so that it is parsed as it comes.

use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::store::web::Connection;

/// Attempts to connect, and the wait between them.
const ATTEMPTS: u32 = 3;
const WAIT: Duration = Duration::from_millis(300);

/// Times the longest wait for one part of an answer that all of it may take.
const WHOLE: u32 = 10;

/// A stream on which each wait ends in time.
#[derive(Debug)]
struct Timed {
    stream: TcpStream,
    timeout: Duration,
    end: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now()).min(self.timeout);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer).map_err(|error| match error.kind() {
            // What a socket says in place of it.
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

/// Sends `message` to `host` and returns what it answers.
///
/// # Errors
/// Those of the network.
pub(super) fn call(host: &str, port: u16, connection: &Connection, message: &[u8]) -> io::Result<impl Read + use<>> {
    let mut stream = connected(host, port, connection)?;
    let timeout = connection.timeout.max(Duration::from_millis(1));
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(message)?;
    let end = Instant::now() + timeout.saturating_mul(WHOLE).min(Duration::from_secs(86_400));
    Ok(BufReader::with_capacity(64 << 10, Timed { stream, timeout, end }))
}

fn connected(host: &str, port: u16, connection: &Connection) -> io::Result<TcpStream> {
    let timeout = connection.connect_timeout.max(Duration::from_millis(1));
    let once = || {
        let mut problem = io::Error::new(io::ErrorKind::NotFound, "its name leads to no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => return Ok(stream),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    };
    let mut attempt = 1;
    loop {
        match once() {
            Err(_) if attempt < ATTEMPTS => std::thread::sleep(WAIT.saturating_mul(attempt)),
            done => return done,
        }
        attempt += 1;
    }
}
