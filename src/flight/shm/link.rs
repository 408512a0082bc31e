//! Frames over a unix socket, in both directions at once, by cancel-safe futures that lose no byte.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::fd;
use super::wire::{Frame, Malformed, PREFIX};
use crate::memory::Slab;

/// Bytes received at once.
const CHUNK: usize = 64 << 10;
/// Pieces sent at once; the kernel takes at most 1024.
const PIECES: usize = 64;
/// Most descriptors that may arrive before the frame they belong to.
const STRAY: usize = 16;

/// Largest frame that a listener accepts: a ticket and its framing.
pub(super) const SMALL_FRAME: usize = super::wire::MAX_TICKET + 64;

/// The reason that a link ended.
#[derive(Debug)]
pub(super) enum Broken {
    /// The peer sent bytes that are not a frame.
    Malformed(Malformed),
    /// The socket failed.
    Io(io::Error),
    /// The peer left, within a frame or between two.
    Closed,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<Malformed> for Broken {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// The receiving half: bytes of an incomplete frame, and descriptors that no frame has claimed yet.
pub(super) struct Inbox {
    bytes: BytesMut,
    chunk: Box<[u8]>,
    passed: Vec<OwnedFd>,
    most: usize,
}

impl Inbox {
    /// Makes an inbox for frames of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { bytes: BytesMut::new(), chunk: vec![0; CHUNK].into_boxed_slice(), passed: Vec::new(), most }
    }

    /// Returns the next frame.
    pub(super) async fn next(&mut self, socket: &UnixStream) -> Result<Frame, Broken> {
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(frame);
            }
            let (chunk, passed) = (&mut self.chunk, &mut self.passed);
            let receive = || fd::receive(socket.as_fd(), chunk, passed);
            let count = socket.async_io(Interest::READABLE, receive).await?;
            if self.passed.len() > STRAY {
                return Err(Malformed("descriptors without frames".to_owned()).into());
            }
            match self.chunk.get(..count) {
                Some(received) if count > 0 => self.bytes.extend_from_slice(received),
                _ => return Err(Broken::Closed),
            }
        }
    }

    /// Takes the descriptor that came with the frame just received.
    pub(super) fn descriptor(&mut self) -> Result<OwnedFd, Malformed> {
        if self.passed.is_empty() {
            return Err(Malformed("the descriptor of a new slab is missing".to_owned()));
        }
        Ok(self.passed.remove(0))
    }

    fn whole(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some(prefix) = self.bytes.first_chunk::<PREFIX>() else { return Ok(None) };
        let length = Frame::length(*prefix, self.most)?;
        if self.bytes.len() - PREFIX < length {
            // The buffer grows with received bytes, not with the declared length.
            return Ok(None);
        }
        self.bytes.advance(PREFIX);
        Frame::decode(self.bytes.split_to(length).freeze()).map(Some)
    }
}

/// The sending half: frames not sent yet.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Message>,
}

struct Message {
    pieces: VecDeque<Bytes>,
    /// Sent with the first byte.
    pass: Option<Arc<Slab>>,
}

impl Outbox {
    /// Queues a frame, with the descriptor of `pass` if there is one. False if it is too long to be a frame.
    #[must_use]
    pub(super) fn push(&mut self, frame: &Frame, pass: Option<Arc<Slab>>) -> bool {
        let Some(pieces) = frame.encode() else { return false };
        self.queue.push_back(Message { pieces: pieces.into(), pass });
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends everything.
    pub(super) async fn flush(&mut self, socket: &UnixStream) -> Result<(), Broken> {
        while let Some(message) = self.queue.front_mut() {
            let slices: Vec<IoSlice<'_>> =
                message.pieces.iter().take(PIECES).map(|piece| IoSlice::new(piece)).collect();
            let pass = message.pass.as_deref().map(AsFd::as_fd);
            let mut sent = socket.async_io(Interest::WRITABLE, || fd::send(socket.as_fd(), &slices, pass)).await?;
            if sent > 0 {
                message.pass = None;
            }
            while let Some(piece) = message.pieces.front_mut() {
                let taken = piece.len().min(sent);
                piece.advance(taken);
                sent -= taken;
                if !piece.is_empty() {
                    break;
                }
                message.pieces.pop_front();
            }
            if message.pieces.is_empty() {
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}

/// Ticks every `period`, first after one period.
pub(super) fn ticker(period: Duration) -> tokio::time::Interval {
    let mut ticker = tokio::time::interval(period.max(Duration::from_millis(1)));
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticker.reset();
    ticker
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::shm::wire::Refusal;

    #[tokio::test]
    async fn frames_larger_than_the_socket_pass_while_futures_are_dropped() {
        let (one, other) = UnixStream::pair().unwrap();
        let header = Bytes::from((0..3_000_000_u32).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        let extra: Vec<Bytes> = (0..200_u8).map(|byte| Bytes::from(vec![byte; 100])).collect();
        let frame = Frame::Batch { number: 5, body: None, header: header.clone(), extra: extra.clone() };
        let mut outbox = Outbox::default();
        assert!(outbox.push(&frame, None) && outbox.push(&Frame::End, None));
        let mut inbox = Inbox::new(4 << 20);
        let mut received = Vec::new();
        while received.len() < 2 {
            // The branch that is not ready is dropped and made anew.
            tokio::select! {
                sent = outbox.flush(&one), if !outbox.is_empty() => sent.unwrap(),
                frame = inbox.next(&other) => received.push(frame.unwrap()),
            }
        }
        let whole = Frame::Batch { number: 5, body: None, header, extra: vec![extra.concat().into()] };
        assert!(received == [whole, Frame::End]);
        assert!(inbox.descriptor().is_err());
        drop(one);
        assert!(matches!(inbox.next(&other).await, Err(Broken::Closed)));
    }

    #[tokio::test]
    async fn a_frame_beyond_the_limit_is_refused_when_it_is_announced() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::default();
        let message = "x".repeat(1000);
        assert!(outbox.push(&Frame::Failed(Refusal { code: 1, message }), None));
        outbox.flush(&one).await.unwrap();
        assert!(matches!(Inbox::new(500).next(&other).await, Err(Broken::Malformed(_))));
    }
}
