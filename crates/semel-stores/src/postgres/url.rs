//! The options as a URL's parameters.

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::options::{Listen, PostgresOptions};
use super::tls::{Roots, Tls, Verify};
use crate::OpenError;
use crate::common::{Location, unknown};

/// Parameters of ours.
const OURS: &str = "table, schema, timeout, connections, group, prepared, listen, sslmode, \
     sslrootcert, sslcert, sslkey";

/// Parameters that go to the driver.
const DRIVERS: [&str; 17] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "host",
    "hostaddr",
    "port",
    "sslnegotiation",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];

impl PostgresOptions {
    /// Reads a URL: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE&…`. Ours are
    /// `table`, `schema`, `timeout`, `connections`, `group`, `prepared`, `listen`, `sslmode`,
    /// `sslrootcert`, `sslcert` and `sslkey`; what libpq calls `host`, `user`, `options`, `application_name` and so on is
    /// understood too.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the parameter and what is allowed, never the URL.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let mut location = Location::parse("postgres", url)?;
        let table = location.take("table", "a name, or schema.name, of letters, digits and _")?;
        let schema = location.schema()?;
        let timeout = location.duration("timeout")?;
        let connections = location.take("connections", "a number from 1 to 1000")?;
        let group = location.take("group", "a number from 1 to 1000")?;
        let prepared = location.choice("prepared", &[("on", true), ("off", false)])?;
        let listen = location.take::<String>("listen", "")?;
        let mode = location.take::<String>("sslmode", "")?;
        let roots = location.take::<String>("sslrootcert", "")?;
        let certificate = location.certificate(["sslcert", "sslkey"])?;
        let (ssl, verify) =
            ssl(mode.as_deref(), roots).map_err(|reason| location.invalid(reason))?;
        if certificate.is_some() && ssl == SslMode::Disable {
            return Err(location.invalid(
                "parameters `sslcert` and `sslkey` are of no use while `sslmode` is `disable`",
            ));
        }
        let mut config = driver(location)?;
        config.ssl_mode(ssl);
        let listen = match listen.as_deref() {
            None | Some("on") => Listen::Same,
            Some("off") => Listen::Off,
            Some(other) => {
                let mut there = driver(Location::parse("postgres", other).map_err(|_| {
                    OpenError::invalid(
                        "postgres",
                        "parameter `listen` must be `on`, `off` or the URL of the same database",
                    )
                })?)?;
                there.ssl_mode(ssl);
                Listen::At(Box::new(there))
            }
        };
        let mut options = Self {
            tls: Tls {
                verify,
                certificate,
            },
            listen,
            schema,
            ..Self::from_config(config)
        };
        options.table = table.unwrap_or(options.table);
        options.prepared = prepared.unwrap_or(options.prepared);
        options.timeout = timeout.unwrap_or(options.timeout);
        options.connections = connections.unwrap_or(options.connections);
        options.group = group.unwrap_or(options.group);
        let fine = 1..=1000;
        if !fine.contains(&options.connections) || !fine.contains(&options.group) {
            return Err(OpenError::invalid(
                "postgres",
                "parameters `connections` and `group` must be numbers from 1 to 1000",
            ));
        }
        Ok(options)
    }
}

/// `sslmode` as libpq understands it: below `verify-ca` nobody is authenticated.
fn ssl(mode: Option<&str>, roots: Option<String>) -> Result<(SslMode, Verify), &'static str> {
    let roots = roots.map(|roots| match &*roots {
        "system" => Roots::System,
        _ => Roots::File(roots.into()),
    });
    let mode = match mode {
        None if roots == Some(Roots::System) => "verify-full",
        None => "prefer",
        Some(mode) => mode,
    };
    let verify = match (mode, roots) {
        ("verify-full", roots) => Verify::Name(roots.unwrap_or_default()),
        // These sign for everybody: it is the name that counts.
        (_, Some(Roots::System)) => {
            return Err(
                "parameter `sslrootcert=system` needs `sslmode` to be `verify-full`, which it is \
                 unless given",
            );
        }
        ("verify-ca", roots) => Verify::Chain(roots.unwrap_or_default()),
        ("require", Some(roots)) => Verify::Chain(roots),
        ("disable" | "prefer" | "require", None) => Verify::Nothing,
        ("disable" | "prefer", Some(_)) => {
            return Err(
                "parameter `sslrootcert` needs `sslmode` to be `require`, `verify-ca` or \
                 `verify-full`",
            );
        }
        _ => {
            return Err(
                "parameter `sslmode` must be `disable`, `prefer`, `require`, `verify-ca` or \
                 `verify-full`",
            );
        }
    };
    let ssl = match mode {
        "disable" => SslMode::Disable,
        "prefer" => SslMode::Prefer,
        _ => SslMode::Require,
    };
    Ok((ssl, verify))
}

/// What the driver makes of the rest of the URL.
fn driver(location: Location) -> Result<Config, OpenError> {
    let url = location.rest();
    if let Some((name, _)) = url
        .query_pairs()
        .find(|(name, _)| !DRIVERS.contains(&&**name))
    {
        let known = format!("{OURS}, and of the driver's {}", DRIVERS.join(", "));
        return Err(OpenError::invalid("postgres", unknown(&name, &known)));
    }
    let url = match url.as_str().split_once('?') {
        Some((before, query)) => format!("{before}?{}", as_the_driver_reads(query)),
        None => url.into(),
    };
    url.parse().map_err(|error: tokio_postgres::Error| {
        // The cause names a parameter, never a value.
        let cause = error.into_source();
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        OpenError::invalid("postgres", format!("cannot be read{cause}"))
    })
}

/// The driver reads `+` as itself (where one is meant, it is `%2B` here), and of a parameter `host` one
/// host, although of the others a list.
fn as_the_driver_reads(query: &str) -> String {
    let query = query.replace('+', "%20");
    let pairs = query
        .split('&')
        .map(|pair| match pair.strip_prefix("host=") {
            Some(hosts) => format!("host={}", hosts.replace("%2C", ",").replace(',', "&host=")),
            None => pair.into(),
        });
    pairs.collect::<Vec<String>>().join("&")
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    #[test]
    fn hosts_are_a_list() {
        let url = "postgres:///db?user=me&host=one,/two%2Cthree&port=1,2,3";
        let options = PostgresOptions::from_url(url).unwrap();
        let [one, three] = ["one", "three"].map(|name| Host::Tcp(name.into()));
        let hosts = [one, Host::Unix("/two".into()), three];
        assert_eq!(options.config.get_hosts(), hosts);
        assert_eq!(options.config.get_ports(), [1, 2, 3]);
    }

    #[test]
    fn spaces_in_the_drivers_parameters_stay_spaces() {
        let options = PostgresOptions::from_url(
            "postgres://u@h/d?options=-c%20work_mem%3D1MB&application_name=a%2Bb%20c",
        );
        let config = options.unwrap().config;
        assert_eq!(config.get_options(), Some("-c work_mem=1MB"));
        assert_eq!(config.get_application_name(), Some("a+b c"));
    }

    #[test]
    fn public_roots_authenticate_by_name_only() {
        for (parameters, expected) in [
            ("", false),
            ("sslmode=require", false),
            ("sslmode=verify-ca", false),
            ("sslmode=verify-ca&sslrootcert=ca.pem", true),
            ("sslmode=require&sslrootcert=ca.pem", true),
            ("sslmode=verify-full", true),
            ("sslrootcert=system", true),
        ] {
            let options = PostgresOptions::from_url(&format!("postgres://u@h/d?{parameters}"));
            let authenticates = options.unwrap().tls.verify.authenticates();
            assert_eq!(authenticates, expected, "{parameters}");
        }
    }
}
