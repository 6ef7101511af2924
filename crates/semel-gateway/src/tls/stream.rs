//! A connection with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::H2;

pin_project! {
    /// What HTTP is spoken over.
    #[project = StreamProj]
    #[derive(Debug)]
    pub(crate) enum Stream {
        Plain { #[pin] stream: TcpStream },
        Tls { #[pin] stream: Box<TlsStream<TcpStream>> },
    }
}

impl Stream {
    /// Whether the two ends agreed on HTTP/2.
    pub(crate) fn speaks_http2(&self) -> bool {
        match self {
            Self::Plain { .. } => false,
            Self::Tls { stream } => stream.get_ref().1.alpn_protocol() == Some(H2),
        }
    }
}

// For clients of hyper-util.
impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        match self.speaks_http2() {
            true => connected.negotiated_h2(),
            false => connected,
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain { stream }
    }
}

impl From<TlsStream<TcpStream>> for Stream {
    fn from(stream: TlsStream<TcpStream>) -> Self {
        let stream = Box::new(stream);
        Self::Tls { stream }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.project() {
            StreamProj::Plain { stream } => stream.poll_read(cx, buffer),
            StreamProj::Tls { stream } => stream.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.project() {
            StreamProj::Plain { stream } => stream.poll_write(cx, bytes),
            StreamProj::Tls { stream } => stream.poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.project() {
            StreamProj::Plain { stream } => stream.poll_write_vectored(cx, bytes),
            StreamProj::Tls { stream } => stream.poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain { stream } => stream.is_write_vectored(),
            Self::Tls { stream } => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.project() {
            StreamProj::Plain { stream } => stream.poll_flush(cx),
            StreamProj::Tls { stream } => stream.poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.project() {
            StreamProj::Plain { stream } => stream.poll_shutdown(cx),
            StreamProj::Tls { stream } => stream.poll_shutdown(cx),
        }
    }
}
