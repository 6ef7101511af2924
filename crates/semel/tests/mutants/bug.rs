//! Ways to get a store wrong.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A claim reads, and writes what it decided later.
    CheckThenAct,
    /// Any token will do.
    UnfencedSteps,
    /// Tokens are compared by their fence only.
    NonceIgnored,
    /// Tokens are compared by their nonce only.
    FenceIgnored,
    /// Fences start from 1 for every new record.
    FenceResetOnPurge,
    /// Fences are above the identity's own, and otherwise the clock's.
    FencesByClock,
    /// A resolution leaves the token as it is.
    FenceKeptOnResolve,
    /// A lapsed lease is taken over whatever the policy says.
    HoldRetries,
    /// A waiter looks first and begins to listen later.
    WakeLost,
    /// An abandoned claim wakes nobody.
    ReleaseWakesNobody,
    UnknownPurged,
    LapsedPurged,
    TombstonePurged,
    RetentionFromClaim,
    /// The end of retention still replays.
    RetentionClosed,
    ReplayProlongs,
    MismatchWhenCompletedOnly,
    OwnNonceLoses,
    /// A copy of a released attempt's claim begins another.
    CopyRuns,
    SecondCompletionRefused,
    SecondCompletionWins,
    VoidIsEmpty,
    RenewalShortens,
    RunningResolved,
    PurgeUnbounded,
    /// The first record of a page is the last one of the page before.
    PageEdgeTwice,
    ClosedWorks,
    /// A claim says when it was made itself, not when its record was.
    SinceIsTheClaims,
    /// A step goes behind whatever is there.
    StepsUnordered,
    /// The mark of a transaction counts as a finished step.
    MarkIsAStep,
    /// A takeover starts from the first step.
    StepsForgotten,
    /// The next attempt's note does not take the place of the one before.
    NoteStays,
    /// A duplicate's note takes the place of the attempt's.
    NoteOfADuplicate,
    /// A settled record has no note.
    NoteForgotten,
}
