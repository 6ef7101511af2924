//! How a store on DynamoDB is opened.

use std::sync::Arc;
use std::time::Duration;

use aws_config::SdkConfig;
use semel::{Clock, StoreError, StoreErrorKind};
use url::Url;

use super::connect::connect;
use super::{DynamoDbStore, schema};
use crate::common::Location;
use crate::{Migrated, OpenError, OpenOptions, Schema};

const SCHEME: &str = "dynamodb";
const PARAMETERS: &str = "endpoint, region, profile, schema, timeout, purge";

/// Who removes records whose retention ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Purging {
    /// DynamoDB itself, by the table's TTL attribute, within days and free of charge:
    /// [`purge`](semel::Store::purge) does nothing. It scans where the table's TTL is off.
    #[default]
    Ttl,
    /// [`purge`](semel::Store::purge), which reads the whole table each time: every 4 KB read are
    /// paid for.
    Scan,
}

/// How a [`DynamoDbStore`] is opened.
///
/// ```no_run
/// # async fn open() -> Result<(), semel::StoreError> {
/// let store = semel_stores::DynamoDbOptions::new("semel").region("eu-central-1").open().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct DynamoDbOptions {
    pub(super) table: String,
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    pub(super) profile: Option<String>,
    pub(super) sdk: Option<SdkConfig>,
    schema: Option<Schema>,
    pub(super) timeout: Duration,
    purging: Purging,
    clock: Option<Arc<dyn Clock>>,
    for_tests: bool,
}

impl std::fmt::Debug for DynamoDbOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoDbOptions")
            .field("table", &self.table)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl DynamoDbOptions {
    /// This table, found as the AWS SDK finds endpoint, region and credentials; a time-out of 5 s.
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            endpoint: None,
            region: None,
            profile: None,
            sdk: None,
            schema: None,
            timeout: Duration::from_secs(5),
            purging: Purging::default(),
            clock: None,
            for_tests: false,
        }
    }

    /// The options that a URL says: `dynamodb://TABLE?endpoint=…&region=…`.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the part that is wrong, and never repeats it.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let mut location = Location::parse(SCHEME, url)?;
        let mut options = Self::new("");
        options.endpoint = location.take("endpoint", "a URL")?;
        options.region = location.take("region", "a region's name")?;
        options.profile = location.take("profile", "a profile's name")?;
        options.schema = location.schema()?;
        options.timeout = location.duration("timeout")?.unwrap_or(options.timeout);
        let words = [("ttl", Purging::Ttl), ("scan", Purging::Scan)];
        options.purging = location.choice("purge", &words)?.unwrap_or_default();
        let invalid = |reason: &str| Err(OpenError::invalid(SCHEME, reason));
        if let Some(endpoint) = &options.endpoint
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
        options.table = table.into();
        Ok(options)
    }

    /// As [`from_url`](Self::from_url); what the URL does not say comes from `options`.
    pub(super) fn read(url: &str, options: &OpenOptions) -> Result<Self, OpenError> {
        let mut read = Self::from_url(url)?;
        read.schema.get_or_insert(options.schema);
        Ok(read)
    }

    /// Another server than AWS's: an emulator, a VPC endpoint.
    ///
    /// For one on this machine's loopback, where neither an environment variable nor
    /// [`sdk`](Self::sdk) names credentials, requests are signed with placeholders: emulators check
    /// none.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// The region; else as the SDK finds it (`AWS_REGION`, the profile, the machine's metadata).
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// The profile of the shared configuration files to take credentials and region from.
    pub fn profile(mut self, profile: impl Into<String>) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Credentials, region and HTTP client of a configuration that the program loaded itself. Its
    /// retries and time-outs are not used.
    pub fn sdk(mut self, config: SdkConfig) -> Self {
        self.sdk = Some(config);
        self
    }

    /// What opening does where the table is missing. [`Schema::Expect`] unless set.
    pub const fn schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// How long a call may take, its repetitions included. 5 s unless set.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Who removes records whose retention ended. [`Purging::Ttl`] unless set.
    pub const fn purging(mut self, purging: Purging) -> Self {
        self.purging = purging;
        self
    }

    /// The clock that retention goes by, in place of the machine's. Leases never go by it.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Allows [`Clear::clear`](semel::store::Clear::clear) without force.
    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// Opens the store: finds credentials, and reads the table's version.
    ///
    /// # Errors
    /// [`Config`](StoreErrorKind::Config) where the table is missing or of another version, or
    /// credentials or region are; [`NotApplied`](StoreErrorKind::NotApplied) where DynamoDB cannot
    /// be reached.
    pub async fn open(self) -> Result<DynamoDbStore, StoreError> {
        let table = connect(&self).await?;
        if let Err(error) = schema::expect(&table).await {
            if self.schema.unwrap_or_default() == Schema::Expect
                || error.kind() != StoreErrorKind::Config
            {
                return Err(error);
            }
            // Missing, or not right: making it says which.
            schema::migrate(&table).await?;
        }
        Ok(DynamoDbStore::new(
            table,
            self.clock,
            self.purging,
            self.for_tests,
        ))
    }

    /// Makes the table, and `TABLE-versioned`, if there is none, turns its TTL on, and notes the version in it. Safe to run
    /// again, and by several at once.
    ///
    /// # Errors
    /// As [`open`](Self::open); also where credentials may not make tables.
    pub async fn migrate(self) -> Result<Migrated, StoreError> {
        schema::migrate(&connect(&self).await?).await
    }
}

/// Whether DynamoDB allows it, with `-versioned` behind it.
pub(super) fn is_table_name(name: &str) -> bool {
    (3..=245).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}
