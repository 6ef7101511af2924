//! Reading histories back, and merging those of all processes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::log::Line;
use super::{Answer, Op};
use crate::clock::Nanos;
use crate::lines;

/// All calls in the history of a life of a worker, in the order in which they were sent. A last line
/// that was cut by a kill is left out; a damaged line anywhere else is an error.
///
/// # Errors
/// Those of the file system, and `InvalidData` where the file is not a history.
pub fn read(path: &Path, worker: u32) -> io::Result<Vec<Op>> {
    let mut ops: Vec<Op> = Vec::new();
    let mut open = HashMap::new();
    for line in lines::read(path)? {
        match line {
            Line::Sent(id, invoked, call) => {
                open.insert(id, ops.len());
                ops.push(Op {
                    worker,
                    invoked,
                    answered: Nanos::MAX,
                    call,
                    answer: Answer::Lost,
                });
            }
            Line::Answered(id, answered, answer) => {
                let at = open.remove(&id).ok_or_else(|| {
                    let what = format!("{}: an answer to no call, {id}", path.display());
                    io::Error::new(io::ErrorKind::InvalidData, what)
                })?;
                (ops[at].answered, ops[at].answer) = (answered, answer);
            }
        }
    }
    Ok(ops)
}

/// The merged history of every `*.history` file in a directory, by the time of sending.
///
/// # Errors
/// Those of [`read`].
pub fn read_all(directory: &Path) -> io::Result<Vec<Op>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "history"));
    paths.sort();
    let mut all = Vec::new();
    for path in &paths {
        // `NUMBER-LIFE.history`.
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let number = name.and_then(|name| name.split('-').next()?.parse().ok());
        let worker = number.ok_or_else(|| {
            let what = format!("{}: which worker's?", path.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        all.append(&mut read(path, worker)?);
    }
    all.sort_by_key(|op| op.invoked);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use semel::StateKind;

    use super::super::{Call, Held, Kept, Log, Refused, Step};
    use super::*;

    #[test]
    fn calls_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("4-0.history");
        let held = Held {
            fence: u64::MAX,
            nonce: u128::MAX - 1,
        };
        let kept = Kept {
            outcome: u64::MAX,
            replay: 5,
            tombstone: 0,
        };
        let found = |state, outcome| Answer::Found {
            state,
            held,
            outcome,
        };
        let wanted = [
            (
                Call::Fenced {
                    key: 3,
                    held,
                    step: Step::Complete(kept),
                },
                Answer::Refused(Refused::OtherSteps),
            ),
            (
                Call::Resolve {
                    key: 1,
                    fence: 2,
                    nonce: held.nonce,
                    happened: Some(kept),
                },
                Answer::Applied,
            ),
            (Call::Purge, Answer::Purged(4)),
            (
                Call::Get { key: 1 },
                found(StateKind::Completed, Some(u64::MAX)),
            ),
            (Call::Get { key: 2 }, found(StateKind::InFlight, None)),
            (Call::Get { key: 3 }, Answer::Lost),
        ];
        let log = Log::create(&path).unwrap();
        for (call, answer) in wanted {
            let id = log.invoke(&call);
            if answer != Answer::Lost {
                log.answer(id, &answer);
            }
        }
        let ops = read_all(folder.path()).unwrap();
        let found: Vec<_> = ops.iter().map(|op| (op.call, op.answer)).collect();
        assert_eq!(found, wanted);
        let times = |op: &Op| (op.worker, op.invoked <= op.answered);
        assert!(ops.iter().all(|op| times(op) == (4, true)));
        assert_eq!(ops[5].answered, Nanos::MAX, "lost");
        log.answer(5, &Answer::Absent);
        log.answer(5, &Answer::Absent);
        assert!(read(&path, 4).is_err(), "two answers to one call");
    }
}
