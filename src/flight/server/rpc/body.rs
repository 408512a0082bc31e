//! The body of an answer to DoGet: batches as gRPC messages, sent without copying.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::Status;

use crate::flight::grpc_codec;
use crate::flight::server::stream::departed::Departed;
use crate::flight::status::to_status;
use crate::flight::wire::Encoded;

/// Messages up to this many bytes are copied into one piece: a separate frame costs more than the copy.
const SMALL: usize = 32 << 10;

/// A message of the stream.
#[derive(Debug)]
pub(crate) enum Message {
    /// The schema as an Arrow IPC message.
    Schema(Bytes),
    /// A batch, its metadata, and the claim that pays for it as long as its receiver has it.
    Batch(std::sync::Arc<Encoded>, Bytes, Departed),
    /// Stored rows: an Arrow IPC message and its body.
    Rows(Bytes, Bytes),
}

impl Message {
    fn frames(&self, out: &mut VecDeque<Bytes>) -> Result<(), Status> {
        let (header, metadata, body, length) = match self {
            Self::Schema(header) => (header, &Bytes::new(), Vec::new(), 0),
            Self::Batch(batch, metadata, _) => {
                let body: Vec<Bytes> = batch.body().collect();
                (&batch.header, metadata, body, batch.body_len())
            }
            Self::Rows(header, body) => (header, &Bytes::new(), vec![body.clone()], body.len()),
        };
        let head = grpc_codec::head(header, metadata, length).map_err(|error| to_status(&error))?;
        if head.len() + length <= SMALL {
            let mut whole = BytesMut::with_capacity(head.len() + length);
            whole.extend_from_slice(&head);
            body.iter().for_each(|part| whole.extend_from_slice(part));
            out.push_back(whole.freeze());
        } else {
            out.push_back(head);
            out.extend(body);
        }
        Ok(())
    }
}

/// Messages as an HTTP body, with the status as its trailers.
pub(crate) struct Messages<S> {
    messages: Pin<Box<S>>,
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl<S> Messages<S> {
    pub(crate) fn new(messages: S) -> Self {
        Self { messages: Box::pin(messages), pieces: VecDeque::new(), trailers: None, ended: false }
    }
}

pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut map = HeaderMap::new();
    // Only invalid metadata can fail, and ours is valid.
    if status.add_header(&mut map).is_err() {
        map.insert("grpc-status", http::HeaderValue::from_static("13"));
    }
    map
}

impl<S: Stream<Item = Result<Message, Status>>> Body for Messages<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(piece) = this.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let Some(trailers) = this.trailers.take() {
                this.ended = true;
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            match std::task::ready!(this.messages.as_mut().poll_next(context)) {
                Some(Ok(message)) => {
                    if let Err(status) = message.frames(&mut this.pieces) {
                        this.trailers = Some(trailers(&status));
                    }
                }
                Some(Err(status)) => this.trailers = Some(trailers(&status)),
                None => this.trailers = Some(trailers(&Status::ok(""))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
