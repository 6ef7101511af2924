//! NATS JetStream.

use crate::OpenError;
use crate::common::Driver;

pub(crate) const DRIVER: Driver = Driver {
    check: |_| Err(missing()),
    open: |_, _| Box::pin(async { Err(missing()) }),
    migrate: |_, _| Box::pin(async { Err(missing()) }),
};

fn missing() -> OpenError {
    OpenError::invalid("nats", "is not there in this version")
}
