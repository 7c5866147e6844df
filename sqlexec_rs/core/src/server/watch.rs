//! When a run on a server must end: by the wall clock, or because its caller cancelled it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::outcome::Stop;

/// The longest that a wait for the server lasts before the caller's wish is looked at.
const PERIOD: Duration = Duration::from_millis(10);

/// The end of one run.
pub(super) struct Watch<'a> {
    deadline: Option<Instant>,
    cancel: &'a AtomicBool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(begun: Instant, timeout: Option<Duration>, cancel: &'a AtomicBool) -> Self {
        Self { deadline: timeout.and_then(|timeout| begun.checked_add(timeout)), cancel }
    }

    /// Returns why the run must end, if it must.
    pub(super) fn stop(&self) -> Option<Stop> {
        if self.cancel.load(Ordering::Relaxed) {
            return Some(Stop::Cancelled);
        }
        self.deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| Stop::Wall)
    }

    /// Returns the time that is left; `None` without a deadline.
    pub(super) fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns how long to wait for the server now; never zero, which sockets take for ever.
    pub(super) fn wait(&self) -> Duration {
        self.left().map_or(PERIOD, |left| left.min(PERIOD)).max(Duration::from_micros(100))
    }

    /// Returns one that begins when this one ends and lasts so long, whatever the caller wishes.
    pub(super) fn grace(time: Duration, never: &AtomicBool) -> Watch<'_> {
        Watch::new(Instant::now(), Some(time), never)
    }
}
