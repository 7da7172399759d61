//! Server-sent events on their way out: frames, and a reader that may be slow.
//!
//! A reader that does not take a frame for [`SLOW_READER`] is cut off, so that it holds neither memory nor a place for good.
//! Nothing is skipped for it: every frame that matters carries an id, and the reader goes on from the last one it has.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, Response, header};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::limit::{READER_FRAMES, SLOW_READER};

/// One event. `data` is compact JSON or empty, so that it has no line break.
#[derive(Default)]
pub struct Frame<'a> {
    pub event: Option<&'a str>,
    pub id: Option<&'a str>,
    pub retry_ms: Option<u64>,
    pub data: &'a str,
}

impl Frame<'_> {
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String does not fail.
        if let Some(event) = self.event {
            let _ = writeln!(text, "event: {event}");
        }
        if let Some(id) = self.id {
            let _ = writeln!(text, "id: {id}");
        }
        if let Some(retry_ms) = self.retry_ms {
            let _ = writeln!(text, "retry: {retry_ms}");
        }
        let _ = write!(text, "data: {}\n\n", self.data);
        text
    }
}

/// A comment, which no client hands on: it only shows that the connection lives.
pub const KEEP_ALIVE: &str = ": \n\n";

/// The reader went away or took too long.
#[derive(Debug, PartialEq)]
pub struct Gone;

/// Who reads a stream.
#[derive(Clone)]
pub struct Reader {
    to: mpsc::Sender<Bytes>,
    patience: Duration,
}

impl Reader {
    /// A reader, and the answer that it reads.
    pub fn new() -> (Self, Response<Body>) {
        Self::with_patience(SLOW_READER)
    }

    fn with_patience(patience: Duration) -> (Self, Response<Body>) {
        let (to, mut from) = mpsc::channel::<Bytes>(READER_FRAMES);
        let frames = futures::stream::poll_fn(move |cx| from.poll_recv(cx).map(|frame| frame.map(Ok::<_, Infallible>)));
        let mut response = Response::new(Body::from_stream(frames));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies that gather answers before they hand them on would hold the stream back.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        (Self { to, patience }, response)
    }

    pub async fn send(&self, frame: String) -> Result<(), Gone> {
        match timeout(self.patience, self.to.send(frame.into())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Gone),
            Err(_) => {
                tracing::info!("a reader of a stream was too slow and is cut off; it goes on from the last id it has");
                Err(Gone)
            }
        }
    }

    /// Comes back when nobody reads any more.
    pub async fn gone(&self) {
        self.to.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_written_as_the_standard_has_it() {
        let whole = Frame { event: Some("change"), id: Some("7.0"), retry_ms: Some(500), data: "{}" };
        assert_eq!(whole.text(), "event: change\nid: 7.0\nretry: 500\ndata: {}\n\n");
        assert_eq!(Frame { data: "", ..Frame::default() }.text(), "data: \n\n");
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_cut_off_and_one_that_left_is_noticed() {
        let (reader, response) = Reader::with_patience(Duration::from_millis(20));
        for _ in 0..READER_FRAMES {
            assert_eq!(reader.send("x".into()).await, Ok(()));
        }
        assert_eq!(reader.send("x".into()).await, Err(Gone));
        drop(response);
        reader.gone().await;
        assert_eq!(reader.send("x".into()).await, Err(Gone));
    }
}
