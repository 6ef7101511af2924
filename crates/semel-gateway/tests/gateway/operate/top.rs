//! `semel top`, on a terminal and without one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

use super::{PLACED, admin, failed, lose, said, semel};
use crate::support::{Gateway, Script, eventually, order};

const ROWS: u16 = 30;
const COLUMNS: u16 = 160;

fn parser() -> vt100::Parser {
    let some = |size| NonZero::new(size).unwrap();
    vt100::Parser::new(some(ROWS), some(COLUMNS), 0)
}

/// The program on a terminal.
struct Terminal {
    program: Child,
    keys: File,
    /// The program's end of it, which stays open.
    end: File,
    seen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(arguments: &[&str]) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let end = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&end, size).unwrap();
        let own = || Stdio::from(end.try_clone().unwrap());
        let program = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(arguments)
            .env_clear()
            .env("TERM", "xterm-256color")
            .stdin(own())
            .stdout(own())
            .stderr(own())
            .spawn()
            .unwrap();
        let mut main = File::from(main);
        let keys = main.try_clone().unwrap();
        let seen = Arc::new(Mutex::new(parser()));
        let shown = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut read = [0; 4096];
            while let Ok(count @ 1..) = main.read(&mut read) {
                shown.lock().unwrap().process(&read[..count]);
            }
        });
        Self {
            program,
            keys,
            end,
            seen,
        }
    }

    fn screen(&self) -> String {
        self.seen.lock().unwrap().screen().contents()
    }

    async fn shows(&self, text: &str) {
        eventually(text, async || self.screen().contains(text).then_some(())).await;
    }

    fn press(&mut self, key: &[u8]) {
        self.keys.write_all(key).unwrap();
    }

    /// It ends, and the terminal is as it was.
    async fn ended(&mut self) -> i32 {
        let status = eventually("the end of the program", || {
            std::future::ready(self.program.try_wait().unwrap())
        })
        .await;
        let modes = tcgetattr(&self.end).unwrap().local_modes;
        let usual = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        assert!(modes.contains(usual), "{modes:?}");
        eventually("the screen of before", async || {
            let seen = self.seen.lock().unwrap();
            let screen = seen.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        })
        .await;
        status.code().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.program.kill().ok();
        self.program.wait().ok();
    }
}

#[tokio::test]
async fn it_shows_what_happens_and_gives_the_terminal_back() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let lost = lose(&upstream, &gateway, "order-4711").await;
    let at = admin(&gateway);
    let mut terminal = Terminal::start(&["top", "--interval", "100ms", &at[0], &at[1]]);
    terminal.shows(&lost[..40]).await;
    terminal.shows("unknown 1   lapsed 0   in flight 0").await;
    assert!(
        terminal.screen().contains("order…"),
        "{}",
        terminal.screen()
    );

    upstream.react(PLACED);
    // Heard only once it listens.
    eventually("an event", async || {
        assert_eq!(
            order(gateway.address, "order-4711").await.problem(),
            "outcome-unknown"
        );
        let is_told = |line: &str| line.contains("  unknown  ") && line.contains(&lost[..40]);
        let screen = terminal.screen();
        let lines = screen.lines().filter(|line| line.contains(':'));
        lines.into_iter().any(is_told).then_some(())
    })
    .await;
    assert_eq!(order(gateway.address, "order-4712").await.status, 201);
    terminal.shows("/s").await;
    terminal.press(b"s");
    terminal.press(b"q");
    assert_eq!(terminal.ended().await, 0);

    // Whatever ends it.
    for (key, signal) in [
        (&b"\x03"[..], None),
        (b"", Some(rustix::process::Signal::TERM)),
        (b"", Some(rustix::process::Signal::HUP)),
    ] {
        let mut terminal = Terminal::start(&["top", &at[0], &at[1]]);
        terminal.shows("unknown 1").await;
        terminal.press(key);
        if let Some(signal) = signal {
            let process = i32::try_from(terminal.program.id()).unwrap();
            let process = rustix::process::Pid::from_raw(process).unwrap();
            rustix::process::kill_process(process, signal).unwrap();
        }
        assert_eq!(terminal.ended().await, 0, "{key:?} {signal:?}");
    }
}

#[tokio::test]
async fn it_waits_for_a_gateway_that_went_away() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let at = admin(&gateway);
    let address = gateway.admin.to_string();
    let directory = gateway.directory();
    let mut terminal = Terminal::start(&["top", "--interval", "100ms", &at[0], &at[1]]);
    terminal.shows("unknown 0").await;
    gateway.kill();
    terminal.shows("no gateway answers there").await;
    let flags = ["--admin", &address];
    let gateway = Gateway::start_in(&directory, upstream.address, &flags);
    lose(&upstream, &gateway, "order-1").await;
    terminal.shows("unknown 1").await;
    // Also of what happens there.
    eventually("no complaint", async || {
        (!terminal.screen().contains("no gateway")).then_some(())
    })
    .await;
    terminal.press(b"q");
    assert_eq!(terminal.ended().await, 0);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn without_a_terminal_it_shows_once_how_things_stand() {
    let upstream = Script::start(PLACED).await;
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let gateway = Gateway::start(upstream.address, &["--store", &store]);
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    let lost = lose(&upstream, &gateway, "order-2").await;
    let at = admin(&gateway);
    for (place, new) in [([&*at[0], &*at[1]], Some(2)), (["--store", &store], None)] {
        let json_line = said(&semel(&["top", "--json", place[0], place[1]]));
        let shown: Value = serde_json::from_str(json_line.trim()).unwrap();
        assert_eq!(
            shown["overview"]["records"]["unknown"],
            json!({"records": 1, "more": false})
        );
        assert_eq!(shown["overview"]["events"]["new"].as_u64(), new);
        assert_eq!(shown["records"][0]["id"], lost);
        let text = said(&semel(&["top", place[0], place[1]]));
        assert!(
            text.contains("unknown 1   lapsed 0") && text.contains(&lost),
            "{text}"
        );
        assert_eq!(text.contains("replayed"), new.is_some(), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
    let (code, why) = failed(&semel(&["top", "--interval", "1ms", &at[0], &at[1]]));
    assert!(code == 2 && why.contains("--interval"), "{why}");
    let (code, why) = failed(&semel(&["top", "--admin", "http://127.0.0.1:1"]));
    assert!(
        code == 1 && why.contains("no gateway answers there"),
        "{why}"
    );
}
