//! Names that only the gateway, or something in front of it, may give a meaning.

use http::header::{
    CONNECTION, HeaderMap, HeaderName, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};

use super::{FENCE, ID, KEEP_ALIVE, KEY, PROXY_CONNECTION, forwarded};

/// The names that services trust because the gateway stands in front of them.
#[derive(Debug)]
pub(super) struct Reserved {
    names: Vec<HeaderName>,
    /// A bit for each length that one of them has: most fields of a request have another.
    lengths: u64,
}

impl Reserved {
    /// The gateway's own, and those that a scope is made of.
    pub(super) fn new(scope: &[HeaderName]) -> Self {
        let ours = [KEY, FENCE, ID].into_iter().chain(forwarded::ALL);
        let names: Vec<HeaderName> = ours.chain(scope.iter().cloned()).collect();
        let bits = names.iter().map(|name| bit(name.as_str()));
        Self {
            lengths: bits.fold(0, |all, bit| all | bit),
            names,
        }
    }

    /// Removes fields that a service could take for one of these: CGI and what follows it (WSGI,
    /// Rack, PHP) read `Idempotency_Fence` and `Idempotency-Fence` as the same variable, and some of
    /// them any other sign as well.
    pub(super) fn remove_twins(&self, headers: &mut HeaderMap) {
        remove_all(headers, |name| self.has_twin(name));
    }

    fn has_twin(&self, name: &HeaderName) -> bool {
        self.lengths & bit(name.as_str()) != 0
            && self.names.iter().any(|ours| are_twins(name, ours))
    }

    /// Removes what has no place behind a body: these names, their twins, and fields of one
    /// connection. A service may merge trailers into the header, where they were checked.
    pub(super) fn remove_from_trailers(&self, trailers: &mut HeaderMap) {
        let hop_by_hop = [
            CONNECTION,
            KEEP_ALIVE,
            PROXY_AUTHORIZATION,
            PROXY_CONNECTION,
            TE,
            TRANSFER_ENCODING,
            UPGRADE,
        ];
        remove_all(trailers, |name| {
            hop_by_hop.contains(name) || self.names.contains(name) || self.has_twin(name)
        });
    }
}

fn remove_all(headers: &mut HeaderMap, unwanted: impl Fn(&&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(unwanted).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Of a name's length. Longer ones share bits.
const fn bit(name: &str) -> u64 {
    1 << (name.len() % 64)
}

fn are_twins(name: &HeaderName, ours: &HeaderName) -> bool {
    let (name, ours) = (name.as_str(), ours.as_str());
    let alike =
        |(a, b): (u8, u8)| a == b || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric());
    name.len() == ours.len() && name != ours && name.bytes().zip(ours.bytes()).all(alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_differs_in_its_signs_only() {
        let reserved = Reserved::new(&[HeaderName::from_static("x_account")]);
        let mut headers = HeaderMap::new();
        let names = [
            "idempotency_fence",
            "idempotency.key",
            "x_forwarded-for",
            "x-account",
            // These stay.
            "idempotency-key",
            "idempotency_fences",
            "idempotency-fencf",
            "x_account",
            "x_trace_id",
        ];
        for name in names {
            headers.insert(HeaderName::from_static(name), "1".parse().unwrap());
        }
        reserved.remove_twins(&mut headers);
        let left = |name: &&str| headers.contains_key(*name);
        assert!(!names[..4].iter().any(left), "{headers:?}");
        assert!(names[4..].iter().all(left), "{headers:?}");
    }
}
