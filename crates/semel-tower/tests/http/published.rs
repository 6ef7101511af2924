//! The published conventions: the matrix of section I, through the layer.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use semel::Store;
use semel::store::Retention;
use semel_tower::{Dialect, IdempotencyLayer, Preset, ProblemCode};
use tower::ServiceExt as _;

use crate::conventions::{
    Afterwards, Carrier, Got, Mark, ROWS, Row, Sent, System, Then, Upstream, check, http_date,
};
use crate::support::{Memory, clocked};

pub(crate) struct Layered {
    pub(crate) router: Router,
    upstream: Upstream,
}

impl Layered {
    pub(crate) fn new<S: Store>(layer: IdempotencyLayer<S>) -> Self {
        let upstream = Upstream::new();
        Self {
            router: upstream.router().layer(layer),
            upstream,
        }
    }
}

impl System for Layered {
    async fn send(&self, sent: Sent) -> Got {
        let mut request = Request::builder().method(sent.method).uri(&sent.path);
        for (name, value) in &sent.fields {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(sent.body)).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        Got {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    fn upstream(&self) -> &Upstream {
        &self.upstream
    }
}

fn preset(row: &Row) -> Preset {
    row.preset.parse().unwrap()
}

#[tokio::test]
async fn every_preset_does_what_its_row_says() {
    for row in &ROWS {
        let layer = IdempotencyLayer::preset(preset(row), Memory::default());
        let faults = check(&Layered::new(layer), row).await;
        assert!(faults.0.is_empty(), "{}: {:#?}", row.preset, faults.0);
    }
}

/// The rows tell the presets apart: none passes for another, and none is what the layer does anyway but
/// the first.
#[tokio::test(start_paused = true)]
async fn no_preset_passes_for_another() {
    for (row, other) in ROWS
        .iter()
        .flat_map(|row| ROWS.iter().map(move |other| (row, other)))
    {
        let layer = IdempotencyLayer::preset(preset(other), Memory::default());
        let faults = check(&Layered::new(layer), row).await;
        let is_own = row.preset == other.preset;
        assert_eq!(
            faults.0.is_empty(),
            is_own,
            "{} as {}",
            other.preset,
            row.preset
        );
    }
    for row in &ROWS {
        let layer = IdempotencyLayer::new(Memory::default());
        let faults = check(&Layered::new(layer), row).await;
        assert_eq!(faults.0.is_empty(), row.preset == "ietf", "{}", row.preset);
    }
}

/// Row 70: by the store's clock, which is not the tests'.
#[tokio::test]
async fn row_70_after_the_time_it_is_as_the_row_says() {
    for row in &ROWS {
        let (store, clock) = clocked();
        let system = Layered::new(IdempotencyLayer::preset(preset(row), store));
        let send = || system.send(row.post("/orders", 1, 1));
        let first = send().await;
        clock.advance(Duration::from_secs(row.replayed_for) - Duration::from_micros(1));
        assert!(row.is_replay(&send().await, &first), "{}", row.preset);
        // By a request that says itself how old it is, answers are known for as long as it may be sent
        // by a clock that is 5 min ahead.
        let ahead = match row.preset {
            "oasis" => Duration::from_mins(5),
            _ => Duration::ZERO,
        };
        clock.advance(ahead);
        if row.preset == "oasis" {
            assert!(row.is_replay(&send().await, &first), "{}", row.preset);
        }
        clock.advance(Duration::from_micros(1));
        let late = send().await;
        match row.then {
            Afterwards::New => assert_eq!(late.json()["id"], 2, "{}", row.preset),
            // Its date is refused: row 77.
            Afterwards::Refused(412, _) => {}
            Afterwards::Refused(status, code) => {
                assert_eq!(row.says(&late), (status, code.to_owned()));
            }
        }
    }
}

/// Row 73: what is declared is what holds, and what is not allowed fails at start.
#[test]
fn row_73_retention_is_declared_and_bounded() {
    for row in &ROWS {
        let preset = preset(row);
        let layer = |seconds| {
            let layer = IdempotencyLayer::preset(preset, Memory::default());
            let retention = Retention {
                replay: Duration::from_secs(seconds),
                ..layer.guard().policy().retention()
            };
            let policy = layer.guard().policy().with_retention(retention);
            layer.with_policy(policy)
        };
        let default = IdempotencyLayer::preset(preset, Memory::default());
        let retention = default.guard().policy().retention();
        assert_eq!(retention.replay.as_secs(), row.replayed_for);
        drop(default.checked().unwrap());
        let (least, most) = row.bounds;
        drop(layer(least).checked().unwrap());
        if let Some(less) = least.checked_sub(1) {
            let error = layer(less).checked().unwrap_err().to_string();
            assert!(error.contains(&format!("{least} s at least")), "{error}");
            assert!(error.contains(row.preset), "{error}");
            layer(less).declaration().unwrap_err();
        }
        if let Some(most) = most {
            drop(layer(most).checked().unwrap());
            layer(most + 1).checked().unwrap_err();
        }
        let declared = layer(5400).declaration();
        match row.preset {
            "adcp" => assert_eq!(
                declared.unwrap().unwrap(),
                serde_json::json!({"supported": true, "replay_ttl_seconds": 5400})
            ),
            "iceberg" => assert_eq!(
                declared.unwrap().unwrap(),
                serde_json::json!({"idempotency-key-lifetime": "PT1H30M"})
            ),
            _ => assert!(!matches!(declared, Ok(Some(_)))),
        }
    }
}

/// What is declared holds for every answer, whatever a handler says of its own.
#[tokio::test]
async fn row_73_no_answer_is_kept_for_less_than_declared() {
    use crate::support::{App, Call};
    use axum::response::IntoResponse as _;
    let (store, clock) = clocked();
    let layer = IdempotencyLayer::preset(Preset::Iceberg, store);
    let app = App::answering(layer, |n| {
        let short = Retention::new(Duration::from_secs(60));
        (axum::Extension(short), format!("answer {n}")).into_response()
    });
    let call = || Call::post("/t").key("0192f5a0-7c1e-7abc-8def-0123456789ab");
    let first = app.send(call()).await;
    clock.advance(Duration::from_hours(24) - Duration::from_micros(1));
    assert_eq!(app.send(call()).await.body, first.body);
    clock.advance(Duration::from_micros(1));
    assert_ne!(app.send(call()).await.body, first.body);
}

/// Row 77: the layer's own clock decides whether a date is in time, 5 min and a day after it.
#[tokio::test(start_paused = true)]
async fn row_77_a_request_is_taken_for_as_long_as_its_answer_is_known() {
    let row = ROWS.iter().find(|row| row.preset == "oasis").unwrap();
    let system = Layered::new(IdempotencyLayer::preset(Preset::Oasis, Memory::default()));
    let now = http_date(Duration::ZERO);
    let sent = row
        .post("/orders", 1, 1)
        .field("repeatability-first-sent", &now);
    let first = system.send(sent.clone()).await;
    tokio::time::advance(Duration::from_secs(row.replayed_for - 2)).await;
    assert!(row.is_replay(&system.send(sent.clone()).await, &first));
    tokio::time::advance(Duration::from_secs(4)).await;
    let late = system.send(sent).await;
    assert_eq!(row.says(&late), (412, "OutsideWindow".to_owned()));
    assert_eq!(late.field("repeatability-result"), Some("rejected"));
}

#[tokio::test]
async fn every_setting_can_be_changed_afterwards() {
    let ietf = &ROWS[0];
    for row in &ROWS {
        let layer = IdempotencyLayer::preset(preset(row), Memory::default())
            .with_key_header("idempotency-key")
            .with_syntax(semel_tower::Syntax::Lenient)
            .with_key_rule(semel_tower::KeyRule::GENERAL)
            .with_scope_target(false)
            .with_methods([http::Method::POST])
            .with_dialect(Dialect::Problem)
            .with_replay_header("idempotency-replayed")
            .with_classifier(semel_tower::Disposition::of)
            .with_fingerprint_by(|parts, body| {
                let form = semel_tower::BodyForm::Json;
                semel_tower::fingerprint::of_request(parts, body, form, [])
            })
            .with_policy(semel_tower::Policy::default());
        // A key of oasis is sent with its date, and answers to AdCP's payloads are envelopes in any dialect.
        if matches!(row.preset, "oasis" | "adcp") {
            continue;
        }
        let faults = check(&Layered::new(layer), ietf).await;
        assert!(faults.0.is_empty(), "{}: {:#?}", row.preset, faults.0);
    }
}

#[test]
fn presets_are_named_as_in_settings() {
    let names: Vec<_> = Preset::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(names, ROWS.map(|row| row.preset.to_owned()));
    for preset in Preset::ALL {
        assert_eq!(preset.as_str().parse(), Ok(preset));
    }
    let error = "stripe".parse::<Preset>().unwrap_err().to_string();
    assert!(error.contains("stripe-v1, stripe-v2"), "{error}");
}

/// Row 66: no two codes of a convention are alike where clients have to tell them apart.
#[test]
fn what_clients_act_upon_has_a_code_of_its_own() {
    for dialect in Preset::ALL.map(|preset| match preset {
        Preset::StripeV1 => Dialect::Stripe,
        Preset::Adcp => Dialect::Adcp,
        Preset::Acp => Dialect::Acp,
        Preset::Oasis => Dialect::Odata,
        _ => Dialect::Problem,
    }) {
        let told_apart = [
            ProblemCode::InFlight,
            ProblemCode::Mismatch,
            ProblemCode::Expired,
            ProblemCode::OutcomeUnknown,
            ProblemCode::StoreUnavailable,
        ];
        let codes: std::collections::HashSet<_> =
            told_apart.iter().map(|code| dialect.code(*code)).collect();
        assert_eq!(codes.len(), told_apart.len(), "{dialect:?}");
    }
}

/// The matrix for people is the one that is checked.
#[test]
fn the_document_is_the_matrix() {
    let document = include_str!("../../../../docs/presets.md");
    let hours = |seconds: u64| format!("{} h", seconds / 3600);
    let says = |(status, code): (u16, &str)| format!("{status} `{code}`");
    let becomes = |then: Then| match then {
        Then::Runs => "runs again",
        Then::Replay => "replayed",
        Then::Mismatch => "mismatch",
    };
    for row in &ROWS {
        let key = match row.carrier {
            Carrier::Bare(name) => format!("field `{name}`, quoted or bare"),
            Carrier::Quoted(name) => format!("field `{name}`, quoted"),
            Carrier::Member(name) => format!("member `{name}`"),
        };
        let mark = match row.mark {
            Mark::None => "none".to_owned(),
            Mark::Field("repeatability-result") => "`repeatability-result: accepted`".to_owned(),
            Mark::Field(name) => format!("`{name}: true`"),
            Mark::Envelope => "`replayed: true` in the body".to_owned(),
        };
        let then = match row.then {
            Afterwards::New => "new".to_owned(),
            Afterwards::Refused(status, code) => says((status, code)),
        };
        let bounds = match row.bounds {
            (0, None) => "any time".to_owned(),
            (least, None) if least < 3600 => format!("{} min or more", least / 60),
            (least, None) => format!("{} or more", hours(least)),
            (least, Some(most)) => format!("{} to {}", hours(least), hours(most)),
        };
        let first = [
            format!("`{}`", row.preset),
            key,
            row.missing.map_or("runs".to_owned(), says),
            says(row.invalid),
            mark,
            format!("{}, then {then}", hours(row.replayed_for)),
            bounds,
        ];
        let fields: Vec<_> = row.scope.iter().map(|name| format!("`{name}`")).collect();
        let scope = match (row.preset, row.other_route) {
            ("adcp", _) => "account and session, in the body".to_owned(),
            (_, Then::Runs) => "method and path".to_owned(),
            _ if fields.is_empty() => "–".to_owned(),
            _ => fields.join(", "),
        };
        let second = [
            format!("`{}`", row.preset),
            says(row.mismatch),
            says(row.in_flight),
            becomes(row.other_route).replace(" again", ""),
            becomes(row.after_500).to_owned(),
            becomes(row.after_422).to_owned(),
            scope,
        ];
        for cells in [first, second] {
            let line = format!("| {} |", cells.join(" | "));
            assert!(
                document.contains(&line),
                "docs/presets.md has no line\n{line}"
            );
        }
    }
}

/// Row 80: a limit is the caller's, also where each path has keys of its own.
#[tokio::test]
async fn row_80_limits_count_for_all_paths_of_a_caller() {
    use semel_tower::{Rate, ScopeLimits};
    let limits = ScopeLimits::new().with_new_keys(Rate::new(1, Duration::from_hours(1)));
    for (preset, code) in [("acp", "limit"), ("iceberg", "SlowDownException")] {
        let row = ROWS.iter().find(|row| row.preset == preset).unwrap();
        let layer = IdempotencyLayer::preset(preset.parse().unwrap(), Memory::default());
        let system = Layered::new(layer.with_scope_limits(limits));
        assert_eq!(system.send(row.post("/orders", 1, 1)).await.status, 201);
        let second = system.send(row.post("/refunds", 2, 1)).await;
        assert_eq!(row.says(&second), (429, code.to_owned()));
    }
}

/// Another host is another service, also where a path has keys of its own.
#[tokio::test]
async fn no_convention_answers_for_another_host() {
    for row in &ROWS {
        let preset = row.preset.parse().unwrap();
        let system = Layered::new(IdempotencyLayer::preset(preset, Memory::default()));
        let at = async |host: &str| {
            let mut sent = row.post("/orders", 1, 1);
            sent.fields.push(("host".into(), host.into()));
            system.send(sent).await.status
        };
        let answers = [at("a.example").await, at("b.example").await];
        assert_eq!(answers[0], 201, "{}", row.preset);
        assert_ne!(answers[1], 201, "{}", row.preset);
    }
}
