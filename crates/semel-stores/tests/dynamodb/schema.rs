//! Opening by URL, making the table, and what a probe finds.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType, TimeToLiveSpecification,
};
use semel::StoreErrorKind;
use semel::store::{Durability, StoreExt as _};
use semel_stores::{OpenError, OpenOptions, check_url, migrate, open};

use super::*;

/// A client of the shared server, as an operator has one.
pub(super) async fn client(url: &str) -> aws_sdk_dynamodb::Client {
    let endpoint = url
        .split("endpoint=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap();
    let sdk = aws_config::defaults(aws_config::BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region("us-east-1")
        .credentials_provider(aws_sdk_dynamodb::config::Credentials::new(
            "test", "test", None, None, "test",
        ))
        .load()
        .await;
    aws_sdk_dynamodb::Client::new(&sdk)
}

fn name(url: &str) -> &str {
    url.trim_start_matches("dynamodb://")
        .split('?')
        .next()
        .unwrap()
}

async fn refused(url: &str) -> String {
    match open(url, &OpenOptions::default()).await {
        Ok(_) => panic!("{url} opened"),
        Err(OpenError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
            error.to_string()
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_missing_table_is_made_when_asked_for() {
    let url = url();
    let message = refused(&url).await;
    assert!(message.contains("semel migrate"), "{message}");

    let made = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!(
        (made.from, made.to, made.done.len()),
        (None, 2, 4),
        "{made:?}"
    );
    let again = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!((again.from, again.to, again.done.len()), (Some(2), 2, 0));
    let store = open(&url, &OpenOptions::default()).await.unwrap();
    let probe = store.probe().await.unwrap();
    assert_eq!(
        (probe.store, probe.durability),
        ("dynamodb", Durability::Replicated)
    );
    // The endpoint is not AWS's; nothing else is wrong.
    assert_eq!(probe.warnings.len(), 1, "{probe:?}");
    assert!(probe.warnings[0].contains("endpoint"));
}

#[tokio::test]
async fn the_url_says_what_becomes_of_the_schema() {
    let url = format!("{}&schema=create&timeout=20s&purge=scan", url());
    open(&url, &OpenOptions::default()).await.unwrap();
    open(
        &url.replace("schema=create", "schema=expect"),
        &OpenOptions::default(),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn two_may_make_it_at_once() {
    let url = url();
    let runs = (0..4).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { migrate(&url, &OpenOptions::default()).await })
    });
    let mut notes = 0;
    for run in runs.collect::<Vec<_>>() {
        let done = run.await.unwrap().unwrap().done;
        notes += done.iter().filter(|d| d.contains("noted version")).count();
    }
    assert_eq!(notes, 1);
    open(&url, &OpenOptions::default()).await.unwrap();
}

#[tokio::test]
async fn a_run_that_was_interrupted_is_finished() {
    let url = url();
    create_bare(&client(&url).await, name(&url), "pk").await;
    let message = refused(&url).await;
    assert!(message.contains("not to the end"), "{message}");
    let made = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!(made.done.len(), 3, "{made:?}");
    open(&url, &OpenOptions::default()).await.unwrap();
}

#[tokio::test]
async fn another_version_is_left_alone() {
    let url = url();
    migrate(&url, &OpenOptions::default()).await.unwrap();
    for version in ["9", "1"] {
        let put = client(&url).await.put_item().table_name(name(&url));
        put.item("pk", AttributeValue::S("semel".into()))
            .item("schema_version", AttributeValue::N(version.into()))
            .send()
            .await
            .unwrap();
        for url in [url.clone(), format!("{url}&schema=migrate")] {
            let message = refused(&url).await;
            assert!(message.contains(&format!("version {version}")), "{message}");
        }
    }
}

#[tokio::test]
async fn another_tables_key_is_refused() {
    let url = url();
    create_bare(&client(&url).await, name(&url), "id").await;
    let message = refused(&format!("{url}&schema=create")).await;
    assert!(!message.is_empty());
}

async fn create_bare(client: &aws_sdk_dynamodb::Client, table: &str, key: &str) {
    let definition = AttributeDefinition::builder()
        .attribute_name(key)
        .attribute_type(ScalarAttributeType::S);
    let hash = KeySchemaElement::builder()
        .attribute_name(key)
        .key_type(KeyType::Hash);
    client
        .create_table()
        .table_name(table)
        .attribute_definitions(definition.build().unwrap())
        .key_schema(hash.build().unwrap())
        .billing_mode(BillingMode::PayPerRequest)
        .send()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_probe_says_when_nothing_is_deleted() {
    let url = url();
    let store = create(options(&url)).await;
    let off = TimeToLiveSpecification::builder()
        .attribute_name("purge_at")
        .enabled(false)
        .build()
        .unwrap();
    client(&url)
        .await
        .update_time_to_live()
        .table_name(name(&url))
        .time_to_live_specification(off)
        .send()
        .await
        .unwrap();
    let probe = store.probe().await.unwrap();
    assert!(
        probe.warnings.iter().any(|w| w.contains("TTL")),
        "{probe:?}"
    );
    // Then purging is what removes records, without being told.
    let one = identity("one");
    let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
    let none = Retention::new(Duration::ZERO);
    complete(&store, &one, &token, none).await;
    assert_eq!(store.purge(10).await.unwrap().removed, 1);
}

#[tokio::test]
async fn an_operator_reads_a_record() {
    let url = url();
    let store = create(options(&url)).await;
    let one = identity("8e03978e-40d5-43dd-bc93-6894a57f9324");
    let token = acquired(claim(&store, &one, &request(LONG, OnLost::Hold)).await).token;
    let answer = Outcome::builder(semel::OutcomeKind::Success)
        .code(201)
        .body(b"{}");
    applied(
        store
            .complete(one.digest(), &token, &answer, DAY)
            .await
            .unwrap(),
    );
    let read = client(&url).await.get_item().table_name(name(&url));
    let item = read
        .key("pk", AttributeValue::S(one.digest().to_string()))
        .send()
        .await
        .unwrap()
        .item
        .unwrap();
    let text = |s: &str| AttributeValue::S(s.into());
    assert_eq!(item["state"], text("completed"));
    assert_eq!(item["status"], AttributeValue::N("201".into()));
    assert_eq!(item["operation"], text("op"));
    assert_eq!(item["key_hint"], text("8e03978e"));
    assert_eq!(item["scope"], AttributeValue::L(vec![text("test")]));
    // Whole seconds, never early.
    let number = |name: &str| item[name].as_n().unwrap().parse::<u64>().unwrap();
    let (seconds, micros) = (number("purge_at"), number("purge_us"));
    assert!(seconds * 1_000_000 >= micros && (seconds - 1) * 1_000_000 < micros);
}

#[tokio::test]
async fn what_is_missing_to_ask_at_all_is_said() {
    use aws_config::{Region, SdkConfig};
    let behavior = aws_config::BehaviorVersion::latest();
    let nothing = || SdkConfig::builder().behavior_version(behavior);
    let no_credentials = nothing().region(Region::new("us-east-1"));
    for (sdk, says) in [
        (nothing(), "region="),
        (no_credentials, "AWS_ACCESS_KEY_ID"),
    ] {
        let error = DynamoDbOptions::new("table")
            .sdk(sdk.build())
            .open()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Config);
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = DynamoDbOptions::new("no table").open().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
}

#[test]
fn urls() {
    for url in [
        "dynamodb://semel",
        "dynamodb://Semel_2.records-x",
        "dynamodb://semel?region=eu-central-1&profile=ops&timeout=500ms&purge=ttl&schema=migrate",
        "dynamodb://semel?endpoint=http://127.0.0.1:8000&region=us-east-1",
    ] {
        check_url(url).unwrap();
    }
    for (url, says) in [
        ("dynamodb:semel", "table's name"),
        ("dynamodb://", "table's name"),
        ("dynamodb://ab", "table's name"),
        (
            "dynamodb://me:hunter2@semel",
            "takes no user, password or port",
        ),
        ("dynamodb://semel:8000", "takes no user, password or port"),
        ("dynamodb://semel/more", "nothing after the table"),
        (
            "dynamodb://semel?shema=create",
            "no parameter `shema`; there are endpoint,",
        ),
        (
            "dynamodb://semel?schema=yes",
            "`expect`, `create` or `migrate`",
        ),
        ("dynamodb://semel?timeout=5", "duration"),
        ("dynamodb://semel?timeout=0s", "duration"),
        ("dynamodb://semel?purge=no", "`ttl` or `scan`"),
        ("dynamodb://semel?endpoint=localhost", "must be a URL"),
        (
            "dynamodb://semel?endpoint=http://me:hunter2@localhost",
            "without a user",
        ),
    ] {
        let message = check_url(url).unwrap_err().to_string();
        assert!(message.contains(says), "{url}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}
