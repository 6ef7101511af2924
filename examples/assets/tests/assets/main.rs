//! The consumer as a process: storms of deliveries, kills, and what is no event.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod fleet;

use std::time::{Duration, Instant};

use semel_testkit::servers::{Nats, Server as _};

use crate::fleet::{PATIENCE, Yard, below, events, publish, shuffle};

/// What the events come to, each delivered once and in order.
fn once(events: &[String]) -> String {
    let yard = Yard::new();
    let file = yard.file("events", events);
    let mut consumer = yard.consume(file.to_str().unwrap());
    assert!(consumer.ended().success());
    yard.show()
}

#[test]
fn a_storm_of_deliveries_with_kills_comes_to_the_same() {
    let mut all = events(12, 12);
    all.push(r#"{"id":"bad-1","asset":"truck-1","number":99,"type":"exploded"}"#.into());
    all.push("no event at all".into());
    let expected = once(&all);
    assert_eq!(
        expected.matches(" after 12 events: ").count(),
        12,
        "{expected}"
    );
    assert_eq!(
        expected.matches("set aside (Failed)").count(),
        2,
        "{expected}"
    );
    assert!(expected.contains("refused: "), "{expected}");

    let mut storm: Vec<_> = all
        .iter()
        .flat_map(|event| vec![event.clone(); 3 + below(8)])
        .collect();
    shuffle(&mut storm);
    let yard = Yard::new();
    let share = storm.len().div_ceil(3);
    let files: Vec<_> = storm
        .chunks(share)
        .enumerate()
        .map(|(at, lines)| yard.file(&format!("storm-{at}"), lines))
        .collect();
    let start = |at: usize| yard.consume(files[at].to_str().unwrap());
    let mut consumers = [start(0), start(1), start(2)];
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(50 + below(150) as u64));
        let at = below(3);
        // Killed where it stands, and from the beginning again.
        consumers[at] = start(at);
    }
    for consumer in &mut consumers {
        assert!(consumer.ended().success());
    }
    assert_eq!(yard.show(), expected);
}

#[test]
fn what_is_early_waits_and_what_cannot_be_is_told() {
    let line = |id: &str, number: u64, what: &str| {
        format!(r#"{{"id":"{id}","asset":"tank-7","number":{number},"type":{what}}}"#)
    };
    let yard = Yard::new();
    let part = yard.file(
        "part",
        &[
            line("c", 3, r#""loaded","amount":80"#),
            line("b", 2, r#""loaded","amount":70"#),
        ],
    );
    assert!(yard.consume(part.to_str().unwrap()).ended().success());
    assert_eq!(
        yard.show(),
        "early: tank-7, event 2\nearly: tank-7, event 3\n"
    );
    let rest = yard.file(
        "rest",
        &[
            line("a", 1, r#""commissioned","place":"Oslo","capacity":100"#),
            line("d", 4, r#""moved","to":"Bergen""#),
        ],
    );
    assert!(yard.consume(rest.to_str().unwrap()).ended().success());
    let other = yard.file("other", &[line("another", 2, r#""retired""#)]);
    assert!(yard.consume(other.to_str().unwrap()).ended().success());
    let expected = [
        r#"tank-7 after 4 events: {"state":"commissioned","place":"Bergen","capacity":100,"load":70}"#,
        "refused: tank-7, event 3: there is room for 30",
        r#"set aside (Failed): {"id":"another","asset":"tank-7","number":2,"type":"retired"}"#,
    ];
    assert_eq!(yard.show().lines().collect::<Vec<_>>(), expected);
}

/// What comes after an event that was set aside waits, and says for what, until another event takes its
/// place: a corrected one, or one that says to go on without it.
#[test]
fn what_is_set_aside_holds_up_its_asset_until_its_place_is_taken() {
    let line = |id: &str, asset: &str, number: u64, what: &str| {
        format!(r#"{{"id":"{id}","asset":"{asset}","number":{number},"type":{what}}}"#)
    };
    let yard = Yard::new();
    let mut lines = Vec::new();
    for (asset, first) in [("tank-7", "a"), ("tank-8", "b")] {
        let place = r#""commissioned","place":"Oslo","capacity":100"#;
        let ids = [1, 2, 3, 4].map(|number| format!("{first}{number}"));
        lines.extend([
            line(&ids[0], asset, 1, place),
            line(&ids[1], asset, 2, r#""exploded""#),
            line(&ids[2], asset, 3, r#""loaded","amount":70"#),
            line(&ids[3], asset, 4, r#""moved","to":"Bergen""#),
        ]);
    }
    let file = yard.file("events", &lines);
    assert!(yard.consume(file.to_str().unwrap()).ended().success());
    let shown = yard.show();
    for asset in ["tank-7", "tank-8"] {
        let held = format!("held up: {asset}, 2 events wait for event 2, which was set aside");
        assert!(shown.contains(&held), "{shown}");
    }
    let instead = yard.file(
        "instead",
        &[
            line("a2-corrected", "tank-7", 2, r#""loaded","amount":20"#),
            line("b2-skipped", "tank-8", 2, r#""skipped""#),
        ],
    );
    for _ in 0..2 {
        assert!(yard.consume(instead.to_str().unwrap()).ended().success());
    }
    let shown = yard.show();
    for asset in ["tank-7 after 4", "tank-8 after 4"] {
        assert!(shown.contains(asset), "{shown}");
    }
    assert!(shown.contains(r#""load":90"#) && shown.contains(r#""load":70"#));
    assert!(
        !shown.contains("held up") && !shown.contains("early"),
        "{shown}"
    );
    assert_eq!(shown.matches("set aside (Failed)").count(), 2, "{shown}");
}

#[test]
fn lines_without_an_id_come_to_an_end() {
    let yard = Yard::new();
    let lines = [r#"{"id":""}"#, "", "  ", "no event"].map(str::to_owned);
    let file = yard.file("events", &lines);
    assert!(yard.consume(file.to_str().unwrap()).ended().success());
    assert_eq!(
        yard.show().matches("set aside").count(),
        2,
        "{}",
        yard.show()
    );
}

#[test]
fn a_stream_with_kills_comes_to_the_same() {
    let server = Nats::start().unwrap();
    let stream = format!("nats://{}/assets", server.address());
    let mut all = events(5, 10);
    let expected = once(&all);
    shuffle(&mut all);
    let yard = Yard::new();
    let file = yard.file("events", &all);
    let mut consumers = [yard.consume(&stream), yard.consume(&stream)];
    publish(&file, &stream);
    for at in [0, 1, 0] {
        std::thread::sleep(Duration::from_millis(50 + below(100) as u64));
        consumers[at] = yard.consume(&stream);
    }
    let deadline = Instant::now() + PATIENCE;
    while yard.show() != expected {
        assert!(Instant::now() < deadline, "{}\n{expected}", yard.show());
        std::thread::sleep(Duration::from_millis(100));
    }
    for consumer in &mut consumers {
        consumer.stop();
        assert!(consumer.ended().success());
    }
}
