//! From what is said to a [`Config`].

use http::Uri;
use http::header::HeaderName;
use semel::KeyRule;
use semel::store::{OnLost, Retention};
use semel_tower::{Dialect, Preset};
use tracing::Level;

use super::file::SectionSaid;
use super::sources::{Given, Said, Sources};
use super::{Config, ConfigError, Dispositions, KeyPlace, Limits, Route, StoreUrl, values};
use crate::at_rest::{self, AtRest, Large, Source};
use crate::reconcile::Settings;
use crate::routing::{Host, Matches, Path, method};
use crate::telemetry;
use crate::tls::server::Files;
use crate::tls::{PemFile, Shown};
use crate::upstream::{Address, Protocol};

impl Sources {
    /// Understands the values.
    ///
    /// # Errors
    /// Every value that is not right, not only the first.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut reader = Reader {
            said: &self.top,
            errors: self.errors.clone(),
        };
        let listen = reader.read("listen", values::address).unwrap_or_default();
        let admin = reader.read("admin", values::address).unwrap_or_default();
        if !listen.is_empty() && listen == admin && !listen.ends_with(":0") {
            reader.error(format!(
                "--listen and --admin are the same address, {listen}"
            ));
        }
        let own = [("--listen", &*listen), ("--admin", &*admin)];
        let routes = self.read_routes(&mut reader, own);
        let mut admin_hosts = reader
            .read("admin-host", values::host_names)
            .unwrap_or_default();
        admin_hosts.extend(admin.rsplit_once(':').map(|(host, _)| host.to_owned()));
        // Whatever is missing here has its message among the errors.
        let tls = reader.tls();
        let admin_tls = reader.shown([
            ("admin-tls-cert", "--admin-tls-cert"),
            ("admin-tls-key", "--admin-tls-key"),
        ]);
        let admin_tls = admin_tls.map(|shown| Files {
            listener: "operators",
            shown,
            client_ca: None,
        });
        let trust_forwarded = reader
            .read("trust-forwarded", values::networks)
            .unwrap_or_default();
        let asks_clients = tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        reader.check_callers(&routes, !trust_forwarded.is_empty(), asks_clients);
        let config = Config {
            upstream_ca: reader.file("upstream-ca", "--upstream-ca"),
            upstream_shown: reader.shown([
                ("upstream-cert", "--upstream-cert"),
                ("upstream-key", "--upstream-key"),
            ]),
            tls,
            admin_tls,
            store: StoreUrl(reader.read("store", values::store).unwrap_or_default()),
            at_rest: AtRest {
                keys: reader.read(at_rest::KEYS, Source::parse),
                secrets: reader.read(at_rest::SECRETS, Source::parse),
                large: reader.large(),
            },
            reconcile: self.reconcile(&mut reader, &routes),
            proxy_protocol: reader.switch("proxy-protocol"),
            trust_forwarded,
            limits: reader.limits(&routes),
            jwt: reader.jwt(&routes),
            auth: reader.auth(&routes),
            admin_hosts,
            tokens: reader.tokens(&self.tokens),
            four_eyes: reader
                .read("four-eyes", values::four_eyes)
                .unwrap_or_default(),
            audit_retention: reader
                .read("audit-retention", values::positive)
                .unwrap_or_default(),
            drain: reader.read("drain", values::duration).unwrap_or_default(),
            drain_delay: reader
                .read("drain-delay", values::duration)
                .unwrap_or_default(),
            collector: reader.collector(),
            access_log: reader.switch("access-log"),
            log_json: reader
                .read("log-format", values::log_format)
                .unwrap_or_default(),
            log_level: reader
                .read("log-level", values::log_level)
                .unwrap_or(Level::INFO),
            listen,
            admin,
            routes,
        };
        let has_unused_ca = config.upstream_ca.is_some() && !config.asks_over_tls();
        let is_unshown = config.upstream_shown.is_some() && !config.asks_upstreams_over_tls();
        let unused = [
            (has_unused_ca, "--upstream-ca is for https:// URLs"),
            (
                is_unshown,
                "--upstream-cert is for https:// upstreams and reconcilers",
            ),
        ];
        if !self.has_kept && reader.errors.is_empty() {
            for (_, what) in unused.iter().filter(|(is_unused, _)| *is_unused) {
                reader.error(format!("{what}, and there is none"));
            }
        }
        if config.proxy_protocol && !self.top.given.contains_key("trust-forwarded") {
            let message =
                "--proxy-protocol needs --trust-forwarded: the addresses of the load balancers";
            reader.error(message.to_owned());
        }
        reader.done(config)
    }

    /// Understands the store's URL alone.
    ///
    /// # Errors
    /// A URL that is not right.
    pub fn store(&self) -> Result<StoreUrl, ConfigError> {
        let mut reader = Reader {
            said: &self.top,
            errors: self.errors.clone(),
        };
        let url = reader.read("store", values::store).unwrap_or_default();
        reader.done(StoreUrl(url))
    }

    /// The routes of the file; behind them, where the top says where requests go, one for all others.
    fn read_routes(&self, reader: &mut Reader<'_>, own: [(&str, &str); 2]) -> Vec<Route> {
        let has_upstream = self.top.given.contains_key("upstream");
        if !has_upstream && self.routes.is_empty() && !self.is_partial {
            reader.error(
                "--upstream is required: where do requests go? For instance http://127.0.0.1:9000"
                    .to_owned(),
            );
        }
        let mut routes = Vec::<Route>::new();
        let mut read = Vec::new();
        // What is wrong at the top is told first, and once.
        let top = Route {
            name: "default".to_owned(),
            label: "default".to_owned(),
            ..reader.route(own)
        };
        if self.top.is_said("key-member") {
            reader.check_syntax(&self.top, &top.key);
        }
        for SectionSaid { at, said } in &self.routes {
            if !has_upstream && !said.given.contains_key("upstream") {
                reader.error(format!(
                    "{at}: `upstream` is required in each route, or at the top for all"
                ));
            }
            let all = said.over(&self.top);
            let before = reader.errors.len();
            let mut inner = Reader {
                said: &all,
                errors: std::mem::take(&mut reader.errors),
            };
            let mut route = inner.route(own);
            inner.check_syntax(said, &route.key);
            reader.errors = inner.errors;
            route.name = format!("route {}", routes.len() + 1);
            let mut others = routes.iter().filter(|_| said.given.contains_key("name"));
            if let Some(other) = others.find(|other| other.label == route.label) {
                reader.error(format!(
                    "{at}: {} is called `{}` as well",
                    other.name, route.label
                ));
            }
            if !route.protect {
                for setting in super::file::route_settings().filter(|s| s.needs_key()) {
                    if let Some(Given { from, .. }) = said.given.get(setting.name) {
                        reader.error(format!("{from}: has no meaning with `protect = false`"));
                    }
                }
                if let Some((_, Given { from, .. })) = said.dispositions.first() {
                    reader.error(format!("{from}: has no meaning with `protect = false`"));
                }
            }
            // What could not be read would match everything.
            if reader.errors.len() == before {
                let mut others = read.iter().filter_map(|nth: &usize| routes.get(*nth));
                if let Some(other) = others.find(|other| other.matches.covers(&route.matches)) {
                    reader.error(format!(
                        "{at}: is never reached: {} before it takes all its requests",
                        other.name
                    ));
                }
                read.push(routes.len());
            }
            routes.push(route);
        }
        routes.extend(has_upstream.then_some(top));
        routes
    }

    /// Whom to ask about lost attempts; nobody, unless that is a policy.
    fn reconcile(&self, reader: &mut Reader<'_>, routes: &[Route]) -> Option<Settings> {
        let url = reader.read("reconciler", values::endpoint);
        let attempts = reader.read("reconcile.attempts", values::count);
        let pause = reader.read("reconcile.pause", values::positive);
        let timeout = reader.read("reconcile.timeout", values::positive);
        let every = reader.read("reconcile.every", values::positive);
        let given = self.top.given.contains_key("reconciler");
        let asks = |route: &Route| route.protect && route.on_lost == OnLost::Reconcile;
        match (routes.iter().any(asks), given) {
            (true, false) => reader.error(
                "--on-lost reconcile needs --reconciler: who is asked what happened? For instance \
                 http://127.0.0.1:9100/reconcile"
                    .to_owned(),
            ),
            (false, true) if !self.has_kept && reader.errors.is_empty() => {
                reader.error("--reconciler is asked with --on-lost reconcile only".to_owned());
            }
            _ => {}
        }
        Some(Settings {
            url: url?,
            headers: self.headers.clone(),
            attempts: attempts?,
            pause: pause?,
            timeout: timeout?,
            every: every?,
        })
    }
}

pub(super) struct Reader<'a> {
    pub(super) said: &'a Said,
    pub(super) errors: Vec<String>,
}

impl Reader<'_> {
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Given { value, from } = self.said.given.get(name)?;
        match parse(value) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.error(format!("{from}: {reason}"));
                None
            }
        }
    }

    /// The URL that traces go to.
    fn collector(&mut self) -> Option<Uri> {
        let given = self.said.given.get("otlp-endpoint")?;
        let is_whole = given.from == telemetry::OF_TRACES;
        self.read("otlp-endpoint", |url| values::collector(url, is_whole))
    }

    fn large(&mut self) -> Option<Large> {
        let url = self.read(at_rest::LARGE, values::objects);
        let above = self.read(at_rest::ABOVE, values::memory)?;
        url.map(|url| Large { url, above })
    }

    fn file(&mut self, name: &'static str, flag: &'static str) -> Option<PemFile> {
        self.read(name, |path| Ok(PemFile::new(flag, path)))
    }

    fn tls(&mut self) -> Option<Files> {
        let client_ca = self.file("tls-client-ca", "--tls-client-ca");
        let is_named = |name| self.said.given.contains_key(name);
        if client_ca.is_some() && !is_named("tls-cert") && !is_named("tls-key") {
            self.error("--tls-client-ca needs --tls-cert and --tls-key".to_owned());
        }
        let names = [("tls-cert", "--tls-cert"), ("tls-key", "--tls-key")];
        let shown = self.shown(names)?;
        Some(Files {
            listener: "clients",
            shown,
            client_ca,
        })
    }

    /// What the gateway shows of itself.
    fn shown(
        &mut self,
        [(cert, cert_flag), (key, key_flag)]: [(&'static str, &'static str); 2],
    ) -> Option<Shown> {
        let missing = match (self.file(cert, cert_flag), self.file(key, key_flag)) {
            (Some(certificate), Some(key)) => {
                return Some(Shown { certificate, key });
            }
            (Some(_), None) => format!("{cert_flag} needs {key_flag}: the file of its private key"),
            (None, Some(_)) => format!("{key_flag} needs {cert_flag}: the file of its certificate"),
            (None, None) => return None,
        };
        self.error(missing);
        None
    }

    /// What is wrong at the top is wrong in all routes.
    pub(super) fn error(&mut self, message: String) {
        if !self.errors.contains(&message) {
            self.errors.push(message);
        }
    }

    fn done<T>(self, value: T) -> Result<T, ConfigError> {
        match self.errors.is_empty() {
            true => Ok(value),
            false => Err(ConfigError(self.errors)),
        }
    }

    fn route(&mut self, own: [(&str, &str); 2]) -> Route {
        let preset = self.read("preset", values::preset).unwrap_or(Preset::Ietf);
        let protect = self.read("protect", values::boolean).unwrap_or(true);
        let matches = Matches {
            hosts: self.list("host", Host::parse),
            paths: self.list("path", Path::parse),
            methods: self.list("methods", method),
        };
        let name = self.read("name", values::label);
        let has_name = name.is_some() || !matches.paths.is_empty();
        let label = name.unwrap_or_else(|| matches.to_string());
        let route = has_name.then_some(&*label);
        let key = self.key_place(preset);
        let note = self.read("note", |value| values::note(value, route));
        Route {
            name: String::new(),
            label,
            preset,
            key: key.clone(),
            key_syntax: self.read("key-syntax", values::syntax).unwrap_or_default(),
            key_rule: self.key_rule(),
            key_methods: self.list("key-methods", values::key_method),
            scope_target: self.scope_target(preset),
            body_form: self.compared(preset, "body-form", values::body_form),
            fingerprint_headers: self.compared(
                preset,
                "fingerprint-header",
                values::fingerprint_headers,
            ),
            dialect: self.dialect(preset),
            replay_header: self.replay_header(&key),
            kept_headers: self
                .read("kept-header", values::kept_headers)
                .unwrap_or_default(),
            matches,
            upstreams: self.upstreams(own),
            protect,
            mode: self.read("mode", values::mode).unwrap_or_default(),
            service: self
                .read("service", values::service)
                .filter(|_| self.said.is_said("service")),
            require_key: self.switch("require-key"),
            lease: self.read("lease", values::lease).unwrap_or_default(),
            ttl: self
                .read("ttl", |ttl| {
                    let replay = values::retention(ttl)?;
                    match preset.check(Retention::new(replay)) {
                        Err(error) if protect => Err(error.to_string()),
                        _ => Ok(replay),
                    }
                })
                .unwrap_or_default(),
            tombstone: self.read("tombstone", values::duration).unwrap_or_default(),
            wait: self.read("wait", values::duration).unwrap_or_default(),
            on_lost: self.read("on-lost", values::on_lost).unwrap_or_default(),
            max_body: self.read("max-body", values::size).unwrap_or_default(),
            scope_headers: self
                .read("scope-header", values::fields)
                .unwrap_or_default(),
            note: note.unwrap_or_default(),
            principal: self
                .read("principal", values::principal)
                .unwrap_or_default(),
            auth_names: self.said.given.contains_key("auth-principal-header"),
            trusted_scope: self.switch("trusted-scope"),
            require_principal: self.switch("require-principal"),
            scope_limits: self.scope_limits(),
            dispositions: self.dispositions(),
            upstream_health: self.read("upstream-health", values::path),
            upstream_timeout: self.read("upstream-timeout", values::limit).flatten(),
            preserve_host: self.switch("preserve-host"),
        }
    }

    /// Where keys are: in one place.
    fn key_place(&mut self, preset: Preset) -> KeyPlace {
        let header = self.read("key-header", values::key_header);
        let member = self.read("key-member", |value| match preset {
            Preset::Oasis => Err(format!(
                "the preset {preset} has keys in a field, beside that of their date: say key-header"
            )),
            _ => values::member(value),
        });
        let said = |name| self.said.given.get(name).map(|given| &given.from);
        if let (Some(header), Some(member)) = (said("key-header"), said("key-member")) {
            let message =
                format!("{header}, {member}: a key is in a field or in the body, not in both");
            self.error(message);
        }
        match member {
            Some(member) => KeyPlace::Member(member),
            None => KeyPlace::Header(header.unwrap_or(HeaderName::from_static("idempotency-key"))),
        }
    }

    /// Forms of a field say nothing of a member.
    fn check_syntax(&mut self, said: &Said, key: &KeyPlace) {
        if let (KeyPlace::Member(_), true) = (key, said.is_said("key-syntax"))
            && let Some(Given { from, .. }) = said.given.get("key-syntax")
        {
            self.error(format!(
                "{from}: has no meaning where the key is in the body; key-rule and key-max have one"
            ));
        }
    }

    /// The convention whose answers have the context of each request has it in its own words only.
    fn dialect(&mut self, preset: Preset) -> Dialect {
        let read = self.read("dialect", |value| match values::dialect(value)? {
            other if preset == Preset::Adcp && other != Dialect::Adcp => Err(format!(
                "the preset {preset} has a dialect of its own, `{}`, and no other can be said",
                Dialect::Adcp.as_str()
            )),
            dialect => Ok(dialect),
        });
        read.unwrap_or_default()
    }

    fn replay_header(&mut self, key: &KeyPlace) -> Option<HeaderName> {
        let read = self.read("replay-header", |value| {
            match (values::replay_header(value)?, key) {
                (Some(name), KeyPlace::Header(key)) if name == *key => Err(format!(
                    "`{name}` is the field of the key; another one is allowed, or none"
                )),
                (name, _) => Ok(name),
            }
        });
        read.flatten()
    }

    fn key_rule(&mut self) -> KeyRule {
        let rule = self.read("key-rule", values::key_rule);
        let (rule, least) = rule.unwrap_or((KeyRule::GENERAL, 1));
        let max = self.read("key-max", |value| match values::key_max(value)? {
            max if max < least => Err(format!(
                "`{max}` is too short: the shortest key of this rule has {least} bytes"
            )),
            max => Ok(max),
        });
        max.map_or(rule, |max| rule.with_max(max))
    }

    /// Where a convention compares bodies only, the same key on another path would get this one's answer.
    fn scope_target(&mut self, preset: Preset) -> bool {
        let is_needed = preset.scope_target() && !preset.compares_requests();
        let read = self.read("scope-target", |value| match values::boolean(value)? {
            false if is_needed => Err(format!(
                "the preset {preset} compares bodies only: method and path have to belong to the scope"
            )),
            belongs => Ok(belongs),
        });
        read.unwrap_or_default()
    }

    /// What is compared of two requests: the default, where a convention says so itself.
    fn compared<T: Default + PartialEq>(
        &mut self,
        preset: Preset,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        let read = self.read(name, |value| match parse(value)? {
            set if set != T::default() && !preset.compares_requests() => Err(format!(
                "the preset {preset} says itself what makes two requests the same"
            )),
            set => Ok(set),
        });
        read.unwrap_or_default()
    }

    fn switch(&mut self, name: &'static str) -> bool {
        self.read(name, values::boolean).unwrap_or_default()
    }

    pub(super) fn list<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        self.read(name, values::list(parse)).unwrap_or_default()
    }

    fn upstreams(&mut self, own: [(&str, &str); 2]) -> Vec<Address> {
        let upstreams = self.list("upstream", values::upstream);
        let Some(Given { from, .. }) = self.said.given.get("upstream") else {
            return upstreams;
        };
        for (flag, address) in own {
            let is_own = |upstream: &Address| values::is_same_socket(upstream, address);
            if upstreams.iter().any(is_own) {
                self.error(format!(
                    "{from} is {flag} itself, {address}: requests would come back to the gateway"
                ));
            }
        }
        let twice = |(nth, one): (usize, &Address)| upstreams[..nth].contains(one);
        if upstreams.iter().enumerate().any(twice) {
            self.error(format!("{from}: an upstream is there twice"));
        }
        let is_http2 = |upstream: &Address| upstream.protocol == Protocol::H2c;
        if upstreams.iter().any(is_http2) && self.switch("preserve-host") {
            // Host and :authority must not differ, and the latter names the upstream.
            self.error(format!(
                "{from}: an h2c:// upstream cannot be used with --preserve-host"
            ));
        }
        upstreams
    }

    fn dispositions(&mut self) -> Dispositions {
        let mut dispositions = Dispositions::default();
        for (statuses, Given { value, from }) in &self.said.dispositions {
            if let Err(reason) = dispositions.set(statuses, value) {
                self.error(format!("{from}: {reason}"));
            }
        }
        dispositions
    }

    fn limits(&mut self, routes: &[Route]) -> Limits {
        let body_memory = self.read("max-body-memory", values::memory);
        let max_body = routes.iter().map(|route| route.max_body).max();
        if body_memory.is_some() && body_memory < max_body {
            let message = "--max-body is more than --max-body-memory: it would never be taken";
            self.error(message.to_owned());
        }
        let count =
            |count: Option<u32>| count.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Limits {
            attempts: count(self.read("max-attempts", values::count)),
            connections: count(self.read("max-connections", values::count)),
            waiting: count(self.read("max-waiting", values::count)),
            body_memory: body_memory.unwrap_or_default(),
            body_time: self.read("body-timeout", values::limit).flatten(),
        }
    }
}
