//! The gateway, nginx and HAProxy, each as its makers would have it: a worker or thread for each processor,
//! connections kept, no access log.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Result, bail};
use rustls::pki_types::CertificateDer;

use super::semel::{self, Semel};
use crate::client::{Keys, Target};
use crate::run::progress;
use crate::server::{Server, free_address};

/// What the proxies show to clients over TLS.
pub(super) struct Certificate {
    /// The certificate, its key, and both in one file, as HAProxy wants them.
    chain: PathBuf,
    key: PathBuf,
    both: PathBuf,
    trusted: Arc<rustls::ClientConfig>,
}

impl Certificate {
    pub(super) fn make(directory: &Path) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let file = directory.join(name);
            fs::write(&file, text)?;
            Ok(file)
        };
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::clone(made.cert.der()))?;
        let trusted = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            chain: write("chain.pem", &chain)?,
            key: write("key.pem", &key)?,
            both: write("both.pem", &format!("{chain}{key}"))?,
            trusted: Arc::new(trusted),
        })
    }
}

/// All of them.
pub(super) struct Proxies {
    /// Ours on the embedded store, in memory, and with TLS.
    embedded: Semel,
    memory: Semel,
    tls: Semel,
    nginx: Nginx,
    haproxy: Haproxy,
    trusted: Arc<rustls::ClientConfig>,
}

impl Proxies {
    pub(super) fn start(
        directory: &Path,
        upstream: SocketAddr,
        certificate: &Certificate,
    ) -> Result<Self> {
        let program = semel::program()?;
        let embedded = format!("file:{}", directory.join("semel").display());
        let gateway = |store: &str, more: &[&str]| Semel::start(&program, upstream, store, more);
        let (chain, key) = (certificate.chain.display(), certificate.key.display());
        let (chain, key) = (chain.to_string(), key.to_string());
        Ok(Self {
            embedded: gateway(&embedded, &[])?,
            memory: gateway("memory:", &[])?,
            tls: gateway("memory:", &["--tls-cert", &chain, "--tls-key", &key])?,
            nginx: Nginx::start(directory, upstream, certificate)?,
            haproxy: Haproxy::start(directory, upstream, certificate)?,
            trusted: Arc::clone(&certificate.trusted),
        })
    }

    /// Whom a load of this name asks, and with which keys.
    pub(super) fn load(&self, name: &str) -> Result<(Target, Keys)> {
        let (address, keys) = match name {
            "unkeyed" => (self.embedded.server.address, Keys::Absent),
            "unkeyed-tls" => (self.tls.server.address, Keys::Absent),
            "fresh" => (self.embedded.server.address, Keys::Fresh),
            "fresh-in-memory" => (self.memory.server.address, Keys::Fresh),
            "replay" => (self.embedded.server.address, Keys::Repeated),
            "nginx" => (self.nginx.server.address, Keys::Absent),
            "nginx-tls" => (self.nginx.tls, Keys::Absent),
            "nginx-cache" => (self.nginx.cache, Keys::Repeated),
            "haproxy" => (self.haproxy.server.address, Keys::Absent),
            "haproxy-tls" => (self.haproxy.tls, Keys::Absent),
            _ => bail!("there is no load {name:?}"),
        };
        let target = match name.ends_with("-tls") {
            true => Target::tls(address, Arc::clone(&self.trusted)),
            false => Target::plain(address),
        };
        Ok((target, keys))
    }
}

/// Its workers end with their master, and that one only when it is asked.
struct Nginx {
    server: Server,
    tls: SocketAddr,
    /// Where it answers what it was asked before from its cache, by the key.
    cache: SocketAddr,
    stop: Command,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Err(error) = self.stop.status().and_then(|_| self.server.ended()) {
            progress(format_args!("nginx was not stopped: {error}"));
        }
    }
}

impl Nginx {
    fn start(directory: &Path, upstream: SocketAddr, certificate: &Certificate) -> Result<Self> {
        let (listen, tls, cache) = (free_address()?, free_address()?, free_address()?);
        let at = directory.join("nginx");
        fs::create_dir(&at)?;
        let mut temporary = String::new();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            writeln!(temporary, "    {kind}_temp_path {}/{kind};", at.display())?;
        }
        let pass = "location / {
            proxy_pass http://application;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }";
        // The workers are to write where only this program's user may; another's master ignores `user`.
        let configuration = format!(
            "daemon off;
user root;
worker_processes auto;
pid {at}/pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
{temporary}    access_log off;
    keepalive_requests 1000000000;
    proxy_cache_path {at}/cache keys_zone=answers:10m use_temp_path=off;
    upstream application {{
        server {upstream};
        keepalive 64;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen};
        {pass}
    }}
    server {{
        listen {tls} ssl;
        ssl_certificate {chain};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.3;
        {pass}
    }}
    server {{
        listen {cache};
        proxy_cache answers;
        proxy_cache_methods POST;
        proxy_cache_key $request_uri$http_idempotency_key;
        proxy_cache_valid 200 1h;
        {pass}
    }}
}}
",
            at = at.display(),
            chain = certificate.chain.display(),
            key = certificate.key.display(),
        );
        let file = at.join("nginx.conf");
        fs::write(&file, configuration)?;
        let command = || {
            let mut command = Command::new("nginx");
            command.arg("-p").arg(&at).arg("-c").arg(&file);
            command
        };
        let server = Server::spawn(&mut command(), listen)?;
        let mut stop = command();
        stop.args(["-s", "stop"]).stderr(Stdio::null());
        Ok(Self {
            server,
            tls,
            cache,
            stop,
        })
    }
}

struct Haproxy {
    server: Server,
    tls: SocketAddr,
}

impl Haproxy {
    fn start(directory: &Path, upstream: SocketAddr, certificate: &Certificate) -> Result<Self> {
        let (listen, tls) = (free_address()?, free_address()?);
        let configuration = format!(
            "defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend plain
    bind {listen}
    default_backend application
frontend tls
    bind {tls} ssl crt {both} ssl-min-ver TLSv1.3
    default_backend application
backend application
    server upstream {upstream}
",
            both = certificate.both.display(),
        );
        let file = directory.join("haproxy.cfg");
        fs::write(&file, configuration)?;
        // Not in the background: it ends when it is killed.
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f"]).arg(&file).stdout(Stdio::null());
        let server = Server::spawn(&mut command, listen)?;
        Ok(Self { server, tls })
    }
}
