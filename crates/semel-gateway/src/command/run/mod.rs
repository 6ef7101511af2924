//! `semel run`: a command once per key, for cron and CI.
//!
//! The library's guard claims, renews and records; here is what the work is: a process with its signals
//! and its output. `docs/run.md` describes it for users.

mod exits;
mod gateway;
mod kept;
mod output;
mod process;
mod report;
pub mod settings;

use std::fs::OpenOptions;
use std::future::pending;
use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use clap::{ArgMatches, Command};
use rustix::fs::Mode;
use rustix::process::{Signal, umask};
use semel::guard::{
    Asked, AttemptInfo, Begin, Guard, Held, Observer, Seen, Settled, Settlement, Signal as Event,
    name_of,
};
use semel::secrets::Secrets;
use semel::store::{Entry, OnLost, Refusal, Store as _};
use semel::{AnyStore, IdentityDigest, Note, StateKind, StoreError, Timestamp};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{block_on, with_causes};
use crate::store;
use exits::{Ended, Meaning};
use gateway::{Name, Remote};
use kept::{Kept, Output};
use output::Copying;
use process::{Group, Running};
use report::{MISUSED, Report, Result, say};
use settings::{Place, Settings};

pub use process::{KEEPER, keep};

const HELP: &str = "\
The command's own exit status is passed on, and replayed. Those of semel run: 112 the command line or a \
setting is wrong; 113 the store or the gateway cannot be used; 114 another run is in flight; 115 unknown: a run was \
lost, or the command was killed; 116 the key was used with another command; 117 it ran, and its outcome \
is no longer kept; 118 the claim was lost while the command ran; 119 the outcome could not be recorded; \
120 the command could not be started; 121 the command itself ended with one of these.";

/// How long a store is told again and again what became of a run (R14).
const PATIENCE: Duration = Duration::from_mins(5);
/// How many expired records a run removes, and how long that may take.
const PURGED: usize = 256;
const PURGE_WITHIN: Duration = Duration::from_secs(2);

/// The command line of `semel run`, and of the process that it starts to keep a group.
pub(super) fn commands() -> [Command; 2] {
    [settings::command(), process::keeper()]
}

/// A command line that could not be read.
pub fn misused(error: &clap::Error) -> ExitCode {
    error.print().ok();
    ExitCode::from(MISUSED)
}

/// Runs the command, or replays it. `mode`: the umask that the command is to have.
pub fn main(flags: &ArgMatches, mode: Mode) -> ExitCode {
    let settings = Settings::read(flags, |name| std::env::var_os(name)).and_then(|settings| {
        let Some(file) = &settings.report else {
            return Ok(settings);
        };
        let own = umask(mode);
        let opened = OpenOptions::new().append(true).create(true).open(file);
        umask(own);
        match opened {
            Ok(_) => Ok(settings),
            Err(error) => Err(vec![format!("--report: `{}`: {error}", file.display())]),
        }
    });
    match settings {
        Ok(mut settings) => block_on(async move {
            let report = run(&mut settings, mode).await;
            ExitCode::from(report.tell(settings.report.as_deref()))
        }),
        Err(errors) => {
            errors.iter().for_each(|error| say(error));
            ExitCode::from(MISUSED)
        }
    }
}

type Signals = UnboundedReceiver<Signal>;

async fn run(settings: &mut Settings, mode: Mode) -> Report {
    let id = *settings.identity.digest();
    let mut signals = match process::signals() {
        Ok(signals) => signals,
        Err(error) => return not_run(id, &format!("cannot listen for signals: {error}")),
    };
    let (store, secrets, name) = tokio::select! {
        opened = open(&settings.place) => match opened {
            Ok(opened) => opened,
            Err(error) => return not_run(id, &with_causes(&error)),
        },
        Some(signal) = signals.recv() => return not_run(id, &stopped_by(signal, BEFORE)),
    };
    settings.name_under(secrets.as_ref());
    let settings = &*settings;
    let ends = Arc::new(Ends::default());
    let guard = Guard::builder(store)
        .policy(settings.policy)
        .observer(Arc::clone(&ends) as _)
        .build();
    let asked =
        Asked::new(settings.identity.clone(), settings.fingerprint).with_note(note(settings));
    let begin = tokio::select! {
        begin = guard.begin(&asked) => begin.map_err(|error| with_causes(&error)),
        Some(signal) = signals.recv() => Err(stopped_by(signal, BEFORE)),
    };
    let named = name.and_then(|name| name.known());
    let report = match begin {
        Ok(Begin::Acquired(held)) => {
            let attempt = Attempt {
                id: named.unwrap_or(*held.id()),
                settings,
                guard: &guard,
                ends: &ends,
                signals,
            };
            attempt.run(held, mode).await
        }
        Ok(begin) => without_running(begin, named, settings, guard.store(), &mut signals).await,
        Err(why) => not_run(named.unwrap_or(*settings.identity.digest()), &why),
    };
    // What could not be recorded in minutes is not waited for again.
    if report.result != Result::NotRecorded {
        guard.close().await.ok();
    }
    report
}

type Opened = (AnyStore, Option<Secrets>, Option<Name>);

async fn open(place: &Place) -> std::result::Result<Opened, store::Error> {
    match place {
        Place::Store(url, at_rest) => {
            let opened = store::open(url, at_rest).await?;
            Ok((opened.store, opened.secrets, None))
        }
        // It names records itself.
        Place::Gateway(gateway) => {
            let remote = Remote::new(gateway);
            let name = remote.name();
            Ok((AnyStore::new(remote), None, Some(name)))
        }
    }
}

/// Where it runs, for whoever finds it in the way. Not the words behind the program: there may be secrets
/// among them.
fn note(settings: &Settings) -> Note {
    let program = settings.command.first().map(|word| word.to_string_lossy());
    let host = std::fs::read_to_string(HOST_NAME).unwrap_or_default();
    let texts = [
        ("host", host.trim().to_owned()),
        ("process", std::process::id().to_string()),
        ("program", program.unwrap_or_default().into_owned()),
    ];
    Note::new(texts.into_iter().filter(|(_, text)| !text.is_empty()))
}

/// Where Linux says what the machine is called.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

const BEFORE: &str = "before the start";

fn stopped_by(signal: Signal, at: &str) -> String {
    format!("stopped by signal {} {at}", signal.as_raw())
}

fn not_run(id: IdentityDigest, why: &str) -> Report {
    Report::new(Result::Unavailable, id).because(format!("not run: {why}"))
}

/// Gives the output again, as it was.
async fn replay(kept: Kept, id: IdentityDigest) -> Report {
    let report = Report {
        ended: Some(Ended::Status(kept.code)),
        is_omitted: Some(kept.output.is_none()),
        ..Report::new(Result::Replayed, id)
    };
    let Some(Output { stdout, stderr }) = kept.output else {
        return report.because(
            "done by an earlier run, whose output was not kept: this is its exit status alone",
        );
    };
    // Who reads it may pause for ever. Whoever does not read it gets the status all the same.
    let written = spawn_blocking(move || {
        let mut out = io::stdout();
        out.write_all(&stdout).and_then(|()| out.flush()).ok();
        io::stderr().write_all(&stderr).ok();
    });
    written.await.ok();
    report
}

/// Gives the outcome of an earlier run again, or says why there is none; unless a signal comes while the
/// store is asked about it, or before the output is read.
async fn without_running(
    begin: Begin<AnyStore>,
    named: Option<IdentityDigest>,
    settings: &Settings,
    store: &AnyStore,
    signals: &mut Signals,
) -> Report {
    let at = match begin {
        Begin::Completed(_) => "while an earlier run's output was given again",
        _ => BEFORE,
    };
    let told = async {
        let id = match named {
            Some(id) => id,
            // Of two secrets, as its record is named.
            None => {
                let name = name_of(store, &settings.identity).await;
                *name.as_ref().unwrap_or(&settings.identity).digest()
            }
        };
        match begin {
            Begin::Completed(outcome) => replay(Kept::of(&outcome), id).await,
            begin => refused(begin, id, settings, store).await,
        }
    };
    tokio::select! {
        report = told => report,
        Some(signal) = signals.recv() => {
            let id = named.unwrap_or(*settings.identity.digest());
            not_run(id, &stopped_by(signal, at))
        }
    }
}

/// Why nothing is run, with what is known of the run that is in the way.
async fn refused(
    begin: Begin<AnyStore>,
    id: IdentityDigest,
    settings: &Settings,
    store: &AnyStore,
) -> Report {
    let (result, why) = match begin {
        Begin::InFlight { .. } => (Result::InFlight, "another run with this key is in flight"),
        Begin::Mismatch => (
            Result::Mismatch,
            "this key was used with another command. Use a new key for new work; if only words of the command \
             line differ that do not matter, say with --fingerprint what does",
        ),
        Begin::Expired => (
            Result::Expired,
            "a run with this key is done, and its outcome is no longer kept",
        ),
        // A call with a key, under a policy that refuses without the store, has no other answer.
        _ => (
            Result::Unknown,
            "a run with this key was lost: it may have had its effect, and nobody knows. Find out, then say \
             what happened with `semel records resolve`, or run it once with --on-lost retry if that is harmless",
        ),
    };
    let mut report = Report::new(result, id);
    let mut why = format!("not run: {why}");
    if matches!(result, Result::InFlight | Result::Unknown)
        && let Ok(Some(Entry { record, .. })) = store.get(&id).await
    {
        let (attempt, fence) = (record.attempt, record.token.fence);
        report.attempt = Some(attempt);
        report.fence = Some(fence);
        let since = rfc3339(record.claimed_at);
        why += &format!(" (begun {since}, attempt {attempt}, fence {fence}, id {id}");
        for (name, text) in record.note.iter() {
            why += &format!(", {name} {text}");
        }
        why.push(')');
    }
    if result == Result::InFlight {
        why += match settings.policy.wait() {
            Duration::ZERO => "; --wait DUR waits for its outcome",
            _ => "; --wait is over",
        };
    }
    report.because(why)
}

fn rfc3339(at: Timestamp) -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_micros(at.as_micros()))
}

/// How the attempt ended for the store, of which the guard tells its observer alone when that is late.
#[derive(Default)]
struct Ends(Mutex<Option<Event>>);

impl Observer for Ends {
    fn on_event(&self, seen: &Seen<'_>) {
        use Event::{Completed, MarkedUnknown, Omitted, Released, Stale};
        if matches!(
            seen.signal,
            Completed | Omitted | Released | MarkedUnknown | Stale
        ) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen.signal);
        }
    }
}

impl Ends {
    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn get(&self) -> Option<Event> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that this process has the claim for.
struct Attempt<'a> {
    id: IdentityDigest,
    settings: &'a Settings,
    guard: &'a Guard<AnyStore>,
    ends: &'a Ends,
    signals: Signals,
}

/// How the command ended, and what it left.
struct End {
    ended: io::Result<Ended>,
    output: Option<Output>,
    /// It was stopped, because another run may have taken over.
    is_lost: bool,
}

impl Attempt<'_> {
    async fn run(mut self, mut held: Held<AnyStore>, mode: Mode) -> Report {
        let info = held.info();
        let report = Report {
            fence: Some(info.fence),
            attempt: Some(info.number),
            ..Report::new(Result::Ran, self.id)
        };
        let started = self.start(&info, mode);
        let (group, command) = match started {
            Ok(started) => started,
            Err((result, why)) => {
                let released = held.release().await;
                let why = match released {
                    Ok(_) => why,
                    Err(error) => format!("{why}; and the key was not given back: {error}"),
                };
                let report = Report { result, ..report };
                return report.because(format!("not run: {why}"));
            }
        };
        let end = self.attend(&info, &group, command).await;
        drop(group);
        self.settle(held, end, report).await
    }

    /// Starts the command; or says why nothing was run.
    fn start(
        &mut self,
        info: &AttemptInfo,
        mode: Mode,
    ) -> std::result::Result<(Group, Running), (Result, String)> {
        let not_started = |error: io::Error| {
            let program = self.settings.command.first().cloned().unwrap_or_default();
            let why = format!("cannot start `{}`: {error}", program.display());
            (Result::NotStarted, why)
        };
        let group = Group::start(self.grace()).map_err(not_started)?;
        // This process may have been paused since the claim.
        if !info.still_held() {
            let why = "the claim was lost before the start".to_owned();
            return Err((Result::Unavailable, why));
        }
        // Passed on, it would kill what has done nothing yet, and leave the key unknown.
        if let Ok(signal) = self.signals.try_recv() {
            return Err((Result::Unavailable, stopped_by(signal, BEFORE)));
        }
        let variables = [
            ("SEMEL_ID", self.id.to_string()),
            ("SEMEL_FENCE", info.fence.to_string()),
            ("SEMEL_ATTEMPT", info.number.to_string()),
        ];
        // In a group of its own it would be stopped when it reads from a terminal.
        let stdin = match io::stdin().is_terminal() {
            true => Stdio::null(),
            false => Stdio::inherit(),
        };
        let command = &self.settings.command;
        let started = group.spawn(command, variables, stdin, mode);
        let command = started.map_err(not_started)?;
        Ok((group, command))
    }

    /// How long processes have to end that were told to: with what is left of a lease, which was renewed
    /// a third of it ago, they are gone before it is over.
    fn grace(&self) -> Duration {
        self.settings.lease / 3
    }

    /// Passes on output and signals until the command ends.
    async fn attend(&mut self, info: &AttemptInfo, group: &Group, command: Running) -> End {
        let Running {
            mut child,
            stdout,
            stderr,
        } = command;
        let copying = Copying::start(stdout, stderr, self.settings.max_output);
        let mut exit = spawn_blocking(move || child.wait());
        let mut lost = pin!(lost(info, self.guard.store(), self.settings));
        let mut kill_at = None;
        let ended = loop {
            tokio::select! {
                ended = &mut exit => break ended.unwrap_or_else(|error| Err(io::Error::other(error))),
                Some(signal) = self.signals.recv() => group.signal(signal),
                () = &mut lost, if kill_at.is_none() => {
                    group.signal(Signal::TERM);
                    kill_at = Some(Instant::now() + self.grace());
                    say("the claim was lost, another run may have begun: stopping the command");
                }
                () = at(kill_at) => {
                    group.signal(Signal::KILL);
                    kill_at = Some(Instant::now() + self.grace());
                }
            }
        };
        // Signals until now were for the command.
        while self.signals.try_recv().is_ok() {}
        // What it started may still write, or never close what it does not use.
        tokio::select! {
            () = copying.closed() => {}
            () = sleep(self.grace()) => {}
            _ = self.signals.recv() => {}
        }
        // Who reads the output may pause for ever: a signal then says that its end is enough. Nothing is said of
        // it here: stderr may have the same reader, and the end is not recorded yet.
        let output = tokio::select! {
            output = copying.end() => output,
            _ = self.signals.recv() => None,
        };
        End {
            ended: ended.map(Ended::from),
            output,
            is_lost: kill_at.is_some(),
        }
    }

    /// Records the end, and says what that makes of the key.
    async fn settle(mut self, held: Held<AnyStore>, end: End, report: Report) -> Report {
        let (ended, how) = match end.ended {
            Ok(ended @ Ended::Status(status)) => {
                (Some(ended), format!("ended with status {status}"))
            }
            Ok(ended @ Ended::Signal(signal)) => {
                (Some(ended), format!("was killed by signal {signal}"))
            }
            Err(error) => (
                None,
                format!("ended in a way that the system did not tell ({error})"),
            ),
        };
        let on_exit = &self.settings.on_exit;
        let meaning = match ended {
            // It was interrupted, whatever it says itself: nobody may replay that.
            _ if end.is_lost => Meaning::Unknown,
            Some(ended) => on_exit.meaning(ended),
            None => Meaning::Unknown,
        };
        let mut is_omitted = end.output.is_none();
        let settlement = match meaning {
            Meaning::Keep => {
                let code = ended.map_or(0, Ended::code);
                let output = end.output;
                Settlement::Complete(Kept { code, output }.to_outcome(), None)
            }
            Meaning::Release => Settlement::Release,
            Meaning::Unknown => Settlement::Unknown,
        };
        self.ends.clear();
        let settled = match held.settle(settlement).await {
            Err(error) if error.is_retryable() => self.insist(error).await,
            settled => settled,
        };
        let report = Report { ended, ..report };
        match settled {
            Ok(Settled::Applied) => {}
            Ok(Settled::Omitted) => is_omitted = true,
            Ok(Settled::Refused(refusal)) => {
                let report = Report {
                    result: Result::Lost,
                    ..report
                };
                return report.because(format!(
                    "the claim was lost while the command ran: {refusal}. The command {how}, which is not recorded"
                ));
            }
            Err(error) => {
                let report = Report {
                    result: Result::NotRecorded,
                    ..report
                };
                return report.because(format!(
                    "the command {how}, and that could not be recorded: {}. After the lease its outcome counts \
                     as unknown",
                    with_causes(&error)
                ));
            }
        }
        self.purge().await;
        let report = Report {
            recorded: Some(meaning),
            ..report
        };
        if end.is_lost {
            let report = Report {
                result: Result::Lost,
                ..report
            };
            return report.because(format!(
                "the claim was lost while the command ran, which {how}"
            ));
        }
        match meaning {
            Meaning::Keep if is_omitted => Report { is_omitted: Some(true), ..report }.because(
                "the command's output is not kept, because it is too large (see --max-output) or was not read to its \
                 end: a replay has its exit status alone",
            ),
            Meaning::Keep => Report { is_omitted: Some(false), ..report },
            Meaning::Release => report,
            Meaning::Unknown => Report { result: Result::Unknown, ..report }.because(format!(
                "the command {how}: it may have had its effect, and nobody knows. The key is held until somebody \
                 says what happened: `semel records resolve {}`",
                self.id
            )),
        }
    }

    /// Waits until the store takes what the guard tells it again and again.
    async fn insist(&mut self, error: StoreError) -> std::result::Result<Settled, StoreError> {
        say(&format!(
            "the outcome is not recorded yet: {}; trying again for {}, or until a signal",
            with_causes(&error),
            humantime::format_duration(PATIENCE)
        ));
        let end = Instant::now() + PATIENCE;
        while self.guard.unsettled() > 0 {
            tokio::select! {
                () = sleep(Duration::from_millis(100)) => {}
                () = sleep_until(end) => return Err(error),
                _ = self.signals.recv() => return Err(error),
            }
        }
        match self.ends.get() {
            Some(Event::Stale) => Ok(Settled::Refused(Refusal::Superseded)),
            Some(Event::Omitted) => Ok(Settled::Omitted),
            Some(_) => Ok(Settled::Applied),
            None => Err(error),
        }
    }

    /// Removes some of what is past its retention: no other process may do so.
    async fn purge(&self) {
        let purged = self.guard.store().purge(PURGED);
        timeout(PURGE_WITHIN, purged).await.ok();
    }
}

/// Returns once the command has to stop. Under `hold` no other run begins while the record stands as it
/// is, whether or not it could be renewed.
async fn lost(info: &AttemptInfo, store: &AnyStore, settings: &Settings) {
    loop {
        info.lost().await;
        if settings.on_lost == OnLost::Retry {
            return;
        }
        if let Ok(found) = store.get(&info.id).await {
            let ours = found.filter(|entry| entry.record.token.fence == info.fence);
            let state = ours.map(|entry| entry.record.state.kind());
            if !matches!(state, Some(StateKind::InFlight | StateKind::Unknown)) {
                return;
            }
        }
        sleep(settings.lease / 3).await;
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use semel::memory::MemoryStore;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn settings(gateway: &str) -> Settings {
        let line = ["run", "--key", "k", "--gateway", gateway, "--", "true"];
        let flags = settings::command().try_get_matches_from(line).unwrap();
        Settings::read(&flags, |_| None).unwrap()
    }

    #[tokio::test]
    async fn a_signal_between_the_claim_and_the_start_runs_nothing() {
        let settings = settings("http://127.0.0.1:1");
        let guard = Guard::builder(AnyStore::new(MemoryStore::default())).build();
        let asked = Asked::new(settings.identity.clone(), settings.fingerprint);
        let Ok(Begin::Acquired(held)) = guard.begin(&asked).await else {
            panic!("nobody else has it");
        };
        let (sender, signals) = unbounded_channel();
        sender.send(Signal::TERM).unwrap();
        let attempt = Attempt {
            id: *held.id(),
            settings: &settings,
            guard: &guard,
            ends: &Ends::default(),
            signals,
        };
        // The keeper is this program again: the test binary, which has no test of that name and ends.
        let report = attempt.run(held, Mode::empty()).await;
        assert_eq!(report.result, Result::Unavailable);
        let begin = guard.begin(&asked).await;
        assert!(matches!(begin, Ok(Begin::Acquired(_))), "it is given back");
    }

    #[tokio::test]
    async fn a_signal_is_heard_while_the_store_does_not_say_which_record_it_is() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let mut settings = settings(&url);
        let secrets = "a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nplain";
        settings.name_under(Some(&Secrets::parse(secrets).unwrap()));
        let Place::Gateway(gateway) = &settings.place else {
            unreachable!("it is one");
        };
        let store = AnyStore::new(Remote::new(gateway));
        let (sender, mut signals) = unbounded_channel();
        sender.send(Signal::TERM).unwrap();
        let begin = Begin::InFlight {
            retry_after: Duration::ZERO,
        };
        let report = without_running(begin, None, &settings, &store, &mut signals).await;
        assert_eq!(report.result, Result::Unavailable);
    }
}
