//! Histories written by hand, for each choice that a judge makes: one that it just allows, and one that it just does
//! not. A lease is 100 ms, and the store's clock may be 5 off.

mod written;

use std::collections::BTreeMap;

use self::written::{History, judged};
use super::*;
use crate::tables::MS;

#[test]
fn what_claims_are_answered() {
    judged(
        "
        In flight until the lease has lapsed.
            after held:
                20 hold 2: in-flight 5 |
                20 hold 2: in-flight 6 | P11 linear
                20 hold 2 x2: in-flight 5 | P9 linear
                105 hold 2: in-flight 5 |
                106 hold 2: in-flight 5 | linear
                106 claim 2: in-flight 5 | linear
                107 claim 2: in-flight 5 | P8 linear
                180 claim 2: in-flight 5 | P8 linear
            after renewed:
                115 hold 2: in-flight 5 |
                116 hold 2: in-flight 5 | linear
        No lease is longer than what was asked for. Its lease may have been renewed while it was asked.
            after taken:
                10 claim 2: in-flight 5 for 106 |
                10 claim 2: in-flight 5 for 107 | P8
                10-60 claim 2: in-flight 5 for 155 |
        Unknown once the lease lapsed or the attempt was marked.
            after held:
                94 hold 2: unknown 5 |
                93 hold 2: unknown 5 | P1 linear
                94 hold 2: unknown 6 | P11 linear
                94 hold 2 x2: unknown 5 | P9 linear
                10- mark 5/1; 19 hold 2: unknown 5 |
                10- mark 5/1; 8 hold 2: unknown 5 | P1 linear
                10- abandon 5/1; 19 hold 2: unknown 5 | P1 linear
                150 hold 2: unknown 5 |
                150 claim 2: unknown 5 | P8 linear
                94 claim 2: unknown 5 | P8 linear
            after renewed:
                104 hold 2: unknown 5 |
                103 hold 2: unknown 5 | P1 linear
            after marked:
                20 hold 2: unknown 5 |
                20 hold 2: unknown 6 | P11 linear
                20 hold 2 x2: unknown 5 | P9 linear
                20 hold 2: in-flight 5 | P2 linear
                20 hold 2: acquired 6 #2 | P1 linear
        An attempt is named only while it stands.
            after renewed:
                12 hold 2: in-flight 5 |
            after released:
                10 hold 2: in-flight 5 |
                12 hold 2: in-flight 5 | P2 linear
                200 hold 2: unknown 5 | P2 linear
            after marked:
                12 hold 2: in-flight 5 | P2 linear
                12 hold 2: unknown 5 |
            Another took its place by 151.
            after held:
                150 claim 2: acquired 6 #2; 145-160 hold 3: unknown 5 |
                150 claim 2: acquired 6 #2; 155-160 hold 3: unknown 5 | P2 linear
        Expired only beside a tombstone after the replays.
            after held:
                10- complete 5/1 aa 50+100; 54 claim 2: expired |
                10- complete 5/1 aa 50+100; 53 claim 2: expired | P2 linear
                10- complete 5/1 aa 50+0; 199 claim 2: expired | P2
            after done:
                104 hold 2: expired |
                103 hold 2: expired | P2 linear lost
        A mismatch is the answer to another request.
            after held:
                20 hold 2 x2: mismatch |
                20 hold 2: mismatch | P9 linear
                4 claim 2: mismatch | P9 linear
            after kept:
                4 claim 2 x9: completed aa | P9 linear
            after released:
                20 hold 2 x2: mismatch | linear
            Parts of the work are for the same request.
            after partly:
                20 hold 2: acquired 6 #2 |
                20 hold 2 x2: acquired 6 #2 | linear
                20 hold 2 x2: mismatch |
                20 hold 2: mismatch | P9 linear
        A mismatch beside a claim whose answer hides that it held the key: it took its lease while something was broken.
            after 110 claim 2: mismatch; 120 claim 3 x9: acquired 6 #2; 125 complete 6/3 aa 1000+0: applied:
                broken 20-120; 0-150 claim 1 x9: completed aa |
                broken 160-260; 0-150 claim 1 x9: completed aa | P9 linear
                broken 20-120; 100-150 claim 1 x9: completed aa | P9 linear
                broken 20-120; 0-150 claim 1 x9: failed not | P9 linear
        The winner does not lose to itself.
            after nothing:
                0 claim 1: failed perhaps; 2 claim 1: in-flight 5 | P11 linear
                0 claim 1: failed perhaps; 2 claim 1: acquired 5 |
                0 claim 1: failed not; 2 claim 2: in-flight 5 | P11 linear
        The winner is told again. Told 5 before; or not yet, but another was told of its claim.
            after 0 claim 1: acquired 5; 10 claim 3: in-flight 5:
                20 claim 1: acquired 5 |
                20 claim 1: acquired 6 | P1 linear
                20 claim 1 x2: acquired 5 | linear
                20 claim 2: acquired 5 | P1 P11 linear
                20 claim 2: acquired 6 | P1 linear
            after 0 claim 1: failed perhaps; 10 claim 3: in-flight 5:
                20 claim 1: acquired 5 |
                20 claim 1 x2: acquired 5 | P9 linear
                20 claim 2: acquired 5 | P11 linear
                20 claim 2: acquired 6 | linear
            From then on its fence is known to all.
            after 0- claim 1; 20 claim 1: acquired 5:
                30 claim 2: in-flight 5 |
                30 claim 2: in-flight 6 | linear",
    );
}

#[test]
fn one_owner_after_the_other() {
    judged(
        "
        Of claims at the same time one wins.
            after nothing:
                0-10 claim 1: acquired 5; 1-11 claim 2: acquired 6 | P1 linear
                0-10 claim 1: acquired 5; 0-10 claim 2: acquired 6 | P1 linear
                0-10 claim 1: acquired 5; 1-11 claim 2: acquired 6; 12 effect 5/1; 13 effect 6/2 | P1 linear double
                0-10 claim 1: acquired 5; 200 claim 2: acquired 5 #2 | P1 linear
            after 0-10 claim 1: in-flight 5; 1-9 claim 2: acquired 5; 0-8 claim 3: in-flight 5:
                11 complete 5/2 aa 1000+0: applied; 11-14 claim 4: completed aa |
        The next owner comes after an end or where the policy allows a lapse.
            after held:
                20 hold 2: acquired 5 #2 | P1 linear
                200 hold 2: acquired 6 #2 | P1 linear
                94 claim 2: acquired 6 #2 |
                93 claim 2: acquired 6 #2 | P1 linear
                94 claim 2 x2: acquired 6 #2 | P9 linear
                199 hold 2: acquired 6 #2 | P1 linear
                10- mark 5/1; 19 claim 2: acquired 6 #2 |
                10- mark 5/1; 8 claim 2: acquired 6 #2 | P1 linear
                10- mark 5/1; 199 hold 2: acquired 6 #2 | P1 linear
                10- abandon 5/1; 19 hold 2: acquired 6 #2 |
                10- abandon 5/1; 8 hold 2: acquired 6 #2 | P1 linear
                10- complete 5/1 aa 50+20; 74 hold 2: acquired 6 #2 |
                10- complete 5/1 aa 50+20; 73 hold 2: acquired 6 #2 | P1 linear
                10- complete 5/1 aa 50+20; 19 claim 2: acquired 6 #2 | P1 linear
            after taken:
                104 claim 2: acquired 6 #2 |
                80 claim 2: acquired 6 #2 | P1 linear
                50 claim 2: acquired 6 | P1 linear
                120 claim 2: acquired 6 #2 |
                50 renew 5/1: applied; 104 claim 2: acquired 6 #2 | P1 linear
                50 renew 5/1: applied; 155 claim 2: acquired 6 #2 |
            after marked:
                20 claim 2: acquired 6 #2 |
                20 claim 2 x2: acquired 6 #2 | P9 linear
            after done:
                154 hold 2 x2: acquired 6 #2 |
                153 hold 2: acquired 6 #2 | P1 linear
                20 hold 2: in-flight 5 | P2 linear lost
            after released:
                20 hold 2: acquired 6 #2 |
                20 hold 2 x2: acquired 6 #2 |
                20 hold 2: acquired 5 #2 | P1 linear
                20 hold 2: acquired 4 #2 | P1 linear
        Retention is kept from the completion on.
            after 0 hold 1: acquired 5; 500 complete 5/1 aa 1000+0: applied:
                1494 claim 2: acquired 6 #2 |
                1493 claim 2: acquired 6 #2 | P1 P2 linear lost
            after kept:
                200 claim 2: acquired 6 #2 | P1 P2 linear lost
            after 0- claim 1; 200-210 resolve 5 by 9 aa 500+500: applied:
                600-610 resolve 5 by 9 aa 500+500: applied; 710 get: found completed 6/9 aa; 720 claim 2: expired |
        Under hold only a resolution lets another run.
            after 0 hold 1: acquired 5; 150 hold 2: unknown 5; 10 effect 5/1; 172 effect 6/3:
                160 resolve 5 by 9: applied; 170 hold 3: acquired 6 #2 | explained
                170 hold 3: acquired 6 #2 | P1 linear double
        A claim given back was made by the one that was lost.
            after taken:
                150- claim 2; 160 hold 2: acquired 6 #2; 162 abandon 6/2: applied |
                150- hold 2; 160 hold 2: acquired 6 #2; 162 abandon 6/2: applied | P1 linear
        A lapse lets the same request run only. Who got no answer may have held the key, and its attempt be resolved.
            after held:
                150 claim 2: acquired 6 #2 |
                150 claim 2 x2: acquired 6 #2 | P9 linear
                120- claim 3; 150 claim 2 x2: acquired 6 #2 | linear
        Attempts are counted anew only when the record is gone.
            after held:
                199 claim 2: acquired 6 | P1
                10- mark 5/1; 99999 claim 2: acquired 6 | P1
                10- abandon 5/1; 60004 claim 2: acquired 6 |
                10- abandon 5/1; 60003 claim 2: acquired 6 | P1
                10- complete 5/1 aa 50+20; 74 claim 2: acquired 6 |
        Fences grow.
            after kept:
                1100 claim 2: acquired 4 | P1 linear",
    );
}

#[test]
fn steps_and_refusals() {
    judged(
        "
        What is settled is not settled otherwise.
            after 0 hold 1: acquired 5; 10 complete 5/1 aa 1000+0: applied:
                12 complete 5/1 aa 1000+0: applied |
                12 complete 5/1 bb 1000+0: applied | P3 linear
                12 renew 5/1: applied | P3 linear
                12 abandon 5/1: applied | P3 linear
                11 renew 5/1: applied |
            after done:
                20 complete 5/1 bb 100+50: applied | P3 linear
                20 abandon 5/1: applied | P3 linear
                20 keep 5/1: applied | P3 linear
                20 complete 5/1 aa 100+50: applied |
                20 complete 5/2 aa 100+50: applied | P3 linear
            after released:
                12 abandon 5/1: applied |
                12 renew 5/1: applied | P3 linear
                12 complete 5/1 aa 1000+0: applied | P3 linear
                11 renew 5/1: applied |
                20 complete 5/1 aa 100+50: applied | P3 linear
                20 renew 5/1: applied | P3 linear
                20 abandon 5/1: applied |
            after marked:
                12 complete 5/1 aa 1000+0: applied |
                12 renew 5/1: applied | P3 linear
                11 renew 5/1: applied |
                20 complete 5/1 aa 100+50: applied |
                20 keep 5/1: applied |
                20 abandon 5/1: applied |
                20 renew 5/1: applied | P3 linear
                20 mark 5/1: applied |
        What is resolved or taken over is left alone.
            after held:
                160 resolve 5 by 9: applied; 160-170 complete 5/1 aa 1000+0: applied | linear
                160 resolve 5 by 9: applied; 162-170 complete 5/1 aa 1000+0: applied | P3 linear
                160 claim 2: acquired 6 #2; 160-170 keep 5/1: applied |
                160 claim 2: acquired 6 #2; 162-170 keep 5/1: applied | P3 linear
                150 claim 2: acquired 6 #2; 160 complete 5/1 aa 1000+0: applied | P1 P3 linear
        A token comes from a claim even from one without an answer.
            after 0- claim 1:
                10 renew 5/1: applied |
                10 renew 5/2: applied | P3 linear
            after held:
                20 renew 5/1: applied |
                20 renew 6/1: applied | P3 linear
                20 renew 5/2: applied | P3 linear
                2 renew 5/2: applied | P3 linear
                2 renew 4/1: applied | P3 linear
            after 0 hold 1: acquired 5; 10 keep 5/1: applied:
                20 keep 5/1: applied |
        A refusal says what was so.
            after held:
                94 renew 5/1: refused Unknown | linear
                93 renew 5/1: refused Unknown | P11 linear
                19 renew 5/1: refused OtherSteps | P11
                10- mark 5/1; 19 renew 5/1: refused Unknown |
                10- abandon 5/1; 19 renew 5/1: refused Unknown | P11 linear
                10- abandon 5/1; 19 renew 5/1: refused Released |
                10- abandon 5/1; 8 renew 5/1: refused Released | P11 linear
                10- mark 5/1; 19 renew 5/1: refused Released | P11 linear
                10- complete 5/1 aa 100+50; 19 renew 5/1: refused Completed |
                10- abandon 5/1; 19 renew 5/1: refused Completed | P11 linear
                10- complete 5/1 aa 100+50; 154 renew 5/1: refused Missing |
                10- complete 5/1 aa 100+50; 153 renew 5/1: refused Missing | P11 linear
                10- abandon 5/1; 60004 renew 5/1: refused Missing |
                10- abandon 5/1; 60003 renew 5/1: refused Missing | P11 linear
                10- mark 5/1; 99999 renew 5/1: refused Missing | P11 linear
                10- abandon 5/1; 19 renew 5/1: refused Superseded | P11 linear
                20 complete 4/1 bb 100+50: refused Superseded |
                20 complete 5/2 bb 100+50: refused Superseded |
                20 complete 5/1 bb 100+50: refused Superseded | P11 linear
                20 complete 5/1 bb 100+50: refused Completed | P11 linear
                20 complete 5/1 bb 100+50: refused Released | P11 linear
                20 complete 5/1 bb 100+50: refused Unknown | P11 linear
                20 complete 5/1 bb 100+50: refused Missing | P11 linear
                20 complete 5/1 bb 100+50: refused OtherSteps | P11
                20 complete 5/2 bb 100+50: refused OtherSteps | linear
            after done:
                20 complete 5/1 bb 100+50: refused Completed |
                20 complete 5/2 bb 100+50: refused Completed | linear
                154 complete 5/1 bb 100+50: refused Missing |
                153 complete 5/1 bb 100+50: refused Missing | P11 linear
            after released:
                20 complete 5/1 bb 100+50: refused Released |
                20 complete 5/2 bb 100+50: refused Released | linear
            after marked:
                20 complete 5/1 bb 100+50: refused Unknown |
                20 complete 5/2 bb 100+50: refused Unknown | linear
                100000 complete 5/1 bb 100+50: refused Missing | P11 linear
            after nothing:
                0 renew 5/1: refused Missing |
                0 renew 5/1: refused Superseded | linear
        A refusal needs a cause. Somebody's claim was lost: it may have taken over.
            after taken:
                2 complete 5/1 aa 1000+0: refused Superseded | P11 linear
                1- claim 2; 2 complete 5/1 aa 1000+0: refused Superseded | linear
                2 complete 5/1 aa 1000+0: refused Missing | P11 linear
        A refusal may come of a later attempt.
            after 0 hold 1: acquired 5; 150 claim 2: acquired 6 #2:
                140-155 renew 5/1: refused Superseded |
                140-149 renew 5/1: refused Superseded | P11 linear
                140-155 renew 5/1: refused Missing | linear
                140-149 renew 5/1: refused Missing | P11 linear
        A refusal may come of the same nonce sent again after the end.
            after held:
                10 abandon 5/1: applied; 20- hold 1; 30 renew 5/1: refused Superseded |
                20- hold 1; 30 renew 5/1: refused Superseded | P11 linear
                40 abandon 5/1: applied; 20- hold 1; 30 renew 5/1: refused Superseded | P11 linear
                10 abandon 5/1: applied; 30 renew 5/1: refused Superseded | P11 linear
        A refusal may hide that the step was done while something was broken; a marking would be 'applied' again.
            after held:
                broken 100-150; 10-200 complete 5/1 aa 50+0: refused Missing |
                broken 100-150 of 0; 10-200 complete 5/1 aa 50+0: refused Missing |
                broken 0-9; 10-200 complete 5/1 aa 50+0: refused Missing | P11 linear
                broken 100-150 of 1; 10-200 complete 5/1 aa 50+0: refused Missing | P11 linear
                broken 0-50; 10 mark 5/1: refused Unknown | P11",
    );
}

#[test]
fn resolutions() {
    judged(
        "
        A resolution frees.
            after marked:
                20 resolve 5 by 9: applied; 30 hold 2: acquired 7 #2 |
                20 resolve 6 by 9: applied; 30 hold 2: acquired 7 #2 | P1 linear
                20 resolve 5 by 9; 30 hold 2: acquired 7 #2 |
                20 resolve 6 by 9; 30 hold 2: acquired 7 #2 | P1 linear
                20 resolve 5 by 9: refused Superseded; 30 hold 2: acquired 7 #2 | P1 linear
                20 resolve 5 by 9: refused Superseded; 30 hold 2: unknown 5 |
                20 resolve 5 by 9: applied; 30 hold 2: acquired 5 #2 | P1 linear
            after held:
                94 resolve 5 by 9: applied; 104 hold 2: acquired 7 #2 |
                93 resolve 5 by 9: applied; 103 hold 2: acquired 7 #2 | linear
        A resolution keeps. The attempt's token is no longer the record's.
            after 0 hold 1: acquired 5; 10 mark 5/1: applied; 20 resolve 5 by 9 aa 100+50: applied:
                30 hold 2: completed aa |
                30 hold 2: completed bb | P4 linear
                30 hold 2: unknown 5 | P2 linear lost
                30 complete 5/1 bb 100+50: refused Superseded |
                30 complete 5/1 bb 100+50: refused Completed | P11 linear
                30 resolve 5 by 9 aa 100+50: applied |
                30 resolve 5 by 8 aa 100+50: applied | linear
        A completion leaves no parts.
            after 0 hold 1: acquired 5; 10 keep 5/1: applied; 12 complete 5/1 aa 100+50: applied:
                200 hold 2 x2: acquired 6; 202 abandon 6/2: applied; 204 hold 3 x3: acquired 7 #2 |",
    );
}

#[test]
fn replays_and_reads() {
    judged(
        "
        What was completed is seen.
            after 0 hold 1: acquired 5; 10 complete 5/1 aa 1000+0: applied:
                12 claim 2 |
                12 claim 2: failed not |
                12 get |
                12 get: found completed 5/1 aa |
                12 get: found completed 5/1 bb | P4 linear
                12 get: found in-flight 5/1 | P2 linear lost
                12 get: absent | P2 linear lost
            after kept:
                4 claim 2: completed ab | P4 linear
            after done:
                20 hold 2: completed aa |
                20 hold 2: completed bb | P4 linear
                20 hold 2 x2: completed aa | P9 linear
            after 0-10 claim 1: acquired 5; 11 complete 5/1 aa 1000+0: applied:
                13 claim 2: in-flight 5 | P2 linear lost
            Whether it happened or not.
            after 0-10 claim 1: acquired 5; 11- complete 5/1 aa 1000+0:
                20 claim 2: completed aa |
                20 claim 2: in-flight 5 |
        What is read was kept.
            after held:
                10- complete 5/1 aa 1000+0; 19 get: found completed 5/1 aa |
                10- complete 5/1 aa 1000+0; 19 get: found completed 5/1 bb | P4 linear
                10- complete 5/1 aa 1000+0; 8 get: found completed 5/1 aa | P4 linear
        A read shows the record.
            after held:
                20 get: found in-flight 5/1 |
                20 get: found unknown 5/1 | linear
                20 get: absent | linear
            after marked:
                20 get: found unknown 5/1 |
                20 get: found in-flight 5/1 | linear
                20 get: absent | linear
            after done:
                20 get: found completed 5/1 aa |
                20 get: found completed 5/1 bb | P4 linear
                20 get: found in-flight 5/1 | P2 linear lost
                154 get: absent |
                153 get: absent | linear
            after released:
                20 get: found released 5/1 |
                20 get: found in-flight 5/1 | linear
                60004 get: absent |
                60003 get: absent | linear
            A week, and what the clock may be off.
            after partly:
                604800006 get: absent |
                604800005 get: absent | linear
            after nothing:
                0 get: absent |
                0 get: found in-flight 5/1 | linear
        A replay ends with its retention and a read with the tombstone.
            after done:
                115 hold 2: completed aa |
                116 hold 2: completed aa | linear
                116 claim 2: completed aa | linear
                117 claim 2: completed aa | P2 linear
                166 get: found completed 5/1 aa |
                167 get: found completed 5/1 aa | P2
            after kept:
                1100 claim 2: completed aa | P2 linear
        A replay ends with the next attempt.
            after 0 hold 1: acquired 5; 10- complete 5/1 aa 1000+0; 1100 claim 2: acquired 6 #2:
                1100-1110 claim 3: completed aa |
                1102-1110 claim 3: completed aa | P2 linear",
    );
}

#[test]
fn calls_that_were_lost_or_sent_again() {
    judged(
        "
        What was not answered may arrive late.
            Given up after 1 ms; a server that stood still takes it 200 ms later, for 100 ms.
            after 0 claim 1: failed perhaps:
                broken 0-210; 250 claim 2: in-flight 5 |
                broken 0-100; 250 claim 2: in-flight 5 | linear
            A fault that comes soon: the claim has to arrive at 405 at the earliest, for its lease to be there at 510.
            after 0 claim 1: failed perhaps:
                broken 251-500; 510 claim 2: in-flight 5 |
                broken 252-500; 510 claim 2: in-flight 5 | linear
        A lost claim may have done all that a claim does.
            after nothing:
                0 hold 1: acquired 5; 110- hold 2; 120 renew 5/1: refused Unknown |
                0- claim 1; 5 claim 2: in-flight 77; 7 claim 1: acquired 77 |
        A claim that took long may have won twice. Only what broke while it was under way.
            after 50 claim 2: in-flight 5; 120 claim 3: acquired 6; 122 complete 6/3 aa 1000+0: applied:
                broken 1000-1100; 0-1400 claim 1: acquired 9 |
                broken 1500-1600; 0-1400 claim 1: acquired 9 | P11 linear
                0-1400 claim 1: acquired 9 | P11 linear
        A renewal that was sent again may have extended twice.
            At 95, before the claim, and at 190.
            after taken:
                90-200 renew 5/1: applied; 150 claim 2: in-flight 5; 280 claim 3: in-flight 5 |
        An answer that hides what was done is not believed.
            after taken:
                broken 0-20; 10-30 complete 5/1 aa 1000+0: refused Missing; 40 claim 2: completed aa | P11
                broken 0-9; 10-30 complete 5/1 aa 1000+0: refused Missing; 40 claim 2: completed aa | P11 P4 linear
        What did not happen needs no place and a read does.
            after 0 claim 1: acquired 5; 20 claim 2: failed not:
                10 get: failed not |
                10 get: absent | linear
                10 purge |",
    );
}

#[test]
fn settling_and_waits() {
    judged(
        "
        Keys must settle after the faults.
            after 0 claim 1: acquired 5; 100-5000 claim 2: acquired 6 #2; 5000 complete 6/2 aa 1000+0: applied:
                settling 100 keys 1 within 3000 | P8
                settling 100 keys 1 within 6000 |
                settling 100 keys 2 within 6000 | P8
        A key is settled by a completion or by seeing one.
            after 0 hold 1: acquired 5; 10 complete 5/1 aa 50+9000: applied; settling 100 keys 1 within 3000:
                100-3100 claim 2: completed aa | P2 linear
                100-3101 claim 2: completed aa | P2 P8 linear
                100-3100 claim 2: expired |
                100-101 claim 2: in-flight 5 | P2 P8 linear
        A wait ends soon after the end.
            after kept:
                2-1500 wait 5: timed-out |
                2-3000 wait 5: timed-out | P8
            after released:
                2-2011 wait 5: timed-out |
                2-2012 wait 5: timed-out | P8
            after 0 hold 1: acquired 5; 150 claim 2: acquired 6 #2:
                2-2151 wait 5: timed-out |
                2-2152 wait 5: timed-out | P8
            There was no end.
            after held:
                2-5002 wait 5: timed-out |
        A wait may sleep through a fault that is there, or comes within 250. It is to end by 2011.
            after released:
                broken 261-1000; 2-3000 wait 5: timed-out |
                broken 261-1000; 2-3001 wait 5: timed-out | P8
                broken 262-1000; 2-2012 wait 5: timed-out | P8
                broken 261-1000 of 0; 2-3000 wait 5: timed-out |
                broken 261-1000 of 1; 2-2012 wait 5: timed-out | P8",
    );
}

#[test]
fn effects() {
    judged(
        "
        A plain life is fine.
            after life:
                60 effect 5/1; 1210 effect 10/7 | explained
        An effect needs a claim.
            after held:
                10 effect 5/1; 20 effect 5/1 |
            after 10 claim 1: acquired 5:
                5 effect 5/1 | P10
                20 effect 7/1 | P10",
    );
}

#[test]
fn a_fence_that_goes_back_is_said_to() {
    let history = "0 claim 1: acquired 5; 200 claim 2: acquired 7 #2; 400 claim 3: acquired 6 #3;
        600 claim 4: acquired 8 #4";
    let findings = History::read(history).findings();
    let said = findings.violations.iter().map(|found| found.what.as_str());
    let back: Vec<_> = said.filter(|what| what.contains("went back")).collect();
    assert_eq!(back, ["the fence went back: 6 was given out after 7 was"]);
}

#[test]
fn a_search_is_given_up_at_its_bound() {
    let ops = History::read("0 claim 1: acquired 5; 2 complete 5/1 aa 1000+0: applied").ops;
    let ops: Vec<&Op> = ops.iter().collect();
    // A step for each call, and one to see that there are no more.
    for (bound, verdict) in [
        (3, linear::Verdict::Orderly),
        (2, linear::Verdict::Undecided),
    ] {
        let found = linear::search_within(bound, &ops, &Options::default());
        assert_eq!(found, verdict);
    }
}

#[test]
fn every_key_is_searched_for_an_order() {
    let whole = |keys, calls| Searched { keys, calls };
    let findings = History::read("0 hold 1: acquired 5").findings();
    assert_eq!(findings.searched, whole(1, 1));
    assert_eq!(findings.by_property(), BTreeMap::new());
    let findings = History::read("0 hold 1: acquired 5; 2 claim 2: acquired 6").findings();
    let searched = (findings.searched, findings.undecided);
    assert_eq!(searched, (whole(1, 2), whole(0, 0)));
    assert_eq!(findings.by_property()["linear"], 1);
}

#[test]
fn an_excerpt_shows_the_key_around_the_instant() {
    let mut ops: Vec<Op> = (0..40)
        .flat_map(|at| History::read(&format!("{at} get: absent")).ops)
        .collect();
    for (at, op) in (0..).zip(&mut ops) {
        op.call = Call::Get { key: at % 2 };
    }
    ops.extend(History::read("40- get").ops);
    // Of eight lines two come after the instant; times are from an origin on.
    let sent = |at| {
        let lines = excerpt(&ops, 0, at * MS, 4 * MS, 8);
        let times = lines.iter().map(|line| line[..10].trim().to_owned());
        times.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        sent(20),
        "6.000 8.000 10.000 12.000 14.000 16.000 18.000 20.000"
    );
    assert_eq!(
        sent(99),
        "22.000 24.000 26.000 28.000 30.000 32.000 34.000 36.000"
    );
    let last = excerpt(&ops, 0, 40 * MS, 4 * MS, 1);
    assert_eq!(
        last,
        ["    36.000          … worker 0   Get { key: 0 } -> Lost"]
    );
}
