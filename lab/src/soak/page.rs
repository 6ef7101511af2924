//! A page with a plot of each series over the run, and where faults struck.

use std::fmt::Write as _;

use super::resources::{NAMES, Sample};
use super::rhythm::{BEAT, Beat, sum};
use super::{Report, Strike};
use crate::clock::Nanos;
use crate::named::Named as _;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 120.0;
/// More points than this are not seen.
const POINTS: usize = 1000;

type Line = Vec<(f64, f64)>;
/// Something of the calls in so many seconds.
type OfBeat = fn(&Beat, f64) -> f64;

pub(super) fn html(
    report: &Report,
    verdict: &str,
    beats: &[Beat],
    samples: &[Sample],
    strikes: &[Strike],
    begun: Nanos,
) -> String {
    let seconds = |at: Nanos| at.saturating_sub(begun) as f64 / 1e9;
    let faults: Vec<(f64, String)> = strikes
        .iter()
        .map(|strike| (seconds(strike.from), strike.fault.name()))
        .collect();
    let mut page = format!(
        "<!doctype html><meta charset=utf-8><title>soak: {0}</title>\
         <style>body{{font:14px sans-serif;margin:2em;max-width:1040px}}svg{{background:#f8f8f8}}\
         polyline{{fill:none;stroke:#1c5f9e}}line{{stroke:#d33;opacity:.4}}</style>\
         <h1>{0}, {1:.0} s: {2}</h1><p>Red: a fault.</p>",
        report.store,
        report.seconds,
        if report.reasons.passed() {
            "passed"
        } else {
            "failed"
        }
    );
    let together = beats.len().div_ceil(POINTS).max(2);
    let by_time = |of: OfBeat| -> Line {
        let line = beats.chunks(together).enumerate().map(|(place, beats)| {
            let length = beats.len() as f64 * BEAT as f64 / 1e9;
            let at = (place * together) as f64 * BEAT as f64 / 1e9;
            (at, of(&sum(beats), length))
        });
        line.collect()
    };
    let rates: [(&str, OfBeat); 4] = [
        ("answered a second", |beat, length| {
            beat.answered as f64 / length
        }),
        ("failed by the store, a second", |beat, length| {
            beat.failed as f64 / length
        }),
        ("p50, ms", |beat, _| beat.quantile(0.5)),
        ("p99, ms", |beat, _| beat.quantile(0.99)),
    ];
    for (name, of) in rates {
        plot(&mut page, name, &by_time(of), &faults, report.seconds);
    }
    for (place, name) in NAMES.iter().enumerate() {
        let seen = |sample: &Sample| Some((seconds(sample.at), sample.values[place]?));
        let line: Line = samples.iter().filter_map(seen).collect();
        plot(&mut page, name, &line, &faults, report.seconds);
    }
    let verdict = verdict.replace('&', "&amp;").replace('<', "&lt;");
    let _ = write!(page, "<h2>Verdict</h2><pre>{verdict}</pre>");
    page
}

fn plot(page: &mut String, name: &str, line: &Line, faults: &[(f64, String)], seconds: f64) {
    let most = line.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let x = |at: f64| at / seconds * WIDTH;
    let y = |value: f64| HEIGHT - value / most.max(1e-9) * (HEIGHT - 4.0);
    let _ = write!(
        page,
        "<h3>{name}: 0 to {most:.1}</h3><svg viewBox='0 0 {WIDTH} {HEIGHT}' width='100%'>"
    );
    for (at, fault) in faults {
        let x = x(*at);
        let _ = write!(
            page,
            "<line x1='{x:.1}' x2='{x:.1}' y1='0' y2='{HEIGHT}'><title>{fault}</title></line>"
        );
    }
    page.push_str("<polyline points='");
    for (at, value) in line {
        let _ = write!(page, "{:.1},{:.1} ", x(*at), y(*value));
    }
    page.push_str("'/></svg>");
}
