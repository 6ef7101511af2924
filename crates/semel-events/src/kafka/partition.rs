//! One partition: what was received of it, and what of that is not finished.

use std::collections::BTreeSet;

/// For one assignment to this consumer.
#[derive(Debug)]
pub(super) struct Partition {
    unfinished: BTreeSet<i64>,
    /// The offset behind the last one received.
    next: i64,
    /// Up to where the client said that it committed, or where this consumer began.
    committed: i64,
}

impl Partition {
    /// An assignment that begins with this offset.
    pub(super) const fn new(first: i64) -> Self {
        Self {
            unfinished: BTreeSet::new(),
            next: first,
            committed: first,
        }
    }

    /// Offsets have gaps, and only grow, unless a consumer goes back: then what it receives again is
    /// unfinished again.
    pub(super) fn received(&mut self, offset: i64) {
        self.unfinished.insert(offset);
        self.next = self.next.max(offset.saturating_add(1));
    }

    pub(super) fn finished(&mut self, offset: i64) {
        self.unfinished.remove(&offset);
    }

    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Up to where all is finished, where that is further than was committed.
    pub(super) fn to_commit(&self) -> Option<i64> {
        let offset = self.unfinished.first().copied().unwrap_or(self.next);
        Some(offset).filter(|offset| *offset > self.committed)
    }

    pub(super) fn committed(&mut self, offset: i64) {
        self.committed = self.committed.max(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Partition {
        fn advance(&mut self) -> Option<i64> {
            let offset = self.to_commit()?;
            self.committed(offset);
            Some(offset)
        }
    }

    #[test]
    fn what_is_not_finished_holds_up_the_offset_and_gaps_do_not() {
        let mut partition = Partition::new(10);
        assert_eq!(partition.advance(), None);
        for offset in [10, 11, 15, 20] {
            partition.received(offset);
        }
        assert_eq!((partition.advance(), partition.unfinished()), (None, 4));
        partition.finished(15);
        assert_eq!(partition.advance(), None);
        partition.finished(10);
        assert_eq!(partition.advance(), Some(11));
        assert_eq!(partition.advance(), None);
        partition.finished(11);
        assert_eq!(partition.advance(), Some(20));
        partition.finished(20);
        assert_eq!(partition.advance(), Some(21));
        partition.finished(20);
        assert_eq!((partition.advance(), partition.unfinished()), (None, 0));
    }

    #[test]
    fn going_back_commits_nothing_back() {
        let mut partition = Partition::new(5);
        partition.received(5);
        partition.finished(5);
        assert_eq!(partition.advance(), Some(6));
        partition.received(3);
        assert_eq!(partition.advance(), None);
        partition.received(6);
        partition.finished(6);
        assert_eq!(partition.advance(), None);
        partition.finished(3);
        assert_eq!(partition.advance(), Some(7));
    }
}
