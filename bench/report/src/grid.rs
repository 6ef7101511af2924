//! One run of `growth` as tables: for each store one, with a column for each size, or each number of processes.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::Measurement;
use crate::tables::{Run, head, short, spread};

/// Where a measurement stands, by its name.
struct Place<'a> {
    table: &'a str,
    column: &'a str,
    row: &'a str,
}

impl<'a> Place<'a> {
    fn of(measurement: &'a Measurement) -> Result<Self> {
        let name = &measurement.name;
        let parts: Vec<&str> = name.split('/').collect();
        match parts[..] {
            ["growth", table, column, row] => Some(Self { table, column, row }),
            _ => None,
        }
        .with_context(|| format!("{name} is no measurement of `growth`"))
    }
}

/// The result of a run, as Markdown.
///
/// # Errors
///
/// If it has rows of another topic.
pub(crate) fn grid(run: &Run) -> Result<String> {
    let mut text = head(std::slice::from_ref(run))?;
    let mut rest = &run.rows[..];
    while let Some(first) = rest.first() {
        let table = Place::of(first)?.table;
        let (rows, behind) = leading(rest, |place| place.table == table)?;
        text.push_str(&of_store(table, rows)?);
        rest = behind;
    }
    Ok(text)
}

/// Those at the beginning that belong together, and the others.
fn leading(
    rows: &[Measurement],
    belongs: impl Fn(&Place<'_>) -> bool,
) -> Result<(&[Measurement], &[Measurement])> {
    let mut count = 0;
    for row in rows {
        if !belongs(&Place::of(row)?) {
            break;
        }
        count += 1;
    }
    Ok(rows.split_at(count))
}

fn of_store(table: &str, mut rest: &[Measurement]) -> Result<String> {
    let mut columns: Vec<&str> = Vec::new();
    for row in rest {
        let column = Place::of(row)?.column;
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let (names, lines) = (columns.join(" | "), "---|".repeat(columns.len()));
    let mut text =
        format!("\n**{table}**\n\n| | {names} | goal | met |\n|---|{lines}---|---|\n");
    while let Some(first) = rest.first() {
        let row = Place::of(first)?.row;
        let (cells, behind) = leading(rest, |place| place.row == row)?;
        write!(text, "| `{row}`, {} |", first.unit)?;
        for column in &columns {
            let in_it = |cell: &&Measurement| Place::of(cell).is_ok_and(|p| p.column == *column);
            if let Some(cell) = cells.iter().find(in_it) {
                write!(text, " {}", spread(cell.value))?;
                if let Some(ratio) = cell.ratio {
                    write!(text, " · {}", short(ratio.median))?;
                }
            }
            text.push_str(" |");
        }
        let goal = cells.iter().find_map(|cell| cell.goal);
        let goal = goal.map(|goal| goal.to_string()).unwrap_or_default();
        writeln!(text, " {goal} | {} |", verdict(cells)?)?;
        rest = behind;
    }
    Ok(text)
}

/// `yes`, or where a goal is missed; nothing where there is none.
fn verdict(cells: &[Measurement]) -> Result<String> {
    let (mut goals, mut missed) = (false, Vec::new());
    for cell in cells {
        let Some(goal) = cell.goal else { continue };
        goals = true;
        if !goal.met(cell.value.median, cell.ratio.map(|ratio| ratio.median)) {
            missed.push(Place::of(cell)?.column);
        }
    }
    Ok(match (goals, missed.is_empty()) {
        (false, _) => String::new(),
        (true, true) => "yes".to_owned(),
        (true, false) => format!("no: {}", missed.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Begin, End, Goal, Line, Machine, Moment};

    fn run(rows: Vec<Measurement>) -> Run {
        let moment = || Moment {
            date: "2026-11-29 08:00".into(),
            load: 0.1,
            sync_ms: 0.2,
        };
        let machine = Machine {
            processor: "a processor".into(),
            cores: 2,
            memory_gib: 23,
            kernel: "6.18".into(),
            disk: "ext4 on /dev/vda".into(),
        };
        let begin = Line::Begin(Begin {
            arguments: "growth".into(),
            commit: "6f06386".into(),
            rustc: "rustc 1.95.0".into(),
            machine,
            moment: moment(),
        });
        let end = Line::End(End {
            seconds: 1200,
            moment: moment(),
        });
        let lines = std::iter::once(begin)
            .chain(rows.into_iter().map(Line::Row))
            .chain([end]);
        let lines: Vec<_> = lines
            .map(|line| serde_json::to_string(&line).unwrap())
            .collect();
        Run::parse(&lines.join("\n")).unwrap()
    }

    fn steps(size: &str, rate: f64) -> Measurement {
        let name = format!("growth/postgres/{size}/steps");
        let row = Measurement::new(&name, "steps/s", vec![rate; 3]);
        match size {
            "10k" => row,
            _ => row
                .against("10k", &[30_000.0; 3])
                .goal(Goal::RatioAtLeast(0.8)),
        }
    }

    #[test]
    fn a_store_has_a_table_with_a_column_for_each_size() {
        let bytes = |store: &str| {
            let name = format!("growth/{store}/10k/bytes-per-record");
            Measurement::new(&name, "bytes", vec![690.0])
        };
        let rows = vec![
            steps("10k", 30_000.0),
            steps("1M", 27_000.0),
            steps("10M", 15_000.0),
            bytes("postgres"),
            bytes("redis"),
        ];
        let text = grid(&run(rows)).unwrap();
        let (_, tables) = text.split_once("\n**").unwrap();
        assert_eq!(
            tables,
            "\
postgres**

| | 10k | 1M | 10M | goal | met |
|---|---|---|---|---|---|
| `steps`, steps/s | 30.0 k | 27.0 k · 0.90 | 15.0 k · 0.50 | ratio ≥ 0.8 | no: 10M |
| `bytes-per-record`, bytes | 690 | | |  |  |

**redis**

| | 10k | goal | met |
|---|---|---|---|
| `bytes-per-record`, bytes | 690 |  |  |
"
        );
    }

    #[test]
    fn goals_that_are_met_are_said_to_be() {
        let rows = vec![steps("10k", 30_000.0), steps("1M", 24_000.0)];
        let text = grid(&run(rows)).unwrap();
        assert!(
            text.contains("24.0 k · 0.80 | ratio ≥ 0.8 | yes |"),
            "{text}"
        );
    }

    #[test]
    fn other_topics_make_no_grid() {
        let rows = vec![Measurement::new("memory/pair", "operations/s", vec![1.0])];
        let error = grid(&run(rows)).unwrap_err();
        assert!(error.to_string().contains("no measurement of `growth`"));
    }
}
