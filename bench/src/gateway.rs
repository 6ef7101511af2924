//! The gateway beside nginx, in front of the same upstream.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use semel_bench_report::{Goal, Measurement};

use crate::client::{Keys, rate};
use crate::disk;
use crate::run::{Run, progress};
use crate::server::{Application, Server, free_address};

pub(crate) fn measure(run: &Run) -> Result<()> {
    let name = |what: &str, reference: &str| format!("gateway/{what}/beside-{reference}");
    let beside_nginx = ["unkeyed", "fresh", "replay"].map(|what| name(what, "nginx"));
    let beside_unkeyed = ["fresh", "replay"].map(|what| name(what, "unkeyed"));
    let mut names = beside_nginx.iter().chain(&beside_unkeyed);
    if !names.any(|name| run.wants(name)) {
        return Ok(());
    }
    let directory = disk::directory()?;
    let upstream = Server::start(Application::Plain)?;
    let semel = semel(directory.path(), upstream.address)?;
    let nginx = nginx(directory.path(), upstream.address)?;
    let mut alone = Vec::new();
    let [mut unkeyed, mut fresh, mut replay] = [const { Vec::new() }; 3];
    for round in 1..=run.rounds() {
        progress(format_args!("gateway: round {round}"));
        unkeyed.push(rate(semel.address, Keys::Absent, run.turn())?);
        alone.push(rate(nginx.server.address, Keys::Absent, run.turn())?);
        fresh.push(rate(semel.address, Keys::Fresh, run.turn())?);
        replay.push(rate(semel.address, Keys::Repeated, run.turn())?);
    }
    let print = |name: &str, rates: &[f64], reference, other: &[f64], goal: Option<Goal>| {
        if run.wants(name) {
            Measurement::new(name, "requests/s", rates.to_vec())
                .against(reference, other)
                .goal(goal)
                .print();
        }
    };
    let goals = [Some(Goal::RatioAtLeast(0.8)), None, None];
    let all = [&unkeyed, &fresh, &replay];
    for ((name, rates), goal) in beside_nginx.iter().zip(all).zip(goals) {
        print(name, rates, "nginx, requests without a key", &alone, goal);
    }
    for (name, rates) in beside_unkeyed.iter().zip([&fresh, &replay]) {
        print(
            name,
            rates,
            "the gateway, requests without a key",
            &unkeyed,
            None,
        );
    }
    Ok(())
}

/// The gateway on its embedded store.
fn semel(directory: &Path, upstream: SocketAddr) -> Result<Server> {
    let (listen, admin) = (free_address()?, free_address()?);
    let mut command = Command::new(program()?);
    command
        .arg("serve")
        .args(["--upstream", &format!("http://{upstream}")])
        .args(["--listen", &listen.to_string()])
        .args(["--admin", &admin.to_string()])
        .arg("--store")
        .arg(format!("file:{}", directory.join("semel").display()))
        .stdout(Stdio::null());
    Server::spawn(&mut command, listen)
}

/// The program `semel`: what `SEMEL_BIN` names, or the one built here from the root manifest.
fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("SEMEL_BIN") {
        return Ok(named.into());
    }
    progress("gateway: building the program semel");
    let output = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--release", "--package", "semel-gateway"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the gateway was not built");
    let messages = String::from_utf8(output.stdout)?;
    let built = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of_semel = message["target"]["name"] == "semel";
        let program = message["executable"].as_str().filter(|_| of_semel)?;
        Some(PathBuf::from(program))
    });
    built.context("the gateway has no program semel")
}

/// nginx's workers end with their master, and that one only when it is asked.
struct Nginx {
    server: Server,
    stop: Command,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Err(error) = self.stop.status().and_then(|_| self.server.ended()) {
            progress(format_args!("nginx was not stopped: {error}"));
        }
    }
}

fn nginx(directory: &Path, upstream: SocketAddr) -> Result<Nginx> {
    let listen = free_address()?;
    let at = directory.join("nginx");
    std::fs::create_dir(&at)?;
    let mut temporary = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(temporary, "    {kind}_temp_path {}/{kind};", at.display())?;
    }
    // As many workers as the gateway has threads: one for each processor.
    let configuration = format!(
        "daemon off;
worker_processes auto;
pid {at}/pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
{temporary}    access_log off;
    keepalive_requests 1000000000;
    upstream application {{
        server {upstream};
        keepalive 64;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://application;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
    }}
}}
",
        at = at.display()
    );
    let file = at.join("nginx.conf");
    std::fs::write(&file, configuration)?;
    let command = || {
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&at).arg("-c").arg(&file);
        command
    };
    let server = Server::spawn(&mut command(), listen)?;
    let mut stop = command();
    stop.args(["-s", "stop"]).stderr(Stdio::null());
    Ok(Nginx { server, stop })
}
