//! The processes of a run: the gateways and the upstream.

use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::bugs::Bug;
use super::judge::OnLost;
use super::options::Options;
use super::upstream::{self, Mood};
use crate::named::Named as _;
use crate::nemesis::UPSTREAM_TIMEOUT;
use crate::part::Part;
use crate::process::{Process, send};

/// Longer than anything here should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than an attempt takes: what is under way at a SIGTERM ends.
const DRAIN: Duration = Duration::from_secs(10);

/// How gateways are started.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// Some planted bugs are settings that are wrong.
    pub(super) options: Options,
    pub(super) program: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) store: String,
    pub(super) upstream: SocketAddr,
}

/// A gateway, in one life after the other.
#[derive(Debug)]
pub(super) struct Gateway {
    launch: Launch,
    number: usize,
    service: u8,
    child: Child,
    address: watch::Sender<SocketAddr>,
}

impl Gateway {
    pub(super) async fn start(launch: &Launch, number: usize, service: u8) -> Result<Self> {
        let (child, address) = spawn(launch, number, service).await?;
        Ok(Self {
            launch: launch.clone(),
            number,
            service,
            child,
            address: watch::Sender::new(address),
        })
    }

    /// Where its present life listens, or its last one did.
    pub(super) fn address(&self) -> watch::Receiver<SocketAddr> {
        self.address.subscribe()
    }

    pub(super) const fn service(&self) -> u8 {
        self.service
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        send(&self.child, signal).with_context(|| format!("gateway {}", self.number))
    }

    pub(super) async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.child.wait().await?;
        Ok(())
    }

    /// SIGTERM, and its end.
    pub(super) async fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let ended = timeout(PATIENCE, self.child.wait()).await;
        Ok(ended.with_context(|| format!("gateway {} does not end", self.number))??)
    }

    /// Starts it again, on another port. A store that is away meanwhile is waited for.
    pub(super) async fn revive(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match spawn(&self.launch, self.number, self.service).await {
                Ok((child, address)) => {
                    self.child = child;
                    self.address.send_replace(address);
                    return Ok(());
                }
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

async fn spawn(launch: &Launch, number: usize, service: u8) -> Result<(Child, SocketAddr)> {
    let seconds = |time: Duration| format!("{}ms", time.as_millis());
    let upstream = format!("http://{}", launch.upstream);
    let is = |bug| launch.options.bug == Some(bug);
    let name = if is(Bug::OneService) { 0 } else { service };
    let on_lost = match launch.options.on_lost() {
        _ if is(Bug::Reruns) => OnLost::Retry,
        on_lost => on_lost,
    };
    let mut command = Command::new(&launch.program);
    command
        .arg("serve")
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--upstream", &upstream, "--store", &launch.store])
        .args(["--service", SERVICES[usize::from(name)]])
        .args(["--lease", &seconds(launch.options.run.lease)])
        .args(["--upstream-timeout", &seconds(UPSTREAM_TIMEOUT)])
        .args(["--drain", &seconds(DRAIN)])
        // One of them lets duplicates wait.
        .args(["--wait", if number == 1 { "300ms" } else { "0s" }])
        .args(["--on-lost", &on_lost.name(), "--log-format", "json"]);
    if is(Bug::NoPrincipal) {
        command.args(["--scope-header", "x-nobody"]);
    }
    let mut config = String::new();
    if is(Bug::ReleasesTimeout) {
        config += "[dispositions]\n504 = \"release\"\n";
    }
    if launch.options.on_lost() == OnLost::Reconcile {
        let every = "pause = \"100ms\"\nevery = \"500ms\"\n";
        config += &format!("[reconcile]\nurl = \"{upstream}/reconcile\"\n{every}");
    }
    if !config.is_empty() {
        let file = launch.folder.join("gateway.toml");
        std::fs::write(&file, config)?;
        command.arg("--config").arg(file);
    }
    let path = launch.folder.join(format!("gateway-{number}.log"));
    let log = OpenOptions::new().create(true).append(true).open(&path)?;
    // What its earlier lives said.
    let before = usize::try_from(log.metadata()?.len())?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("a gateway cannot be started")?;
    let until = Instant::now() + PATIENCE;
    loop {
        let said = std::fs::read(&path)?;
        let said = String::from_utf8_lossy(&said[before..]);
        if let Some(address) = said.lines().find_map(address_in) {
            return Ok((child, address));
        }
        if child.try_wait()?.is_some() || Instant::now() > until {
            bail!("gateway {number} does not serve: its log says why");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// The services' names.
const SERVICES: [&str; 2] = ["shop", "bank"];

fn address_in(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let serving = line["message"] == "serving";
    line["listen"].as_str().filter(|_| serving)?.parse().ok()
}

/// The upstream, in one life after the other, always at one address.
#[derive(Debug)]
pub(super) struct Upstream {
    settings: upstream::Settings,
    process: Process,
}

impl Upstream {
    pub(super) async fn start(settings: upstream::Settings) -> Result<Self> {
        let mut upstream = Self {
            process: Process::start(&Part::Upstream(settings.clone()))?,
            settings,
        };
        upstream.hear().await?;
        Ok(upstream)
    }

    /// It is ready, or has done what it was told.
    async fn hear(&mut self) -> Result<()> {
        let said = self.process.hear::<String>().await;
        said.context("the upstream").map(drop)
    }

    pub(super) async fn be(&mut self, mood: Mood) -> Result<()> {
        self.process.tell(&mood).await?;
        self.hear().await
    }

    pub(super) async fn kill(&mut self) -> Result<()> {
        self.process.kill::<String>().await.map(drop)
    }

    pub(super) async fn revive(&mut self) -> Result<()> {
        self.process = Process::start(&Part::Upstream(self.settings.clone()))?;
        self.hear().await
    }
}

/// A port for the upstream, below those from which connections are made: no client takes it while the
/// upstream is away.
pub(super) fn free_address() -> Result<SocketAddr> {
    for _ in 0..1000 {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(10_000..12_000)));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port was found")
}
