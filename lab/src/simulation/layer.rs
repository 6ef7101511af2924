//! The tower layer in several processes over one store. Clients of two principals use the same keys,
//! with two contents, and ask again until they have an answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use semel::Scope;
use semel::guard::{Guard, Policy, catch_panic};
use semel::store::{OnLost, Retention};
use semel_tower::{AttemptInfo, IdempotencyLayer, Problem, ProblemCode, REPLAYED};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::Bug;
use super::fleet::{self, Fleet, PATIENCE, Runs};
use super::wire::{Server, Wire};
use super::world::{Process, World, millis};

/// Whose key: what is done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Intent {
    principal: u32,
    key: u32,
}

/// What a client got.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Answer {
        is_replay: bool,
        bytes: String,
    },
    Problem(ProblemCode),
    /// The handler's own refusal, or nothing.
    Nothing,
}

#[derive(Debug, Clone, Copy)]
struct Setup {
    on_lost: OnLost,
    lease: Duration,
    wait: Duration,
    is_calm: bool,
    faults: Duration,
}

impl Setup {
    fn of(world: &World) -> Self {
        let lease = world.pick(&[300, 1000, 3000]);
        Self {
            on_lost: world.pick(&[OnLost::Hold, OnLost::Hold, OnLost::Retry]),
            lease: Duration::from_millis(lease),
            wait: match world.one_in(2) {
                true => Duration::ZERO,
                false => world.millis(0..3 * lease),
            },
            is_calm: world.one_in(8),
            faults: world.millis(lease * 4..lease * 16),
        }
    }

    fn policy(&self) -> Policy {
        Policy::default()
            .with_lease(self.lease)
            .with_retention(Retention::PAYMENT)
            .with_on_lost(self.on_lost)
            .with_wait(self.wait)
    }
}

/// What the handlers did.
struct Shop {
    world: World,
    setup: Setup,
    calm_from: Instant,
    orders: Mutex<BTreeMap<Intent, Orders>>,
}

#[derive(Default)]
struct Orders {
    /// The content, fence and answer of each effect.
    taken: Vec<(u32, u64, String)>,
    /// Answers of handlers, in processes that must record them.
    ends: Vec<(Arc<Process>, String)>,
    /// Answers that clients got.
    told: Vec<String>,
    first_told: u32,
}

impl Shop {
    /// The handler.
    async fn handle(
        self: Arc<Self>,
        process: Arc<Process>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let world = &self.world;
        process.gate().await;
        let fence = request
            .extensions()
            .get::<AttemptInfo>()
            .map_or(0, |info| info.fence.0);
        let field = |name: &str| number(request.headers().get(name).map(|v| v.as_bytes()));
        let (principal, key) = (field(AUTHORIZATION.as_str()), field("idempotency-key"));
        let body = request.into_body().collect().await;
        let content = number(body.ok().map(|body| body.to_bytes()).as_deref());
        let intent = Intent { principal, key };
        world.saw("attempt");
        world.say(|| {
            format!(
                "attempt at {intent:?} with {content} under {fence} in {}",
                process.number
            )
        });
        let lease = millis(self.setup.lease);
        let long = || world.work(3, lease * 3, lease / 4);
        process.rest(long()).await;
        let is_calm = self.setup.is_calm || Instant::now() >= self.calm_from;
        let script = world.draw(|chance| chance.u32(..8));
        if script == 0 && !is_calm {
            return Ok(answer(StatusCode::SERVICE_UNAVAILABLE, "busy".into()));
        }
        let order = format!("order of {principal} under {key} with {content}: {fence}");
        world.saw("effect");
        world.say(|| format!("effect: {order}"));
        {
            let mut orders = self.orders.lock();
            let orders = orders.entry(intent).or_default();
            let is_second = !orders.taken.is_empty() && self.setup.on_lost == OnLost::Hold;
            if is_second || orders.taken.iter().any(|(_, before, _)| *before == fence) {
                world.wrong(format!(
                    "two effects of {intent:?}: {:?} and {order}",
                    orders.taken
                ));
            }
            orders.taken.push((content, fence, order.clone()));
        }
        process.rest(long()).await;
        if script == 1 && !is_calm {
            std::panic::resume_unwind(Box::new("planted"));
        }
        let mut orders = self.orders.lock();
        let ends = &mut orders.entry(intent).or_default().ends;
        ends.push((Arc::clone(&process), order.clone()));
        drop(orders);
        Ok(answer(StatusCode::CREATED, order))
    }
}

/// The number at the end of a text.
fn number(text: Option<&[u8]>) -> u32 {
    let text = text.unwrap_or_default();
    let last = text.iter().rev().find(|byte| byte.is_ascii_digit());
    last.map_or(u32::MAX, |digit| u32::from(digit - b'0'))
}

fn answer(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}

type Layer = IdempotencyLayer<Wire>;

impl Runs for Layer {
    fn guard(&self) -> &Guard<Wire> {
        Self::guard(self)
    }
}

type Node = fleet::Node<Layer>;

struct Simulation {
    world: World,
    setup: Setup,
    shop: Arc<Shop>,
    fleet: Fleet<Layer>,
    calm_from: Instant,
}

/// Runs a seed.
pub(super) async fn run(world: &World, bug: Option<Bug>) {
    let setup = Setup::of(world);
    world.say(|| format!("{setup:?}"));
    let calm_from = Instant::now() + setup.faults;
    let server = Server::of(world, setup.is_calm, setup.lease, setup.faults, bug);
    let shop = Arc::new(Shop {
        world: world.clone(),
        setup,
        calm_from,
        orders: Mutex::default(),
    });
    let fleet = Fleet::new(world, setup.lease, calm_from, move |process| {
        let layer = IdempotencyLayer::new(Wire::new(&server, process)).with_policy(setup.policy());
        match bug {
            Some(Bug::NoPrincipal) => layer.with_principal_by(|_| Some(Scope::anonymous())),
            _ => layer.with_principal_required(true),
        }
    });
    let simulation = Arc::new(Simulation {
        world: world.clone(),
        setup,
        shop,
        fleet,
        calm_from,
    });
    simulation.run().await;
}

impl Simulation {
    async fn run(self: Arc<Self>) {
        let world = &self.world;
        self.fleet.start();
        self.fleet.start();
        let clients = world.draw(|chance| chance.u32(3..=8));
        let clients = (0..clients).map(|_| {
            let intent = Intent {
                principal: world.draw(|chance| chance.u32(1..=2)),
                key: world.draw(|chance| chance.u32(1..=2)),
            };
            let content = u32::from(world.one_in(6));
            tokio::spawn(Arc::clone(&self).client(intent, content))
        });
        let (clients, in_trouble) = (clients.collect(), !self.setup.is_calm);
        self.fleet
            .until_calm(self.calm_from, in_trouble, clients)
            .await;
        self.settle().await;
    }

    async fn client(self: Arc<Self>, intent: Intent, content: u32) {
        let (world, lease) = (&self.world, millis(self.setup.lease));
        sleep(world.millis(0..lease * 4)).await;
        for _ in 0..world.draw(|chance| chance.u32(1..=6)) {
            let Some(node) = self.fleet.any() else {
                sleep(self.setup.lease).await;
                continue;
            };
            let asked = self.ask(&node, intent, content);
            let told = self.fleet.told(&node, !self.setup.is_calm, asked).await;
            let told = told.unwrap_or(Told::Nothing);
            world.say(|| {
                format!(
                    "client of {intent:?} with {content} at {}: {told:?}",
                    node.process.number
                )
            });
            match told {
                Told::Answer { .. } if world.one_in(2) => return,
                Told::Problem(ProblemCode::OutcomeUnknown) if self.setup.is_calm => {
                    world.wrong("an outcome is unknown, and nothing went wrong");
                }
                _ => sleep(world.millis(0..lease)).await,
            }
        }
    }

    /// Sends a request, and checks the answer.
    async fn ask(&self, node: &Node, intent: Intent, content: u32) -> Told {
        let (shop, process) = (Arc::clone(&self.shop), Arc::clone(&node.process));
        let handler =
            service_fn(move |request| Arc::clone(&shop).handle(Arc::clone(&process), request));
        let Intent { principal, key } = intent;
        let request = Request::post("/orders")
            .header(AUTHORIZATION, format!("Bearer principal-{principal}"))
            .header("Idempotency-Key", format!("a-key-of-some-length-{key}"))
            .body(Full::from(format!("content {content}")));
        let Ok(request) = request else {
            return Told::Nothing;
        };
        let Ok(Ok(response)) = catch_panic(node.runs.layer(handler).oneshot(request)).await else {
            return Told::Nothing;
        };
        if let Some(problem) = response.extensions().get::<Problem>() {
            return Told::Problem(problem.code);
        }
        let (head, body) = response.into_parts();
        if head.status != StatusCode::CREATED {
            return Told::Nothing;
        }
        let Ok(body) = body.collect().await;
        let bytes = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        let is_replay = head.headers.contains_key(REPLAYED);
        self.world
            .saw(if is_replay { "replay" } else { "first answer" });
        let ours = format!("order of {principal} under {key} with {content}: ");
        if !bytes.starts_with(&ours) {
            self.world
                .wrong(format!("{intent:?} with {content} was answered {bytes:?}"));
        }
        let mut orders = self.shop.orders.lock();
        let orders = orders.entry(intent).or_default();
        orders.first_told += u32::from(!is_replay);
        if !orders.told.contains(&bytes) {
            orders.told.push(bytes.clone());
        }
        Told::Answer { is_replay, bytes }
    }

    /// Every intent is asked for until it has an end, in a process without faults.
    async fn settle(&self) {
        let node = &self.fleet.start();
        let known: Vec<_> = {
            let orders = self.shop.orders.lock();
            let content = |orders: &Orders| orders.taken.last().map_or(0, |(content, ..)| *content);
            orders
                .iter()
                .map(|(intent, orders)| (*intent, content(orders)))
                .collect()
        };
        self.fleet.settled().await;
        for (intent, content) in known {
            let ending = async {
                let mut content = content;
                loop {
                    let told = self.ask(node, intent, content).await;
                    if told == Told::Problem(ProblemCode::Mismatch) {
                        // After a release the key was free for the other one.
                        content = 1 - content;
                    }
                    self.world
                        .say(|| format!("{intent:?} in the end: {told:?}"));
                    let is_held = told == Told::Problem(ProblemCode::OutcomeUnknown)
                        && self.setup.on_lost == OnLost::Hold;
                    if is_held || matches!(told, Told::Answer { .. }) {
                        return told;
                    }
                    sleep(self.setup.lease / 2).await;
                }
            };
            match timeout(PATIENCE, ending).await {
                Ok(told) => self.judge(intent, &told),
                Err(_) => self.world.wrong(format!(
                    "{intent:?} has no end five minutes after the last fault"
                )),
            }
        }
        self.fleet.end();
    }

    fn judge(&self, intent: Intent, last: &Told) {
        let wrong = |what: String| self.world.wrong(format!("{intent:?}: {what}"));
        let orders = std::mem::take(self.shop.orders.lock().entry(intent).or_default());
        let last = match last {
            Told::Answer { bytes, .. } => Some(bytes),
            _ => None,
        };
        if orders.told.len() > 1 {
            wrong(format!("different answers: {:?}", orders.told));
        }
        if let Some(told) = orders.told.first().filter(|told| last != Some(*told)) {
            wrong(format!("answered {told:?}, and in the end {last:?}"));
        }
        if orders.first_told > 1 {
            wrong(format!(
                "{} answers are not marked as replays",
                orders.first_told
            ));
        }
        if self.setup.is_calm && orders.taken.len() != 1 {
            wrong(format!(
                "{} effects, and nothing went wrong",
                orders.taken.len()
            ));
        }
        for (process, end) in &orders.ends {
            let must_land = self.setup.on_lost == OnLost::Hold && !process.is_dead();
            if must_land && last != Some(end) {
                wrong(format!(
                    "the handler answered {end:?}, and in the end it is {last:?} (R14)"
                ));
            }
        }
        if last.is_some_and(|last| !orders.taken.iter().any(|(.., order)| order == last)) {
            wrong(format!("answered {last:?} without an effect"));
        }
    }
}
