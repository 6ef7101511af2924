//! Reading histories back, and merging those of all processes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Answer, Op, parse_answer, parse_call};
use crate::clock::Nanos;

/// All calls in the history of a life of a worker, in the order in which they were sent. A last line that was
/// cut by a kill is left out; a damaged line anywhere else is an error.
///
/// # Errors
/// Those of the file system, and `InvalidData` where the file is not a history.
pub fn read(path: &Path, worker: u32) -> io::Result<Vec<Op>> {
    let text = fs::read_to_string(path)?;
    parse(&text, worker).map_err(|line| {
        let what = format!("{}: line {line} is not one of a history", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

fn parse(text: &str, worker: u32) -> Result<Vec<Op>, usize> {
    let mut ops = Vec::new();
    let mut open = HashMap::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n') else {
            break;
        };
        let read = || {
            let (sort, rest) = line.split_once(' ')?;
            let (id, rest) = rest.split_once(' ')?;
            let (time, rest) = rest.split_once(' ')?;
            let (id, time): (u64, Nanos) = (id.parse().ok()?, time.parse().ok()?);
            Some((sort, id, time, rest))
        };
        let (sort, id, time, rest) = read().ok_or(number + 1)?;
        if sort == ">" {
            open.insert(id, ops.len());
            ops.push(Op {
                worker,
                invoked: time,
                answered: Nanos::MAX,
                call: parse_call(rest).ok_or(number + 1)?,
                answer: Answer::Lost,
            });
        } else {
            let at = open.remove(&id).ok_or(number + 1)?;
            let op: &mut Op = &mut ops[at];
            op.answered = time;
            op.answer = parse_answer(rest).ok_or(number + 1)?;
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
    use super::super::{Call, Failed};
    use super::*;

    #[test]
    fn a_call_without_an_answer_is_lost() {
        let text = "> 0 10 get 1\n> 1 11 get 2\n< 0 12 absent\n> 2 13 get 3\n< 2 14 fai";
        let ops = parse(text, 4).unwrap();
        let answers: Vec<_> = ops.iter().map(|op| (op.answered, op.answer)).collect();
        let lost = (Nanos::MAX, Answer::Lost);
        assert_eq!(answers, [(12, Answer::Absent), lost, lost]);
        assert_eq!(ops[2].call, Call::Get { key: 3 });
        assert!(Answer::Failed(Failed::Perhaps).is_ambiguous());
    }

    #[test]
    fn a_damaged_line_inside_is_an_error() {
        assert_eq!(parse("> 0 10 get 1\n< 0 1", 0).unwrap().len(), 1);
        assert_eq!(parse("> 0 10 get\n> 1 11 get 2\n", 0), Err(1));
        assert_eq!(parse("< 0 10 absent\n", 0), Err(1));
    }
}
