//! Listings, while what they list changes.

use std::collections::HashSet;

use semel::StateKind;
use semel::store::{Fenced, ListQuery, Store as _, StoreExt as _};
use semel_testkit::servers::{Kind, shared};

use super::{LONG, acquire, complete, identity, open, unique, with_bucket};

#[tokio::test]
async fn what_is_renewed_while_it_is_listed_is_listed_once() {
    let url = with_bucket(&shared(Kind::Nats).unwrap(), &unique("listing"));
    let store = open(&url).await;
    let mut holders = Vec::new();
    for n in 0..20 {
        let identity = identity(&format!("running-{n}"));
        let token = acquire(&store, &identity, LONG).await;
        holders.push((identity, token));
    }
    // Each has two messages, that no batch has together.
    for n in 0..300 {
        let identity = identity(&format!("done-{n}"));
        let token = acquire(&store, &identity, LONG).await;
        let _ = complete(&store, &identity, &token).await.unwrap();
    }
    let renew_all = async |lease| {
        for (identity, token) in &holders {
            let renewed = store.renew(identity.digest(), token, lease).await;
            assert_eq!(renewed.unwrap(), Fenced::Applied);
        }
    };
    renew_all(2 * LONG).await;
    let mut query = ListQuery::new(StateKind::InFlight);
    query.limit = 6;
    let mut listed = Vec::new();
    for hours in 3.. {
        let page = store.list(&query).await.unwrap();
        listed.extend(page.entries.iter().map(|entry| entry.label.digest));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
        // More than is left of the lease, or nothing would change.
        renew_all(hours * LONG).await;
    }
    let different: HashSet<_> = listed.iter().collect();
    assert_eq!((listed.len(), different.len()), (20, 20));
}
