//! Nonces and jitter from a seed, for simulations that must run the same way twice. Not for programs:
//! whoever knows the seed knows the nonces. Nothing changes on a thread that is not seeded.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on all that this thread draws follows from `seed`.
pub fn seed(seed: u64) {
    STATE.set(Some(seed));
}

/// The next bytes, where this thread is seeded.
pub(crate) fn bytes() -> Option<[u8; 16]> {
    let mut state = STATE.get()?;
    let mut bytes = [0; 16];
    for word in bytes.as_chunks_mut().0 {
        *word = next(&mut state).to_le_bytes();
    }
    STATE.set(Some(state));
    Some(bytes)
}

// SplitMix64.
const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Nonce;

    #[test]
    fn a_seeded_thread_draws_the_same_again_and_others_do_not() {
        let draw = || [(); 3].map(|()| *Nonce::random().unwrap().as_bytes());
        let seeded = |number| {
            seed(number);
            draw()
        };
        assert_ne!(draw(), draw());
        assert_eq!(seeded(7), seeded(7));
        assert_ne!(seeded(7), seeded(8));
        assert_ne!(seeded(7), std::thread::spawn(draw).join().unwrap());
    }
}
