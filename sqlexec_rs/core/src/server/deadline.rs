//! Decides when a run on a server must end: at its deadline or when its caller cancels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::outcome::Stop;

/// Maximum time between two checks for cancellation while waiting for the server.
const PERIOD: Duration = Duration::from_millis(10);

/// The deadline and cancellation flag of one run.
pub(super) struct RunDeadline<'a> {
    deadline: Option<Instant>,
    cancel: &'a AtomicBool,
}

impl<'a> RunDeadline<'a> {
    pub(super) fn new(start_time: Instant, timeout: Option<Duration>, cancel: &'a AtomicBool) -> Self {
        Self { deadline: timeout.and_then(|timeout| start_time.checked_add(timeout)), cancel }
    }

    /// Returns the bound that ends the run now, if any.
    pub(super) fn stop(&self) -> Option<Stop> {
        if self.cancel.load(Ordering::Relaxed) {
            return Some(Stop::Cancelled);
        }
        self.deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| Stop::Wall)
    }

    /// Returns the remaining time; `None` without a deadline.
    pub(super) fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns how long the next wait may last. Never zero, which sockets interpret as infinite.
    pub(super) fn wait(&self) -> Duration {
        self.left().map_or(PERIOD, |left| left.min(PERIOD)).max(Duration::from_micros(100))
    }

    /// Returns a deadline that starts when this one ends, lasts `time`, and ignores cancellation.
    pub(super) fn grace(time: Duration, never: &AtomicBool) -> RunDeadline<'_> {
        RunDeadline::new(Instant::now(), Some(time), never)
    }
}
