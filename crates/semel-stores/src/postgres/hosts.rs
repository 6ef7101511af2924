//! Several hosts, tried in turn.
//!
//! The driver would go through them too, but has no limit for a host that takes the connection and
//! then says nothing: it would stay there for as long as the call has.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(super) type TlsStream =
    <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream;

/// How long a connection is silent before the kernel asks whether somebody is there; the driver's default,
/// which cannot be told from what was set.
const IDLE: Duration = Duration::from_secs(30);
const DRIVERS_IDLE: Duration = Duration::from_hours(2);

/// A connection's two halves, or the driver's error; `None`: no host answered in time.
type Dialled = Result<(Client, Connection<Socket, TlsStream>), Option<Error>>;

/// The hosts of a URL.
#[derive(Debug)]
pub(super) struct Hosts {
    each: Vec<Config>,
    share: Duration,
    // Who answered last, or where to begin next.
    first: AtomicUsize,
    in_turn: bool,
}

impl Hosts {
    /// Each host gets an equal part of `limit`, and one part is left for what follows.
    pub(super) fn new(config: &Config, limit: Duration) -> Self {
        let mut each = apart(config);
        let share = match u32::try_from(each.len()) {
            Ok(hosts @ 2..) => limit / (hosts + 1),
            _ => limit,
        };
        for host in &mut each {
            // A peer that is gone, or that something on the way forgot, is noticed while nobody asks.
            if host.get_keepalives_idle() == DRIVERS_IDLE {
                host.keepalives_idle(IDLE);
            }
            if host.get_tcp_user_timeout().is_none() {
                host.tcp_user_timeout(limit);
            }
            // A name may have two addresses: time for the second.
            let longest = host.get_connect_timeout().copied().unwrap_or(share);
            host.connect_timeout(longest.min(share / 2));
        }
        Self {
            each,
            share,
            first: AtomicUsize::new(0),
            in_turn: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
        }
    }

    /// A connection to the first host that gives one, beginning with the one that answered last.
    pub(super) async fn dial(&self, tls: &MakeRustlsConnect) -> Dialled {
        let first = match self.in_turn {
            true => self.first.fetch_add(1, Ordering::Relaxed),
            false => self.first.load(Ordering::Relaxed),
        };
        let mut error = None;
        for turn in 0..self.each.len() {
            let host = first.wrapping_add(turn) % self.each.len();
            match timeout(self.share, self.each[host].connect(tls.clone())).await {
                Ok(Ok(dialled)) => {
                    if !self.in_turn {
                        self.first.store(host, Ordering::Relaxed);
                    }
                    return Ok(dialled);
                }
                Ok(Err(said)) => error = Some(said),
                Err(_) => {}
            }
        }
        Err(error)
    }
}

/// A configuration for each host.
fn apart(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let count = hosts.len().max(addresses.len());
    let fits = |given: usize| given == 0 || given == count;
    if count < 2
        || !fits(hosts.len())
        || !fits(addresses.len())
        || (ports.len() > 1 && !fits(ports.len()))
    {
        // One, or a mistake, which the driver explains.
        return vec![config.clone()];
    }
    let one = |at: usize| {
        let mut one = Config::new();
        match hosts.get(at) {
            Some(Host::Tcp(name)) => _ = one.host(name),
            #[cfg(unix)]
            Some(Host::Unix(folder)) => _ = one.host_path(folder),
            None => {}
        }
        if let Some(address) = addresses.get(at) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(at).or(ports.first()) {
            one.port(*port);
        }
        one.ssl_mode(config.get_ssl_mode())
            .ssl_negotiation(config.get_ssl_negotiation())
            .keepalives(config.get_keepalives())
            .keepalives_idle(config.get_keepalives_idle())
            .target_session_attrs(config.get_target_session_attrs())
            .channel_binding(config.get_channel_binding());
        config.get_user().map(|user| one.user(user));
        config.get_password().map(|password| one.password(password));
        config.get_dbname().map(|name| one.dbname(name));
        config.get_options().map(|options| one.options(options));
        config
            .get_application_name()
            .map(|name| one.application_name(name));
        config
            .get_connect_timeout()
            .map(|limit| one.connect_timeout(*limit));
        config
            .get_tcp_user_timeout()
            .map(|limit| one.tcp_user_timeout(*limit));
        config
            .get_keepalives_interval()
            .map(|pause| one.keepalives_interval(pause));
        config
            .get_keepalives_retries()
            .map(|tries| one.keepalives_retries(tries));
        one
    };
    (0..count).map(one).collect()
}
