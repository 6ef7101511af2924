//! `dynamodb://TABLE?…`.

use url::Url;

use super::options::{DynamoDbOptions, Purging};
use crate::common::Location;
use crate::{OpenError, Schema};

const SCHEME: &str = "dynamodb";
const PARAMETERS: &str = "endpoint, region, profile, schema, timeout, purge";

/// The options that a URL says, and what becomes of the schema, where it says that.
pub(super) fn parse(url: &str) -> Result<(DynamoDbOptions, Option<Schema>), OpenError> {
    let mut location = Location::parse(SCHEME, url)?;
    let endpoint: Option<String> = location.take("endpoint", "a URL")?;
    let region: Option<String> = location.take("region", "a region's name")?;
    let profile: Option<String> = location.take("profile", "a profile's name")?;
    let schema = location.schema()?;
    let timeout = location.duration("timeout")?;
    let words = [("ttl", Purging::Ttl), ("scan", Purging::Scan)];
    let purging = location.choice("purge", &words)?.unwrap_or(Purging::Ttl);
    let invalid = |reason: &str| Err(OpenError::invalid(SCHEME, reason));
    if let Some(endpoint) = &endpoint
        && !Url::parse(endpoint).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
        })
    {
        return invalid(
            "parameter `endpoint` must be a URL as in http://127.0.0.1:8000, without a user",
        );
    }
    let url = location.whole(PARAMETERS)?;
    let table = url.host_str().unwrap_or_default();
    if !is_table_name(table) {
        return invalid(
            "is followed by the table's name, as in `dynamodb://semel`: 3 to 245 of a-z, A-Z, \
             0-9, `_`, `-` and `.`",
        );
    }
    if !url.username().is_empty() || url.password().is_some() || url.port().is_some() {
        return invalid(
            "takes no user, password or port: credentials come as the AWS SDK finds them, and \
             another server is `endpoint=`",
        );
    }
    if !matches!(url.path(), "" | "/") || url.fragment().is_some() {
        return invalid("takes nothing after the table's name but parameters");
    }
    let mut options = DynamoDbOptions::new(table).purging(purging);
    options.endpoint = endpoint;
    options.region = region;
    options.profile = profile;
    if let Some(timeout) = timeout {
        options.timeout = timeout;
    }
    Ok((options, schema))
}

/// Whether DynamoDB allows it, with `-versioned` behind it.
pub(super) fn is_table_name(name: &str) -> bool {
    (3..=245).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}
