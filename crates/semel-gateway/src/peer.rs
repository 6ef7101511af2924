//! Who is at the other end of a connection.

use std::net::IpAddr;

use http::HeaderValue;

/// The client of a connection, or a proxy before it.
#[derive(Debug, Clone)]
pub struct Peer {
    address: IpAddr,
    field: HeaderValue,
}

impl Peer {
    /// At this address.
    pub fn new(address: IpAddr) -> Self {
        // An IPv4 client of a socket for both has an address of either kind.
        let address = address.to_canonical();
        let field = HeaderValue::try_from(address.to_string());
        let field = field.expect("an address can stand in a field");
        Self { address, field }
    }

    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// The address as a field's value: made once for all requests.
    pub(crate) const fn field(&self) -> &HeaderValue {
        &self.field
    }
}
