//! Runs written by hand: what is right is not called wrong, and each check sees what it is for.

mod written;

use self::written::{Run, judged};

#[test]
fn answers() {
    judged(
        "
        A replay is the answer, byte for byte.
            after ran:
                20-21 call: replay 1 |
                20-21 call: replay 1 other-body | bytes
                20-21 call: replay 1 other-head | bytes
                20-21 call: replay 1 omitted | bytes
        A body that broke off is kept as omitted.
                20-21 call: replay 1 omitted; broken upstream 4-8 |
        An answer is of one's own execution.
            after nothing:
                20-21 call: answer 2 | executed
            after ran:
                20-21 call principal=2: replay 1 | whose
                20-21 call service=1: replay 1 | whose
                20-30 call service=1: answer 2; 25 for 2 under 2 service=1: ran 2 | whose
        Another request is a mismatch, and nothing else is.
                20-21 call body=6: replay 1 | mismatch
                20-21 call body=6: 422 mismatch |
                5-6 call: 422 mismatch | mismatch
                20-21 call: 422 mismatch | mismatch
        Who was refused, or released, holds nothing.
            after nothing:
                0-1 call body=6: 422 mismatch; 5-6 call: 422 mismatch | mismatch
                0-10 call body=6: failed 500; 5 for 1 under 1: failed 500; 20-21 call: 422 mismatch | mismatch
        Marks tell who ran it.
            after ran:
                20-21 call: answer 1 | mark
            after 0-10 call: replay 1; 5 for 1 under 1: ran 1:
                | mark
        Its claim was lost, and a reconciler found the answer.
                broken store 2-9 |
        What was told stays.
            after 0-10 call: answer 1; 5 for 1 under 1: ran 1; broken store 2-400; broken upstream 2-400:
                20-30 call: 503 store-unavailable |
                20-30 call: 409 in-flight | cause
                20-30 call: 409 outcome-unknown | cause
                20-30 call: 504 upstream-timeout | once
        Who asked before it was told may have been early.
                8-30 call: 409 in-flight |",
    );
}

#[test]
fn effects() {
    judged(
        "
        Nothing runs twice.
            after ran:
                30 for 2 under 2: ran 2 | once
        Nor where a fault could have lost the first, unless lost attempts are run again.
            after lost:
                | once
                retry | explained
        Each fault loses one attempt of each client at most.
            after two lost:
                | once explained explained
                clients 2 | explained explained
                broken store 20-60 | explained explained
        Another gateway's fault explains nothing.
            after retry; 0-50 call: left; 5 for 1 under 1: ran 1; 2000-2010 call: answer 2; 2005 for 2 under 2: ran 2:
                broken gateway-1 10-40 | once
        Nor does one after the answer was told.
            after ran:
                retry; broken store 2-40; 30 for 2 under 2: ran 2 | once
        A fence belongs to one attempt.
            after released:
                20-30 call: answer 1; 25 for 2 under 2: ran 1 |
                20-30 call: answer 1; 25 for 2 under 1: ran 1 | fence
            after 0-3000 call: failed 409; 2900 for 1 under 1: refused:
                | fence
                broken gateway-0 100-2800 |",
    );
}

#[test]
fn causes() {
    for (problem, place) in [
        ("409 in-flight", "store"),
        ("409 outcome-unknown", "store"),
        ("503 store-unavailable", "store"),
        ("502 upstream-failed", "upstream"),
        ("504 upstream-timeout", "upstream"),
        ("502 upstream-unreachable", "upstream"),
    ] {
        judged(&format!(
            "
            Every problem has a cause of its own.
                after 100-110 call: {problem}:
                    | cause
                    broken {place} 0-90 | cause
                    broken {place} 105-200 |"
        ));
    }
    judged(
        "
        And no other.
            after nothing:
                100-110 call: 503 store-unavailable; broken upstream 0-200 | cause
                100-110 call: 502 upstream-failed; broken store 0-200 | cause
                100-110 call: 504 upstream-timeout; broken gateway-1 0-200 | cause
                100-110 call: 503 overloaded; broken store 0-200 | cause
                100-110 call: failed 500 | cause
            after 100-110 call: broken:
                | cause
                broken store 0-200 | cause
                broken gateway-1 0-200 | cause
                broken gateway-0 0-200 |
        Who was told 'in flight' began nothing that could be lost.
            after 0-8 call: failed 500; 5 for 1 under 1: failed 500; 1-10 call: 409 in-flight:
                broken upstream 9-20; 30-31 call: 409 outcome-unknown | cause
        A cluster without a leader explains refusals.
            after 0-10 call: answer 1; 5 for 1 under 1: ran 1; elects 9000; 9000-9020 call: 503 store-unavailable:
                broken store 0-30 |
                broken upstream 0-30 | cause
                broken store 0-30; 9040-9050 call: 503 store-unavailable | cause
        It has one again.
                broken store 0-30; 1500-1550 call key=8: answer 2; 1520 for 3 under 2 key=8 id=other: ran 2 | cause",
    );
}

#[test]
fn in_flight_is_somebody_elses_attempt() {
    judged(
        "
        Another call is at work.
            after ran:
                8-9 call: 409 in-flight |
                11-12 call: 409 in-flight | cause
        One that was left goes on, for as long as it can.
            after 0-10 call: left:
                500-501 call: 409 in-flight |
                5000-5001 call: 409 in-flight | cause
        The upstream was asked so late.
                5000-5001 call: 409 in-flight; 3500 for 1 under 1: ran 1 |
        One whose gateway was killed holds its lease.
                3000-3001 call: 409 in-flight; broken gateway-0 5-900 |
        One whose end the store could not be told of is recorded soon after, whatever breaks then.
                5000-5001 call: 409 in-flight; broken store 1500-2500 |
                6000-6001 call: 409 in-flight; broken store 1500-2500 | cause
                7000-7001 call: 409 in-flight; broken store 1500-2500; broken store 5000-6000 | cause
        A machine that stood still prolongs the work itself.
                7900-7901 call: 409 in-flight; broken machine 1500-4500; broken store 4600-5000 |
        Without a clock it takes a lease from the first look.
            after broken gateway-0 5-900; 0-10 call: broken; 9000-9001 call: 409 in-flight:
                | cause
                clockless |
                clockless; 10000-10001 call: 409 in-flight |
                clockless; 15000-15001 call: 409 in-flight | cause
        What a process has watched ends with it.
                clockless; 15000-15001 call: 409 in-flight; broken gateway-0 11000-12000 |
                clockless; 15000-15001 call: 409 in-flight; broken gateway-1 11000-12000 | cause
        What was seen of an attempt while it was renewed is none of the lease that it left.
            after clockless; 0-500 call gateway=1: broken; 100-101 call: 409 in-flight:
                broken gateway-1 500-900; 9000-9001 call: 409 in-flight |
        An attempt that was held up, settled by others meanwhile, and told what they kept.
            after reconcile; 0-2000 call: replay 1; 5 for 1 under 1: ran 1; 20-21 call gateway=1: 409 in-flight:
                broken gateway-0 10-2000 |
                broken upstream 10-2000 | cause mark
        What was replayed is known from then on, whatever is broken.
            after ran:
                broken store 0-2000; 100-101 call: replay 1; 2500-2501 call: 409 in-flight | cause
        A duplicate that was told 'in flight' itself is no attempt.
            after 0-10 call: 409 in-flight; broken store 0-1:
                9000-9001 call: 409 in-flight | cause",
    );
}

#[test]
fn ends() {
    judged(
        "
        Everything has an end.
            after ran:
                settling 500; 600-601 call: replay 1 |
            after 0-10 call: left; 5 for 1 under 1: ran 1:
                settling 500 | answered settled
        Unknown is one where it is held. It alone is fewer than 95 in 100.
            after settling 500; broken upstream 0-10; 0-10 call: 504 upstream-timeout:
                600-601 call: 409 outcome-unknown | answered
                600-601 call: 409 outcome-unknown; retry | answered settled
        The gateways do not stand still.
            after ran:
                settling 1900; 1900-1901 call: replay 1 |
                settling 3000; 3000-3001 call: replay 1 | standstill
                settling 3000; 3000-3001 call: replay 1; broken store 10-500 |
        A cluster may be without a leader after a fault, and only then.
                settling 3000; 3000-3001 call: replay 1; elects 9000 | standstill
                settling 4000; 4000-4001 call: replay 1; elects 9000; broken upstream 10-500 | standstill
                settling 12400; 12400-12401 call: replay 1; elects 9000; broken store 10-500 |
                settling 12600; 12600-12601 call: replay 1; elects 9000; broken store 10-500 | standstill
        A gateway that is asked to end does.
                exit 0 20-90 |
                exit 1 20-90 | drain
                exit none 20-90 | drain
                exit 1 20-90; broken store 0-30 |",
    );
}

#[test]
fn what_can_be_excused_is_counted() {
    let ran = "0-10 call: answer 1; 5 for 1 under 1: ran 1";
    for (place, share) in [
        ("store", 0.6),
        ("machine", 0.6),
        ("gateway-1", 0.8),
        ("upstream", 1.0),
    ] {
        let run = format!("{ran}; broken {place} 20-60; calm 100; 20-21 call gateway=1: replay 1");
        let findings = Run::read(&run).findings();
        assert_eq!((findings.unexcused, findings.violations), (share, vec![]));
    }
    // Nothing was to break.
    assert_eq!(Run::read(ran).findings().unexcused, 1.0);
}
