//! `docs/keys.md`.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use semel::KeyRule;
use semel::guard::{Done, Guard, Policy};
use semel::memory::MemoryStore;
use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
use semel::store::Retention;

async fn buy(symbol: &str, quantity: u32) -> Result<String, Infallible> {
    Ok(format!("{quantity} {symbol}"))
}

async fn shown(store: MemoryStore, request_id: Option<&str>) -> Result<String, Box<dyn Error>> {
    let guard = Guard::new(store, Policy::default());

    let account = [Part::TENANT, Part::ACCOUNT];
    let clients = KeyFrom::Client(KeyRule::STRICT);
    let open = Operation::new("open_position", account, clients)
        .with_key_required(true)
        .with_retention(Retention::ORDER);

    let user = [Part::TENANT, Part::USER];
    let resend = Operation::new("resend_receipt", user, KeyFrom::Content);
    let resend = resend.rolling(Duration::from_mins(5));

    let caller = Caller::new()
        .with(Part::TENANT, "acme")
        .with(Part::USER, "u-7")
        .with(Part::ACCOUNT, "a-1");
    let call = Call::by(&caller)
        .key(request_id)
        .field("symbol", "ACME")
        .field("quantity", 3);
    let work = |_attempt| async { buy("ACME", 3).await };
    let done = guard.run(open.asked(&call)?, work).await?;

    let call = Call::by(&caller).field("receipt", "r-9");
    let sent = guard
        .run(resend.asked(&call)?, |_| async { Ok::<_, Infallible>(()) })
        .await?;
    assert!(matches!(sent, Done::Fresh(())));
    Ok(done.into_inner())
}

#[tokio::test]
async fn it_runs() {
    let bought = shown(MemoryStore::default(), Some("0123456789abcdef")).await;
    assert_eq!(bought.unwrap(), "3 ACME");
    let refused = shown(MemoryStore::default(), None).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "this operation needs a key"
    );
}
