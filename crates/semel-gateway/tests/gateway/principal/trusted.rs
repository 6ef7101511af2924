//! Fields that a trusted proxy sets.

use super::{assert_first, assert_refused, assert_replay};
use crate::support::{Gateway, Recorder, Shop, order_with};

const ACCOUNT: [(&str, &str); 2] = [("idempotency-key", "\"k\""), ("x-account", "a")];

#[tokio::test]
async fn others_cannot_forge_the_fields_of_a_trusted_proxy() {
    let shop = Shop::open().await;
    let flags = |trusted| {
        [
            "--scope-header",
            "X-Account,Host",
            "--require-principal",
            "--trusted-scope",
            "--trust-forwarded",
            trusted,
        ]
    };
    let gateway = Gateway::start(shop.address, &flags("127.0.0.1"));
    assert_first(&order_with(gateway.address, &ACCOUNT).await);
    assert_replay(&order_with(gateway.address, &ACCOUNT).await);

    let gateway = Gateway::start(shop.address, &flags("192.0.2.1"));
    let forged = order_with(gateway.address, &ACCOUNT).await;
    assert_refused(&forged, 400, "missing-principal");
    assert_eq!(shop.received(), 1);
}

/// The service would believe them too.
#[tokio::test]
async fn the_service_does_not_get_them_either() {
    let upstream = Recorder::start().await;
    for (more, got) in [
        (
            &["--trusted-scope", "--trust-forwarded", "192.0.2.1"][..],
            &[][..],
        ),
        (
            &["--trusted-scope", "--trust-forwarded", "127.0.0.1"],
            &["a"],
        ),
        // Unless that is asked for everybody is believed.
        (&["--trust-forwarded", "192.0.2.1"], &["a"]),
    ] {
        let flags = [&["--scope-header", "X-Account"], more].concat();
        let gateway = Gateway::start(upstream.address, &flags);
        let before = upstream.seen().len();
        assert_eq!(order_with(gateway.address, &ACCOUNT).await.status, 200);
        assert_eq!(upstream.seen()[before].values("x-account"), got);
    }
}
