//! `semel records`, `semel audit` and the admin API, by a gateway and on a store.

mod api;
mod audit;
mod commands;
mod live;
mod roles;
#[cfg(feature = "sqlite")]
mod stores;
mod top;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use axum::http::Method;
use serde_json::Value;

use crate::support::described::described;
use crate::support::{Answer, Gateway, Reaction, Script, order, request, send};

/// Runs the program in an environment of its own.
pub(crate) fn semel(arguments: &[&str]) -> Output {
    semel_with(arguments, "")
}

fn semel_with(arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(arguments)
        .env_clear()
        .env("USER", "ada")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Whoever does not read it closes the pipe.
    process
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .ok();
    process.wait_with_output().unwrap()
}

/// What a command printed that worked.
fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Why a command did not work, and its exit code.
fn failed(output: &Output) -> (i32, String) {
    assert!(
        !output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr.clone()).unwrap(),
    )
}

/// The objects that a command printed, one on a line.
pub(crate) fn lines(output: &Output) -> Vec<Value> {
    said(output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// `--admin` and the address.
fn admin(gateway: &Gateway) -> [String; 2] {
    ["--admin".to_owned(), format!("http://{}", gateway.admin)]
}

async fn post(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    let json = [("content-type", "application/json")];
    let path = format!("/api/v1/{path}");
    let body = body.to_string();
    let answer = send(request(Method::POST, gateway.admin, &path, &json, &body));
    let answer = answer.await.unwrap();
    described(&description(gateway).await, "POST", &path, &answer);
    answer
}

async fn description(gateway: &Gateway) -> Value {
    let answer = crate::support::get(gateway.admin, "/openapi.json").await;
    serde_json::from_str(answer.text()).unwrap()
}

async fn read(gateway: &Gateway, path: &str) -> Value {
    let path = format!("/api/v1/{path}");
    let answer = crate::support::get(gateway.admin, &path).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    described(&description(gateway).await, "GET", &path, &answer);
    serde_json::from_str(answer.text()).unwrap()
}

/// An order whose upstream closes the connection: its outcome is unknown. The record's id, which the
/// upstream was given.
pub(crate) async fn lose(upstream: &Script, gateway: &Gateway, key: &str) -> String {
    upstream.react(Reaction::Close);
    assert_eq!(
        order(gateway.address, key).await.problem(),
        "upstream-failed"
    );
    let names = upstream.fields("idempotency-id");
    names.last().unwrap()[0].clone()
}

/// Answers with a header, and a body that is text.
pub(crate) const PLACED: Reaction = Reaction::Send(
    "HTTP/1.1 201 Created\r\ncontent-type: text/plain\r\nx-part: 7\r\ncontent-length: 6\r\n\r\nplaced",
);
