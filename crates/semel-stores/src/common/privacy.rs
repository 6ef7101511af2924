//! Who can read along, or answer in the server's place, on the way to it.

use std::error::Error;
use std::io;
use std::sync::Arc;

/// What stands in the way of TLS, where that is behind an error: the server's certificate for us, or
/// ours for the server.
pub(crate) fn objection<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(objection) = error.downcast_ref() {
            use rustls::Error::{AlertReceived, InvalidCertificate};
            let about_us = matches!(objection, AlertReceived(_) | InvalidCertificate(_));
            return about_us.then_some(objection);
        }
        // These two hide what they hold from `source`.
        next = if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(&**shared)
        } else if let Some(inner) = error.downcast_ref().and_then(io::Error::get_ref) {
            Some(inner)
        } else {
            error.source()
        };
    }
    None
}
