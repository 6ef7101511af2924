//! The PROXY protocol, versions 1 and 2: what a load balancer says of a connection before its first byte.

use std::io;
use std::net::IpAddr;

use ppp::{PartialResult as _, v1, v2};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// The begin of version 1, and its longest line.
const TEXT: &[u8] = b"PROXY";
const MAX_LINE: usize = 107;
/// Whoever it is would count as the load balancer, which is trusted.
const NO_ADDRESS: &str = "names no address";
/// The longest header of version 2, which may have fields of its own.
const MAX_HEADER: usize = 4 << 10;

/// Takes the header from a connection. Where the connection comes from, or `None` where it says that it is
/// the load balancer's own.
///
/// # Errors
/// A connection that does not begin with such a header.
pub(crate) async fn read(stream: &mut TcpStream) -> io::Result<Option<IpAddr>> {
    let mut header = Vec::new();
    let mut piece = [0; 256];
    loop {
        // What is behind the header is left for others.
        let length = stream.peek(&mut piece).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let taken = header.len();
        header.extend_from_slice(&piece[..length]);
        let said = parse(&header)?;
        let rest = said.map_or(length, |(end, _)| end.saturating_sub(taken));
        stream.read_exact(&mut piece[..rest]).await?;
        match said {
            Some((_, source)) => return Ok(source),
            None if header.len() > MAX_HEADER => return Err(invalid("is too long")),
            None => {}
        }
    }
}

/// The length of a header and what it says; `None` where there is more to come.
fn parse(bytes: &[u8]) -> io::Result<Option<(usize, Option<IpAddr>)>> {
    let text = bytes.len().min(TEXT.len());
    if bytes[..text] == TEXT[..text] {
        return parse_text(bytes);
    }
    let header = v2::Header::try_from(bytes);
    if header.is_incomplete() {
        return Ok(None);
    }
    let header = header.map_err(|error| invalid(&error.to_string()))?;
    let source = match header.addresses {
        _ if header.command == v2::Command::Local => None,
        v2::Addresses::IPv4(ends) => Some(ends.source_address.into()),
        v2::Addresses::IPv6(ends) => Some(ends.source_address.into()),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => return Err(invalid(NO_ADDRESS)),
    };
    Ok(Some((header.len(), source)))
}

/// The same for version 1, a line. The parser takes what there is of a line for all of it.
fn parse_text(bytes: &[u8]) -> io::Result<Option<(usize, Option<IpAddr>)>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() {
            ..MAX_LINE => Ok(None),
            _ => Err(invalid("is too long")),
        };
    };
    let header = v1::Header::try_from(&bytes[..=end]);
    let source = match header
        .map_err(|error| invalid(&error.to_string()))?
        .addresses
    {
        v1::Addresses::Unknown => return Err(invalid(NO_ADDRESS)),
        v1::Addresses::Tcp4(ends) => Some(ends.source_address.into()),
        v1::Addresses::Tcp6(ends) => Some(ends.source_address.into()),
    };
    Ok(Some((end + 1, source)))
}

fn invalid(why: &str) -> io::Error {
    let message = format!("the header of the PROXY protocol: {why}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    const V1: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 5555 443\r\n";

    fn version2(command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        header.extend([0x20 | command, family]);
        header.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        header.extend(payload);
        header
    }

    /// What is read of these pieces, and what is left behind it.
    async fn read_pieces(pieces: &[&[u8]]) -> io::Result<(Option<IpAddr>, Vec<u8>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let (read, ()) = tokio::join!(read(&mut server), async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
        });
        let mut rest = Vec::new();
        let source = read?;
        server.read_to_end(&mut rest).await.unwrap();
        Ok((source, rest))
    }

    #[tokio::test]
    async fn a_header_says_where_a_connection_comes_from() {
        let ipv4 = [203, 0, 113, 9, 192, 0, 2, 1, 0x15, 0xb3, 1, 187];
        // Behind the addresses a field of 600 bytes, as some cloud's load balancers have.
        let with_field = [&ipv4[..], &[0xea, 0x02, 0x58], &[7; 600]].concat();
        let ipv6 = [
            [0x20, 1, 0xd, 0xb8].as_slice(),
            &[0; 11],
            &[9],
            &[0; 16],
            &[1, 2, 3, 4],
        ]
        .concat();
        let tcp6 = b"PROXY TCP6 2001:db8::9 ::1 1 2\r\n";
        // The first bytes of TLS are no text.
        let rest = b"\x16\x03\x01\xff\xfe\r\n";
        for (header, source) in [
            (V1.to_vec(), Some("203.0.113.9")),
            (tcp6.to_vec(), Some("2001:db8::9")),
            (version2(1, 0x11, &ipv4), Some("203.0.113.9")),
            (version2(1, 0x11, &with_field), Some("203.0.113.9")),
            (version2(1, 0x21, &ipv6), Some("2001:db8::9")),
            (version2(0, 0x11, &ipv4), None),
            (version2(0, 0, &[]), None),
        ] {
            let source = source.map(|source| source.parse::<IpAddr>().unwrap());
            let whole = [&header[..], rest].concat();
            let bytes: Vec<&[u8]> = whole.chunks(1).collect();
            for pieces in [&[&whole[..]][..], &[&header, rest], &bytes] {
                let read = read_pieces(pieces).await.unwrap();
                assert_eq!(read, (source, rest.to_vec()), "{header:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        let long = version2(1, 0x11, &[0; 8 << 10]);
        for bytes in [
            &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"PROXY TCP4 203.0.113.9 192.0.2.1 5555\r\n",
            b"PROXY TCP4 nobody 192.0.2.1 5555 443\r\n",
            b"PROXY UNKNOWN\r\n",
            &version2(1, 0, &[]),
            b"PROXY TCP4 203.0.1",
            b"",
            &V1.repeat(3)[..20],
            &long,
            &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let read = read_pieces(&[bytes]).await;
            assert!(read.is_err(), "{bytes:?}: {read:?}");
        }
    }
}
