//! Reaching DynamoDB: endpoint, region, credentials and time-outs.

use std::net::IpAddr;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{Credentials, ProvideCredentials as _};
use semel::StoreError;
use url::{Host, Url};

use super::call::Table;
use super::errors::config;
use super::options::{DynamoDbOptions, is_table_name};

/// Finds credentials and region as the SDK does, and makes a client.
pub(super) async fn connect(options: &DynamoDbOptions) -> Result<Table, StoreError> {
    if !is_table_name(&options.table) {
        return Err(config(
            "a table's name is 3 to 245 of a-z, A-Z, 0-9, `_`, `-` and `.`",
        ));
    }
    let loaded = match &options.sdk {
        Some(loaded) => loaded.clone(),
        None => load(options).await,
    };
    if loaded.region().is_none() && options.region.is_none() {
        return Err(config(
            "no region is known: add `region=` to the URL, or set AWS_REGION",
        ));
    }
    let Some(credentials) = loaded.credentials_provider() else {
        return Err(config(NO_CREDENTIALS));
    };
    // Now, so that what is missing is said as such, and not with the first request.
    let provided = tokio::time::timeout(options.timeout, credentials.provide_credentials()).await;
    match provided {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(config(NO_CREDENTIALS).with_source(error)),
        Err(_) => return Err(config(NO_CREDENTIALS)),
    }
    let times = TimeoutConfig::builder()
        .connect_timeout(options.timeout / 4)
        // Time for a second attempt, on another connection.
        .operation_attempt_timeout(options.timeout / 2)
        .build();
    let mut builder = aws_sdk_dynamodb::config::Builder::from(&loaded)
        .retry_config(RetryConfig::disabled())
        .timeout_config(times)
        // Retention goes by this machine's wall clock: one that is off by more than the five
        // minutes that AWS allows is to be refused, not corrected where it does not matter.
        .disable_clock_skew_correction(true);
    if let Some(endpoint) = &options.endpoint {
        builder = builder.endpoint_url(endpoint);
    }
    // The SDK has further places for an endpoint.
    let others = || {
        let variable = std::env::var("AWS_ENDPOINT_URL_DYNAMODB").ok();
        variable.or_else(|| loaded.endpoint_url().map(str::to_owned))
    };
    if let Some(region) = &options.region {
        builder = builder.region(Region::new(region.clone()));
    }
    Ok(Table {
        client: aws_sdk_dynamodb::Client::from_conf(builder.build()),
        name: options.table.clone(),
        endpoint: options.endpoint.clone().or_else(others),
        timeout: options.timeout,
    })
}

async fn load(options: &DynamoDbOptions) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(profile) = &options.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(region) = &options.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if options.endpoint.as_deref().is_some_and(is_loopback) && options.profile.is_none() {
        if !is_set(&CREDENTIALS) {
            let unused = "semel";
            loader = loader
                .credentials_provider(Credentials::new(unused, unused, None, None, "loopback"));
        }
        if options.region.is_none() && !is_set(&["AWS_REGION", "AWS_DEFAULT_REGION"]) {
            loader = loader.region(Region::from_static("us-east-1"));
        }
    }
    loader.load().await
}

const NO_CREDENTIALS: &str = "no AWS credentials were found: set AWS_ACCESS_KEY_ID and \
     AWS_SECRET_ACCESS_KEY (any values will do for an emulator), name a `profile=`, or give the \
     machine a role";

/// Variables that name credentials, or where they come from.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

fn is_set(variables: &[&str]) -> bool {
    variables
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

fn is_loopback(endpoint: &str) -> bool {
    let Ok(url) = Url::parse(endpoint) else {
        return false;
    };
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    }
}
