//! Two runs as tables, row by row.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};

use crate::grid::grid;
use crate::{Begin, End, Line, Measurement, Spread};

/// Medians of two runs that are farther apart than this part of the larger one do not agree.
const AGREE_WITHIN: f64 = 0.15;
/// With more to do than this before it begins, a run says little.
const BUSY: f64 = 0.5;

const BEGIN: &str = "<!-- results: written by scripts/bench; what is typed here is overwritten -->";
const END: &str = "<!-- end of results -->";

/// A whole run.
#[derive(Debug)]
pub struct Run {
    begin: Begin,
    pub(crate) rows: Vec<Measurement>,
    end: End,
}

impl Run {
    /// Reads what a run printed.
    ///
    /// # Errors
    ///
    /// If a line is none of a run's, or the first or the last one is missing.
    pub fn parse(printed: &str) -> Result<Self> {
        let (mut begin, mut rows, mut end) = (None, Vec::new(), None);
        for line in printed.lines() {
            match serde_json::from_str(line).with_context(|| format!("a line {line:?}"))? {
                Line::Begin(line) => begin = Some(line),
                Line::Row(row) => rows.push(row),
                Line::End(line) => end = Some(line),
            }
        }
        Ok(Self {
            begin: begin.context("the run has no first line")?,
            rows,
            end: end.context("the run was cut short: it has no last line")?,
        })
    }
}

/// The result of runs, as Markdown: of two as rows that both have, of one of `growth` as a grid.
///
/// # Errors
///
/// If there are more runs than two; if two are not of the same program, arguments and machine, or their rows
/// differ; if one is of another topic than `growth`.
pub fn tables(runs: &[Run]) -> Result<String> {
    match runs {
        [run] => grid(run),
        [one, two] => Ok(head(runs)? + &pairs(one, two)?),
        _ => bail!("tables are made of one run or of two"),
    }
}

fn pairs(one: &Run, two: &Run) -> Result<String> {
    let (first, second) = (&one.begin, &two.begin);
    let same = first.commit == second.commit
        && first.arguments == second.arguments
        && first.rustc == second.rustc
        && first.machine == second.machine;
    ensure!(
        same,
        "the runs differ in more than their time: {first:?}, {second:?}"
    );
    let names = |run: &Run| -> Vec<String> { run.rows.iter().map(|r| r.name.clone()).collect() };
    ensure!(
        names(one) == names(two),
        "the runs have not measured the same: {:?}, {:?}",
        names(one),
        names(two)
    );
    let mut text = String::new();
    let mut topic = "";
    for (one, two) in one.rows.iter().zip(&two.rows) {
        let (its_topic, _) = one.name.split_once('/').unwrap_or((&one.name, ""));
        if its_topic != topic {
            topic = its_topic;
            write!(
                text,
                "\n**{topic}**\n\n\
                 | name | semel | reference | ratio, run 1 | ratio, run 2 | goal | met |\n\
                 |---|---|---|---|---|---|---|\n"
            )?;
        }
        text.push_str(&row(one, two)?);
    }
    Ok(text)
}

pub(crate) fn head(runs: &[Run]) -> Result<String> {
    let begin = &runs[0].begin;
    let machine = &begin.machine;
    let mut text = format!(
        "`semel-bench {}`, commit `{}`, {}, on {}, {} cores, {} GiB, Linux {}, {}.\n\n\
         | run | begun (UTC) | took | load average before, after | a synced write of 4 KiB before, after |\n\
         |---|---|---|---|---|\n",
        begin.arguments,
        begin.commit,
        begin.rustc,
        machine.processor,
        machine.cores,
        machine.memory_gib,
        machine.kernel,
        machine.disk,
    );
    for (number, Run { begin, end, .. }) in (1..).zip(runs) {
        writeln!(
            text,
            "| {number} | {} | {} min {} s | {}, {} | {}, {} ms |",
            begin.moment.date,
            end.seconds / 60,
            end.seconds % 60,
            begin.moment.load,
            end.moment.load,
            short(begin.moment.sync_ms),
            short(end.moment.sync_ms),
        )?;
    }
    if runs.iter().any(|run| run.begin.moment.load > BUSY) {
        text.push_str("\n**The machine was busy when a run began: these figures say little.**\n");
    }
    Ok(text)
}

fn row(one: &Measurement, two: &Measurement) -> Result<String> {
    let pooled = |rounds: fn(&Measurement) -> &Vec<f64>| {
        let both: Vec<f64> = rounds(one).iter().chain(rounds(two)).copied().collect();
        Spread::of(&both)
    };
    let reference = match &one.reference {
        Some(name) => format!("{name}: {}", spread(pooled(|m| &m.reference_rounds))),
        None => String::new(),
    };
    let ratio = |m: &Measurement| m.ratio.map(spread).unwrap_or_default();
    let mut text = String::new();
    writeln!(
        text,
        "| `{}` | {} {} | {reference} | {} | {} | {} | {} |",
        one.name,
        spread(pooled(|m| &m.rounds)),
        one.unit,
        ratio(one),
        ratio(two),
        one.goal.map(|goal| goal.to_string()).unwrap_or_default(),
        verdict(one, two),
    )?;
    Ok(text)
}

/// What two runs say together: of the ratio where the goal is one, or where there is none.
fn verdict(one: &Measurement, two: &Measurement) -> &'static str {
    let judged = |m: &Measurement| match (m.ratio, m.goal) {
        (Some(ratio), None) => ratio.median,
        (Some(ratio), Some(goal)) if goal.is_of_the_ratio() => ratio.median,
        _ => m.value.median,
    };
    let (a, b) = (judged(one), judged(two));
    let agree = (a - b).abs() <= AGREE_WITHIN * a.abs().max(b.abs());
    let met = |m: &Measurement| {
        let ratio = m.ratio.map(|ratio| ratio.median);
        m.goal.map(|goal| goal.met(m.value.median, ratio))
    };
    match (met(one), met(two)) {
        _ if !agree => "runs disagree",
        (one, two) if one != two => "runs disagree",
        (Some(true), _) => "yes",
        (Some(false), _) => "no",
        (None, _) => "",
    }
}

/// The median, and where the rounds differ the lowest and the highest.
pub(crate) fn spread(Spread { min, median, max }: Spread) -> String {
    let [min, median, max] = [min, median, max].map(short);
    if min == max {
        return median;
    }
    format!("{median} ({min} to {max})")
}

/// Three digits, as far as they say something.
pub(crate) fn short(number: f64) -> String {
    let size = number.abs();
    if size >= 1e6 {
        return format!("{} M", short(number / 1e6));
    }
    if size >= 1e4 {
        return format!("{} k", short(number / 1e3));
    }
    let decimals = match size {
        100.0.. => 0,
        10.0.. => 1,
        0.1.. => 2,
        0.01.. => 3,
        _ => 4,
    };
    let text = format!("{number:.decimals$}");
    match text.trim_start_matches('-').trim_matches(['0', '.']) {
        "" => "0".to_owned(),
        _ => text,
    }
}

/// The document with `tables` in the place of those that it has.
///
/// # Errors
///
/// If it has no place for them.
pub fn into_document(document: &str, tables: &str) -> Result<String> {
    let Some((before, rest)) = document.split_once(BEGIN) else {
        bail!("the document has no line {BEGIN:?}");
    };
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("the document has no line {END:?}"))?;
    Ok(format!(
        "{before}{BEGIN}\n{}\n{END}{after}",
        tables.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Goal, Machine, Moment};

    const ROUNDS: [f64; 3] = [1_330_000.0, 1_200_000.0, 1_400_000.0];
    const REFERENCE: [f64; 3] = [2_660_000.0, 2_000_000.0, 2_800_000.0];

    fn moment(load: f64) -> Moment {
        Moment {
            date: "2026-11-22 12:00".into(),
            load,
            sync_ms: 0.118,
        }
    }

    fn run(rows: Vec<Measurement>) -> Run {
        let machine = Machine {
            processor: "a processor".into(),
            cores: 2,
            memory_gib: 23,
            kernel: "6.18".into(),
            disk: "ext4 on /dev/vda".into(),
        };
        Run {
            begin: Begin {
                arguments: "all".into(),
                commit: "6e45d66".into(),
                rustc: "rustc 1.95.0".into(),
                machine,
                moment: moment(0.1),
            },
            rows,
            end: End {
                seconds: 1100,
                moment: moment(2.0),
            },
        }
    }

    fn rate(factor: f64) -> Measurement {
        let rounds = ROUNDS.iter().map(|round| round * factor).collect();
        Measurement::new("memory/pair", "operations/s", rounds)
    }

    fn judged(rows: &[Measurement; 2]) -> &'static str {
        verdict(&rows[0], &rows[1])
    }

    #[test]
    fn rows_have_lowest_median_and_highest_and_ratios_of_paired_rounds() {
        let row = || {
            let row = rate(1.0).against("a map", &REFERENCE);
            row.goal(Goal::RatioAtLeast(0.8))
        };
        let bytes = || Measurement::new("embedded/bytes", "bytes", vec![547.0]);
        let runs = [run(vec![row(), bytes()]), run(vec![row(), bytes()])];
        assert_eq!(
            tables(&runs).unwrap(),
            "\
`semel-bench all`, commit `6e45d66`, rustc 1.95.0, on a processor, 2 cores, 23 GiB, Linux 6.18, ext4 on /dev/vda.

| run | begun (UTC) | took | load average before, after | a synced write of 4 KiB before, after |
|---|---|---|---|---|
| 1 | 2026-11-22 12:00 | 18 min 20 s | 0.1, 2 | 0.12, 0.12 ms |
| 2 | 2026-11-22 12:00 | 18 min 20 s | 0.1, 2 | 0.12, 0.12 ms |

**memory**

| name | semel | reference | ratio, run 1 | ratio, run 2 | goal | met |
|---|---|---|---|---|---|---|
| `memory/pair` | 1.33 M (1.20 M to 1.40 M) operations/s | a map: 2.66 M (2.00 M to 2.80 M) | 0.50 (0.50 to 0.60) | 0.50 (0.50 to 0.60) | ratio ≥ 0.8 | no |

**embedded**

| name | semel | reference | ratio, run 1 | ratio, run 2 | goal | met |
|---|---|---|---|---|---|---|
| `embedded/bytes` | 547 bytes |  |  |  |  |  |
"
        );
    }

    #[test]
    fn a_run_is_read_as_it_was_printed() {
        let row = rate(1.0)
            .against("a map", &REFERENCE)
            .goal(Goal::ValueBelow(2.0));
        let run = run(vec![row.clone()]);
        let lines = [
            Line::Begin(run.begin.clone()),
            Line::Row(row),
            Line::End(run.end.clone()),
        ];
        let printed = lines.map(|line| serde_json::to_string(&line).unwrap());
        let read = Run::parse(&printed.join("\n")).unwrap();
        assert_eq!(format!("{read:?}"), format!("{run:?}"));

        let error = Run::parse(&printed[..2].join("\n")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the run was cut short: it has no last line"
        );
    }

    #[test]
    fn runs_that_differ_are_not_called_met() {
        // Medians of 0.95 and 0.99 beside 0.97: each within 15 % of the other, on both sides.
        let unkeyed = |ratio: f64| {
            let row = rate(ratio).against("no layer", &ROUNDS);
            row.goal(Goal::RatioAtLeast(0.97))
        };
        assert_eq!(judged(&[unkeyed(0.99), unkeyed(0.98)]), "yes");
        assert_eq!(judged(&[unkeyed(0.95), unkeyed(0.96)]), "no");
        assert_eq!(judged(&[unkeyed(0.99), unkeyed(0.95)]), "runs disagree");
        // Both above the goal, and far from each other.
        assert_eq!(judged(&[unkeyed(1.0), unkeyed(2.0)]), "runs disagree");

        assert_eq!(judged(&[rate(1.0), rate(0.86)]), "");
        assert_eq!(judged(&[rate(1.0), rate(0.84)]), "runs disagree");
        let none = || Measurement::new("allocations", "", vec![0.0]);
        assert_eq!(judged(&[none(), none()]), "");
    }

    #[test]
    fn a_goal_of_the_value_is_judged_by_the_value() {
        // The reference swings, and the goal is not about it.
        let steps = |reference: f64| {
            let row = rate(1.0).against("bare", &[reference; 3]);
            row.goal(Goal::ValueAtLeast(20.0))
        };
        assert_eq!(judged(&[steps(1.0), steps(100.0)]), "yes");
    }

    #[test]
    fn runs_of_different_things_make_no_table() {
        let mut other = run(vec![rate(1.0)]);
        other.begin.commit = "79bf08a".into();
        let error = tables(&[run(vec![rate(1.0)]), other]).unwrap_err();
        assert!(error.to_string().starts_with("the runs differ in more"));

        let error = tables(&[run(vec![rate(1.0)]), run(Vec::new())]).unwrap_err();
        assert!(error.to_string().starts_with("the runs have not measured"));
    }

    #[test]
    fn a_busy_machine_is_told() {
        let mut busy = run(vec![rate(1.0)]);
        busy.begin.moment.load = 4.3;
        let text = tables(&[run(vec![rate(1.0)]), busy]).unwrap();
        assert!(text.contains("busy when a run began"), "{text}");
        let text = tables(&[run(vec![rate(1.0)]), run(vec![rate(1.0)])]).unwrap();
        assert!(!text.contains("busy"), "{text}");
    }

    #[test]
    fn numbers_have_three_digits() {
        let written = [
            2_650_000.0,
            54_321.0,
            9_123.4,
            308.2,
            36.04,
            0.267,
            0.0421,
            -4.2,
            -0.00001,
        ];
        let expected = [
            "2.65 M", "54.3 k", "9123", "308", "36.0", "0.27", "0.042", "-4.20", "0",
        ];
        assert_eq!(written.map(short), expected);
    }

    /// What a document shows is what the command makes of the runs that are kept; as long as none
    /// are, it says so.
    #[test]
    fn documents_have_the_tables_of_the_runs_that_are_kept() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let check = |document: &str, runs: &[&str]| {
            let text = std::fs::read_to_string(root.join("docs").join(document)).unwrap();
            let kept = |run: &&str| {
                let file = root.join(format!("bench/results/{run}.jsonl"));
                Some(Run::parse(&std::fs::read_to_string(file).ok()?).unwrap())
            };
            let kept: Option<Vec<Run>> = runs.iter().map(kept).collect();
            if let Some(kept) = kept {
                let expected = into_document(&text, &tables(&kept).unwrap()).unwrap();
                assert!(text == expected, "docs/{document}: run scripts/bench");
            } else {
                let (_, results) = text.split_once(BEGIN).unwrap();
                let none = "**Not yet run with this command.**";
                assert!(results.trim_start().starts_with(none), "docs/{document}");
            }
        };
        check("benchmarks.md", &["run-1", "run-2"]);
        check("growth.md", &["growth"]);
    }
}
