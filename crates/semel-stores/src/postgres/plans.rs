//! Each statement finds its rows by an index, whatever was known of the table when it was planned.

use semel_testkit::servers::{Postgres, Server as _};
use tokio_postgres::SimpleQueryMessage;

use super::PostgresOptions;
use super::connect::Connector;
use super::sql::{Kind, fill};

/// What a session may know of the table when it makes a plan that it keeps.
const STATES: [(&str, &str); 5] = [
    ("fresh", ""),
    (
        "empty and analysed",
        "ANALYZE {records}; ANALYZE {versioned}",
    ),
    ("full, half of it in flight", "{fill}; ANALYZE {records}"),
    (
        "full, none in flight",
        "{fill}; UPDATE {records} SET state = 'completed', purge_at = now(); VACUUM ANALYZE {records}",
    ),
    (
        "emptied by a purge",
        "{fill}; DELETE FROM {records}; VACUUM ANALYZE {records}",
    ),
];

const FILL: &str = "
INSERT INTO {records} (digest, state, fence, nonce, attempt, fingerprint, created_at, claimed_at,
  lease_until, expires_at, purge_at, scope, operation, key_hint)
SELECT sha256(n::text::bytea), CASE n % 2 WHEN 0 THEN 'in-flight' ELSE 'completed' END, n, '', 1,
  '', now(), now(), now(), 'infinity', CASE n % 2 WHEN 0 THEN 'infinity' ELSE now() END, '{}', '', ''
FROM generate_series(1, 20000) AS n";

#[tokio::test(flavor = "multi_thread")]
async fn every_plan_goes_by_an_index_in_every_state() {
    let server = Postgres::start(&["autovacuum=off", "fsync=off"]).unwrap();
    let mut wrong = Vec::new();
    for (number, (state, prelude)) in STATES.into_iter().enumerate() {
        let url = format!("{}?table=t{number}&schema=create", server.url());
        let options = PostgresOptions::from_url(&url).unwrap();
        options.clone().open().await.unwrap();
        let with = Connector::new(&options).unwrap();
        let link = with.connect_bare().await.unwrap();
        let client = link.client();
        for statement in prelude.split("; ") {
            let statement = fill(&statement.replace("{fill}", FILL), &with.table);
            client.batch_execute(&statement).await.unwrap();
        }
        for kind in Kind::ALL {
            let text = with.sql.text(kind);
            let parameters = (1..30)
                .take_while(|n| text.contains(&format!("${n}")))
                .count();
            let nulls = vec!["NULL"; parameters].join(", ");
            let explain = match parameters {
                0 => format!("EXPLAIN {text}"),
                _ => format!("PREPARE p AS {text}; EXPLAIN EXECUTE p({nulls}); DEALLOCATE p"),
            };
            let answer = client.simple_query(&explain).await.unwrap();
            let plan: Vec<&str> = answer
                .iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                })
                .collect();
            if kind != Kind::Clear && !goes_by_an_index(kind, &plan) {
                wrong.push(format!("{state}, {kind:?}:\n{}", plan.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Whether each scan has a condition on its index; the purge goes by what is due first.
fn goes_by_an_index(kind: Kind, plan: &[&str]) -> bool {
    plan.iter().enumerate().all(|(at, line)| {
        let scans = ["Seq Scan", "Index Scan", "Index Only Scan", "Tid Scan"];
        let conditions = ["Index Cond", "TID Cond"];
        let next = plan.get(at + 1).copied().unwrap_or_default();
        !scans.iter().any(|scan| line.contains(scan))
            || conditions.iter().any(|condition| next.contains(condition))
            || (kind == Kind::Purge && line.contains("_purge"))
    })
}
