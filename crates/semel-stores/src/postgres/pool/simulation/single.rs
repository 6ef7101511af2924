//! The pool before a server that answers when the test says so, one message after the other.

use std::sync::atomic::AtomicUsize;

use tokio::task::JoinHandle;

use super::*;

/// What the pool sent, and where the answer goes. Dropped unanswered, its connection has broken.
struct Message {
    link: usize,
    what: Told,
    answer: oneshot::Sender<Result<Vec<SimulatedRow>, Failed>>,
}

#[derive(Debug, PartialEq)]
enum Told {
    Begin(String),
    /// The kind of a statement, and the numbers of the steps in it.
    Run(Kind, Vec<u64>),
    Commit,
}

fn run(kind: Kind, numbers: impl Into<Vec<u64>>) -> Told {
    Told::Run(kind, numbers.into())
}

impl Message {
    /// Answers each step of a statement with a row of its own, the last one first.
    fn done(self) {
        let rows = match &self.what {
            Told::Run(_, numbers) => numbers.iter().rev().map(|number| row(*number)).collect(),
            _ => Vec::new(),
        };
        self.answer(Ok(rows));
    }

    fn answer(self, answer: Result<Vec<SimulatedRow>, Failed>) {
        assert!(self.answer.send(answer).is_ok(), "nobody waits for it");
    }
}

fn row(number: u64) -> SimulatedRow {
    let digest = digest(u8::try_from(number).expect("a small number"));
    SimulatedRow {
        digest,
        number,
        wrote: true,
    }
}

fn rolled_back() -> Failed {
    Failed::RolledBack(StoreError::new(StoreErrorKind::NotApplied, "a deadlock"))
}

/// The client's ends of the connections.
struct Wires {
    messages: mpsc::UnboundedSender<Message>,
    /// How many were made, and which were ended.
    made: AtomicUsize,
    ended: Arc<Mutex<Vec<usize>>>,
    /// No connection can be made, at once or without an answer.
    away: Mutex<Option<Duration>>,
}

struct OneLink {
    number: usize,
    made: Instant,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Open for OneLink {
    fn is_open(&self) -> bool {
        true
    }

    fn made(&self) -> Instant {
        self.made
    }
}

impl Drop for OneLink {
    fn drop(&mut self) {
        self.ended.lock().push(self.number);
    }
}

impl Wires {
    async fn send(&self, link: &OneLink, what: Told) -> Result<Vec<SimulatedRow>, Failed> {
        let (answer, answered) = oneshot::channel();
        let link = link.number;
        let message = Message { link, what, answer };
        self.messages.send(message).ok();
        let lost = |_| Err(Failed::Lost(late("the connection broke")));
        answered.await.unwrap_or_else(lost)
    }
}

impl Wire for Wires {
    type Link = OneLink;
    type Row = SimulatedRow;

    async fn connect(&self) -> Result<OneLink> {
        let away = *self.away.lock();
        if let Some(away) = away {
            sleep(away).await;
            return Err(StoreError::new(StoreErrorKind::NotApplied, "not reached"));
        }
        Ok(OneLink {
            number: self.made.fetch_add(1, Ordering::SeqCst),
            made: Instant::now(),
            ended: self.ended.clone(),
        })
    }

    async fn run(&self, link: &OneLink, step: &Step) -> Result<Vec<SimulatedRow>, Failed> {
        let numbers = match step.params.first() {
            Some(Param::Each(steps, _)) => steps.iter().map(|step| asked(step).1).collect(),
            _ => vec![asked(step).1],
        };
        self.send(link, Told::Run(step.kind, numbers)).await
    }

    async fn simple(&self, link: &OneLink, text: &str) -> Result<(), Failed> {
        let what = match text {
            "COMMIT" => Told::Commit,
            begin => Told::Begin(begin.into()),
        };
        self.send(link, what).await.map(drop)
    }
}

/// What a call answers: the numbers of its rows, and whether an earlier sending may have had an effect.
type Called = (Result<Vec<u64>>, bool);

struct Bench {
    pool: Arc<Pool<Wires>>,
    wires: Arc<Wires>,
    messages: mpsc::UnboundedReceiver<Message>,
}

impl Bench {
    fn new(connections: usize, group: usize) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let wires = Arc::new(Wires {
            messages: sender,
            made: AtomicUsize::new(0),
            ended: Arc::default(),
            away: Mutex::new(None),
        });
        let options = PostgresOptions::from_url("postgres://simulated/records")
            .expect("a URL")
            .connections(connections)
            .group(group)
            .timeout(TIMEOUT);
        Self {
            pool: Arc::new(Pool::new(wires.clone(), &options)),
            wires,
            messages,
        }
    }

    /// With both usual connections busy: whatever is asked for now is queued.
    async fn busy(connections: usize, group: usize) -> (Self, [Message; 2]) {
        let mut bench = Self::new(connections, group);
        for number in [20, 21] {
            bench.call(Kind::Renew, number);
        }
        let (one, other) = (bench.next().await, bench.next().await);
        (bench, [one, other])
    }

    fn call(&self, kind: Kind, number: u64) -> JoinHandle<Called> {
        self.call_with(kind, number, 0)
    }

    fn call_with(&self, kind: Kind, number: u64, bytes: usize) -> JoinHandle<Called> {
        let digest = row(number).digest;
        let params = vec![
            Param::bytes(digest.as_bytes()),
            Param::int(number.cast_signed()),
            Param::bytes(&vec![0; bytes]),
        ];
        let digest = Some(digest);
        let step = Step {
            kind,
            digest,
            params,
        };
        let pool = self.pool.clone();
        tokio::spawn(async move {
            let mut sent = Sent::default();
            let rows = pool.run(step, &mut sent).await;
            let rows = rows.map(|rows| rows.iter().map(|row| row.number).collect());
            (rows, sent.in_doubt())
        })
    }

    async fn next(&mut self) -> Message {
        self.within(10 * TIMEOUT).await.expect("nothing was sent")
    }

    async fn within(&mut self, time: Duration) -> Option<Message> {
        let next = timeout(time, self.messages.recv()).await;
        next.ok().flatten()
    }

    /// What was sent until now and waits for an answer.
    async fn sent(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        while let Some(message) = self.within(Duration::from_millis(1)).await {
            sent.push(message);
        }
        sent
    }

    fn ended(&self) -> Vec<usize> {
        self.wires.ended.lock().clone()
    }
}

async fn ended(call: JoinHandle<Called>) -> Called {
    call.await.expect("no caller panics")
}

async fn rows(call: JoinHandle<Called>) -> Vec<u64> {
    ended(call).await.0.expect("an answer")
}

async fn kind(call: JoinHandle<Called>) -> StoreErrorKind {
    ended(call).await.0.expect_err("an error").kind()
}

#[tokio::test(start_paused = true)]
async fn a_group_is_one_transaction_and_each_caller_gets_its_own_rows() {
    let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
    let calls = [
        (3, Kind::Complete),
        (1, Kind::Renew),
        (5, Kind::ClaimNew),
        (2, Kind::Complete),
        (4, Kind::ClaimNew),
    ]
    .map(|(number, kind)| (number, bench.call(kind, number)));
    tokio::task::yield_now().await;
    one.done();
    // All of it is sent before any of it is answered: new claims first, then in the digests' order.
    let sent = bench.sent().await;
    assert!(sent.iter().all(|message| message.link == 0));
    let begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 100";
    let expected = [
        Told::Begin(begin.into()),
        run(Kind::ClaimMany, [4, 5]),
        run(Kind::Renew, [1]),
        run(Kind::CompleteMany, [2, 3]),
        Told::Commit,
    ];
    assert!(sent.iter().map(|message| &message.what).eq(&expected));
    sent.into_iter().for_each(Message::done);
    for (number, call) in calls {
        let (answer, in_doubt) = ended(call).await;
        assert_eq!(
            (answer.expect("an answer"), in_doubt),
            (vec![number], false)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_no_row_in_a_groups_answer_is_told_so() {
    let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
    let calls = [1, 2, 3].map(|number| bench.call(Kind::ClaimNew, number));
    tokio::task::yield_now().await;
    one.done();
    let many = bench.next().await;
    // A group of one statement is no transaction.
    assert_eq!(many.what, run(Kind::ClaimMany, [1, 2, 3]));
    many.answer(Ok(vec![row(3), row(1)]));
    let [first, second, third] = calls;
    assert_eq!(rows(first).await, [1]);
    assert!(rows(second).await.is_empty());
    assert_eq!(rows(third).await, [3]);
}

#[tokio::test(start_paused = true)]
async fn a_large_outcome_shares_no_statement() {
    let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
    let large = SHARES_AT_MOST + 1;
    let sizes = [SHARES_AT_MOST - 64, 8, large, 8, 8];
    for (number, bytes) in (1..).zip(sizes) {
        bench.call_with(Kind::Complete, number, bytes);
    }
    tokio::task::yield_now().await;
    one.done();
    let sent = bench.sent().await;
    let expected = [
        run(Kind::CompleteMany, [1, 2]),
        run(Kind::Complete, [3]),
        run(Kind::CompleteMany, [4, 5]),
    ];
    let statements = &sent[1..sent.len() - 1];
    assert!(statements.iter().map(|message| &message.what).eq(&expected));
}

/// 64 KiB.
const SHARES_AT_MOST: usize = 64 << 10;

#[tokio::test(start_paused = true)]
async fn a_group_is_no_larger_than_allowed_and_has_no_digest_twice() {
    let (mut bench, [one, _other]) = Bench::busy(2, 2).await;
    for (kind, number) in [
        (Kind::Renew, 1),
        (Kind::Complete, 1),
        (Kind::Replace, 2),
        (Kind::Renew, 3),
        (Kind::Renew, 4),
    ] {
        bench.call(kind, number);
    }
    tokio::task::yield_now().await;
    one.done();
    // The second step of 1 waits for the first; a replacement is sent by itself.
    for expected in [
        vec![run(Kind::Renew, [1]), run(Kind::Renew, [3])],
        vec![run(Kind::Complete, [1]), run(Kind::Renew, [4])],
        vec![run(Kind::Replace, [2])],
    ] {
        let sent = bench.sent().await;
        let steps = sent.iter().map(|message| &message.what);
        let steps = steps.filter(|what| matches!(what, Told::Run(..)));
        assert!(steps.eq(&expected), "{expected:?}");
        sent.into_iter().for_each(Message::done);
    }
    assert!(bench.sent().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_waits_too_long_gets_a_connection_more() {
    let (mut bench, _busy) = Bench::busy(4, 64).await;
    let begun = Instant::now();
    // Nobody waits for the first one any more; it is sent all the same, and by itself.
    bench.call(Kind::Replace, 1);
    tokio::task::yield_now().await;
    let second = bench.call(Kind::Renew, 2);
    let claim = bench.next().await;
    assert_eq!((claim.link, &claim.what), (2, &run(Kind::Replace, [1])));
    assert_eq!(begun.elapsed(), PATIENCE);
    let renewal = bench.next().await;
    assert_eq!((renewal.link, &renewal.what), (3, &run(Kind::Renew, [2])));
    renewal.done();
    assert_eq!(rows(second).await, [2]);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_its_time_a_call_knows_whether_its_step_was_sent() {
    let (mut bench, busy) = Bench::busy(2, 64).await;
    let begun = Instant::now();
    let calls = [(1, Kind::Replace), (2, Kind::Replace), (3, Kind::Renew)]
        .map(|(number, kind)| bench.call(kind, number));
    sleep(TIMEOUT / 2).await;
    // The claims are sent, and not answered: they keep both connections.
    busy.into_iter().for_each(Message::done);
    let claims = bench.sent().await;
    assert_eq!(claims.len(), 2);
    let [first, second, unsent] = calls;
    for claim in [first, second] {
        let (answer, in_doubt) = ended(claim).await;
        let kind = answer.expect_err("no answer").kind();
        assert_eq!((kind, in_doubt), (StoreErrorKind::Unknown, true));
    }
    let (answer, in_doubt) = ended(unsent).await;
    let kind = answer.expect_err("no connection").kind();
    assert_eq!((kind, in_doubt), (StoreErrorKind::NotApplied, false));
    assert_eq!(begun.elapsed(), TIMEOUT);
    // Nobody sends it any more.
    assert!(bench.within(10 * TIMEOUT).await.is_none());
    assert_eq!(bench.ended(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_rolled_back_is_sent_again_eight_times() {
    let mut bench = Bench::new(2, 64);
    let call = bench.call(Kind::Renew, 1);
    for _ in 0..9 {
        bench.next().await.answer(Err(rolled_back()));
    }
    assert_eq!(kind(call).await, StoreErrorKind::NotApplied);
    let call = bench.call(Kind::Renew, 1);
    for _ in 0..8 {
        bench.next().await.answer(Err(rolled_back()));
    }
    bench.next().await.done();
    assert_eq!(rows(call).await, [1]);
    // On one connection: the server said what became of each.
    assert_eq!((bench.ended(), bench.sent().await.len()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_connection_broke_is_sent_again_three_times_on_new_ones() {
    for (step, breaks, said) in [
        (Kind::Renew, 4, Some(StoreErrorKind::Unknown)),
        (Kind::Get, 4, Some(StoreErrorKind::NotApplied)),
        (Kind::Renew, 3, None),
        (Kind::Get, 3, None),
        (Kind::Renew, 0, None),
    ] {
        let mut bench = Bench::new(1, 64);
        let call = bench.call(step, 1);
        for link in 0..breaks {
            assert_eq!(bench.next().await.link, link);
        }
        if said.is_none() {
            let last = bench.next().await;
            assert_eq!(last.link, breaks);
            last.done();
        }
        let (answer, in_doubt) = ended(call).await;
        let answer = answer.map_err(|error| {
            // What is unknown is said once, not as its own cause.
            assert_eq!(error.source().is_none(), step == Kind::Renew);
            error.kind()
        });
        assert_eq!(answer, said.map_or(Ok(vec![1]), Err));
        // A read leaves nothing open.
        assert_eq!(in_doubt, step == Kind::Renew && breaks > 0);
        assert_eq!(bench.ended(), (0..breaks).collect::<Vec<_>>());
    }
}

/// A call is one for all of its steps: what one of them left open, no later one settles.
#[tokio::test(start_paused = true)]
async fn what_a_step_left_open_stays_open() {
    let mut bench = Bench::new(1, 64);
    let step = |kind| {
        let digest = row(1).digest;
        let params = vec![Param::bytes(digest.as_bytes()), Param::int(1)];
        let digest = Some(digest);
        Step {
            kind,
            digest,
            params,
        }
    };
    let pool = bench.pool.clone();
    let calls = tokio::spawn(async move {
        let mut sent = Sent::default();
        let renewed = pool.run(step(Kind::Renew), &mut sent).await;
        assert!(renewed.is_ok() && sent.in_doubt());
        let read = pool.run(step(Kind::Get), &mut sent).await;
        assert!(read.is_ok() && sent.in_doubt());
        let refused = pool.run(step(Kind::Complete), &mut sent).await;
        refused.map(drop).expect_err("refused").kind()
    });
    drop(bench.next().await);
    bench.next().await.done();
    bench.next().await.done();
    let full = StoreError::new(StoreErrorKind::Capacity, "the disk is full");
    bench.next().await.answer(Err(Failed::Refused(full)));
    assert_eq!(calls.await.expect("no panic"), StoreErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn of_a_group_that_was_rolled_back_each_step_is_sent_by_itself() {
    let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
    let calls = [1, 2, 3].map(|number| (number, bench.call(Kind::Renew, number)));
    tokio::task::yield_now().await;
    one.done();
    for message in bench.sent().await {
        match message.what {
            Told::Run(_, ref numbers) if numbers[..] == [2] => message.answer(Err(rolled_back())),
            _ => message.done(),
        }
    }
    for _ in 0..3 {
        let [message] = <[_; 1]>::try_from(bench.sent().await)
            .ok()
            .expect("one step");
        // The connection is as good as before, also after a step that is refused.
        assert_eq!(message.link, 0);
        match message.what {
            Told::Run(_, ref numbers) if numbers[..] == [2] => {
                let full = StoreError::new(StoreErrorKind::Capacity, "the disk is full");
                message.answer(Err(Failed::Refused(full)));
            }
            _ => message.done(),
        }
    }
    for (number, call) in calls {
        match ended(call).await.0 {
            Ok(rows) => assert_eq!(rows, [number]),
            Err(error) => assert_eq!((number, error.kind()), (2, StoreErrorKind::Capacity)),
        }
    }
    assert!(bench.ended().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_broke_under_a_group_is_replaced() {
    let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
    let calls = [1, 2].map(|number| bench.call(Kind::Renew, number));
    tokio::task::yield_now().await;
    one.done();
    let sent = bench.sent().await;
    assert_eq!(sent.len(), 4);
    // The commit's answer is lost, with the connection.
    for message in sent {
        match message.what {
            Told::Commit => drop(message),
            _ => message.done(),
        }
    }
    for message in bench.sent().await {
        assert_eq!(message.link, 2);
        message.done();
    }
    assert_eq!(bench.ended(), [0]);
    for call in calls {
        // What was sent before may have been committed.
        assert!(ended(call).await.1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_broke_under_a_queued_step_is_replaced() {
    let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
    let call = bench.call(Kind::Renew, 1);
    tokio::task::yield_now().await;
    one.done();
    drop(bench.next().await);
    let again = bench.next().await;
    assert_eq!(again.link, 2);
    again.done();
    let (answer, in_doubt) = ended(call).await;
    assert_eq!((answer.expect("an answer"), in_doubt), (vec![1], true));
    assert_eq!(bench.ended(), [0]);
}

#[tokio::test(start_paused = true)]
async fn without_a_connection_nothing_was_applied() {
    for (away, takes) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_secs(100), TIMEOUT),
    ] {
        let (mut bench, [one, _other]) = Bench::busy(2, 64).await;
        let calls = [1, 2].map(|number| bench.call(Kind::Renew, number));
        tokio::task::yield_now().await;
        *bench.wires.away.lock() = Some(away);
        let begun = Instant::now();
        drop(one);
        let [first, second] = calls;
        for call in [first, second] {
            let (answer, in_doubt) = ended(call).await;
            let error = answer.expect_err("no connection");
            assert_eq!(
                (error.kind(), in_doubt),
                (StoreErrorKind::NotApplied, false)
            );
        }
        assert_eq!(begun.elapsed(), takes);
        assert!(bench.sent().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_pool_keeps_no_connection() {
    let (mut bench, [one, other]) = Bench::busy(2, 64).await;
    one.done();
    tokio::task::yield_now().await;
    assert!(bench.ended().is_empty());
    bench.pool.close();
    assert_eq!(bench.ended(), [0]);
    // What is under way ends, and its connection with it.
    other.done();
    let closed = bench.call(Kind::Renew, 1);
    assert_eq!(kind(closed).await, StoreErrorKind::Closed);
    assert_eq!(bench.ended(), [0, 1]);
    assert!(bench.sent().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_used_again_until_it_is_old() {
    let mut bench = Bench::new(2, 64);
    let used = async |bench: &mut Bench, after| {
        sleep(after).await;
        let call = bench.call(Kind::Renew, 1);
        let message = bench.next().await;
        let link = message.link;
        message.done();
        rows(call).await;
        link
    };
    for _ in 0..8 {
        assert_eq!(used(&mut bench, Duration::from_mins(4)).await, 0);
    }
    // Half an hour after it was made, and five minutes after it was used.
    assert_eq!(used(&mut bench, Duration::from_mins(4)).await, 1);
    assert_eq!(used(&mut bench, Duration::from_mins(5)).await, 2);
    assert_eq!(bench.ended(), [0, 1]);
}

/// Without groups each step has a connection of its own, as long as there are some.
#[tokio::test(start_paused = true)]
async fn without_groups_all_connections_are_usual() {
    let mut bench = Bench::new(3, 1);
    for number in 0..4 {
        bench.call(Kind::Renew, number);
    }
    let mut sent = bench.sent().await;
    let links: Vec<_> = sent.iter().map(|message| message.link).collect();
    assert_eq!(links, [0, 1, 2]);
    sent.remove(1).done();
    let last = bench.next().await;
    assert_eq!((last.link, last.what), (1, run(Kind::Renew, [3])));
}
